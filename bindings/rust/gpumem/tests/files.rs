// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Copies between files and memory.

mod common;

use std::fs::{remove_file, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};

use common::with_device;
use gpumem::{Buffer, DeviceMemory, ErrorKind, FileOptions, Instance, Pinned};

const LARGE: usize = (9 << 20) + 5;

/// A file without a name.
fn file() -> File {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("gpumem-files-{}-{}", std::process::id(), number));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    remove_file(&path).unwrap();
    file
}

fn content(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 1000) as u8).collect()
}

#[test]
fn there_and_back() {
    with_device(|instance: &Instance, device| {
        let (sent, mut from) = (pattern(LARGE), file());
        from.write_all(&[9; 3]).unwrap();
        from.write_all(&sent).unwrap();
        let memory = DeviceMemory::<u8>::new(device, LARGE).unwrap();
        let copied = instance.read_file(&memory, &from, 3).unwrap();
        assert_eq!((copied.bytes, copied.direct), (LARGE as u64, 0));
        assert!(memory.to_vec().unwrap() == sent);
        let to = file();
        let copied = instance.write_file_with(&to, 0, &memory, FileOptions::new().direct()).unwrap();
        assert!(copied.bytes == LARGE as u64 && copied.direct <= copied.bytes);
        assert!(content(&to) == sent);
    });
}

#[test]
fn copied_before_a_failure() {
    with_device(|instance: &Instance, device| {
        const SIZE: usize = 6 << 20;
        const CUT: u64 = (5 << 20) + 5;
        let (sent, mut from) = (pattern(SIZE), file());
        from.write_all(&sent).unwrap();
        let memory = DeviceMemory::<u8>::new(device, SIZE).unwrap();
        let cut = FileOptions::new().progress(|_, _| {
            from.set_len(CUT).unwrap();
            ControlFlow::Continue(())
        });
        let error = instance.read_file_with(&memory, &from, 0, cut).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        let copied = error.copied().unwrap();
        assert!(copied > 0 && copied <= CUT, "{copied}");
        assert!(format!("{error:?}").contains("copied: "), "{error:?}");
        let copied = copied as usize;
        assert!(memory.to_vec().unwrap()[..copied] == sent[..copied]);
        let rest = memory.slice(copied..CUT as usize).unwrap();
        assert_eq!(instance.read_file(rest, &from, copied as u64).unwrap().bytes, CUT - copied as u64);
        let cancel = FileOptions::new().progress(|_, _| ControlFlow::Break(()));
        let error = instance.write_file_with(&from, 0, &memory, cancel).unwrap_err();
        assert_eq!((error.kind(), error.copied()), (ErrorKind::Cancelled, Some(0)));
        assert_eq!(instance.device(99).unwrap_err().copied(), None);
    });
}

#[test]
fn every_operand() {
    with_device(|instance: &Instance, device| {
        let mut from = file();
        from.write_all(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]).unwrap();
        let mut ours = [0u32; 2];
        instance.read_file(&mut ours, &from, 4).unwrap();
        assert_eq!(ours, [2, 3]);
        let mut pinned = Pinned::<u32>::zeroed(device, 3).unwrap();
        instance.read_file(&mut pinned, &from, 0).unwrap();
        assert_eq!(pinned[..], [1, 2, 3]);
        let memory = DeviceMemory::<u32>::new(device, 5).unwrap();
        instance.fill(&memory, 7u32).unwrap();
        instance.read_file(memory.slice(1..3).unwrap(), &from, 0).unwrap();
        assert_eq!(memory.to_vec().unwrap(), [7, 1, 2, 7, 7]);
        if let Ok(buffer) = Buffer::<u32>::new(device, 3) {
            instance.read_file(&buffer, &from, 0).unwrap();
            let to = file();
            instance.write_file(&to, 0, &buffer).unwrap();
            assert_eq!(content(&to), content(&from));
        }
        instance.read_file(&mut [0u32; 0], &from, 1 << 40).unwrap();
    });
}

#[test]
fn progress_and_cancellation() {
    with_device(|instance: &Instance, _| {
        let from = file();
        from.set_len(70 << 20).unwrap();
        let mut told = Vec::new();
        let mut ours = vec![0u8; 70 << 20];
        let options = FileOptions::new().progress(|done, total| {
            told.push((done, total));
            ControlFlow::Continue(())
        });
        instance.read_file_with(&mut ours, &from, 0, options).unwrap();
        assert_eq!(told[0], (0, 70 << 20));
        assert_eq!(told[told.len() - 1], (70 << 20, 70 << 20));
        let cancelled = instance.read_file_with(
            &mut ours,
            &from,
            0,
            FileOptions::new().progress(|_, _| ControlFlow::Break(())),
        );
        assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let options = FileOptions::new().progress(|_, _| panic!("in a progress function"));
            instance.read_file_with(&mut ours, &from, 0, options)
        }));
        assert!(panicked.is_err());
    });
}

#[test]
fn refused() {
    with_device(|instance: &Instance, _| {
        let from = file();
        from.set_len(5).unwrap();
        let short = instance.read_file(&mut [0u8; 6], &from, 0).unwrap_err();
        assert_eq!(short.kind(), ErrorKind::InvalidArgument);
        assert!(short.to_string().contains("has 5 bytes"), "{}", short);
        let null = File::open("/dev/null").unwrap();
        assert_eq!(
            instance.read_file(&mut [0u8; 6], &null, 0).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        assert_eq!(instance.write_file(&null, 0, &[0u8; 6]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let read_only = File::open("/proc/self/exe").unwrap();
        let refused = instance.write_file(&read_only, 0, &[0u8; 6]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoAccess);
        assert!(refused.to_string().starts_with("Instance::write_file: "), "{}", refused);
        let (mut bytes, options) = ([0u8; 6], FileOptions::new);
        let pointer = bytes.as_mut_ptr().cast();
        // SAFETY: there are so many bytes.
        let [read, write] = unsafe {
            [
                instance.read_file_raw(pointer, &from, 0, 6, options()),
                instance.write_file_raw(&read_only, 0, pointer, 6, options()),
            ]
        };
        for (function, result) in [
            ("read_file_with", instance.read_file_with(&mut bytes, &from, 0, options())),
            ("write_file_with", instance.write_file_with(&read_only, 0, &bytes, options())),
            ("read_file_raw", read),
            ("write_file_raw", write),
        ] {
            let text = result.unwrap_err().to_string();
            assert!(text.starts_with(&format!("Instance::{function}: ")), "{text}");
        }
    });
}
