// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Use after close. In a process of its own with a single test: the library remembers the end of a handle only until
//! another instance reuses its slot.

mod common;

use std::sync::mpsc;

use common::backend;
use gpumem::{DeviceMemory, ErrorKind, Event, Instance, Region, RegisterOptions, Registered, Stream};

#[test]
fn use_after_close_is_refused() {
    an_instance_that_is_closed();
    objects_that_are_closed_by_force();
}

fn an_instance_that_is_closed() {
    let instance = Instance::open(backend()).unwrap();
    let (device, copy) = (instance.device(0).unwrap(), instance.clone());
    let (text, info) = (format!("{instance:?}"), instance.info().unwrap());
    assert!(text.starts_with("Instance { handle: 0x"), "{text}");
    assert!(text.contains(&format!(", backend: {:?}, name: ", info.backend)), "{text}");
    assert!(text.contains(&format!("device_count: {}", info.device_count)), "{text}");
    assert_eq!(device.trim_graphs().unwrap(), 0);
    std::thread::spawn(move || instance.close().unwrap()).join().unwrap();
    assert_eq!(copy.info().unwrap_err().kind(), ErrorKind::Closed);
    assert!(format!("{copy:?}").ends_with(", error: Closed, .. }"), "{copy:?}");
    assert_eq!(device.memory().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(device.trim_graphs().unwrap_err().kind(), ErrorKind::Closed);
    // The failure of a batch need not belong to one of its regions.
    let error = copy.copy_regions([Region::new(&mut [0u8], &[1u8], 1)]).unwrap_err();
    assert_eq!((error.kind(), error.region()), (ErrorKind::Closed, None));
    let (message, sent) = mpsc::channel();
    std::thread::spawn(move || {
        message.send(DeviceMemory::<u8>::new(&device, 1).unwrap_err().kind()).unwrap()
    });
    assert_eq!(sent.recv().unwrap(), ErrorKind::Closed);
    // Closing again succeeds.
    copy.clone().close().unwrap();
    copy.close().unwrap();
}

fn objects_that_are_closed_by_force() {
    let instance = Instance::open(backend()).unwrap();
    let device = instance.device(0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let event = Event::new(&device).unwrap();
    let memory = DeviceMemory::<u8>::new(&device, 64).unwrap();
    let registered = Registered::new(&device, vec![1u8; 64], &RegisterOptions::new()).unwrap();
    drop(stream.fill(&memory, 7u8).unwrap());
    // SAFETY: nothing looks at the memory afterwards.
    assert_eq!(unsafe { instance.close_by_force() }.unwrap(), 4);
    assert_eq!(memory.to_vec().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(event.record(&stream).unwrap_err().kind(), ErrorKind::Closed);
    // The registered array is pageable again, and is returned.
    assert_eq!(registered.into_vec().unwrap().len(), 64);
}
