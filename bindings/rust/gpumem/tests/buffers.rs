// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Buffers that grow in place and can sleep, and work that uses them.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};

use common::{is_host, with_device, with_host};
use gpumem::{
    host, Access, Buffer, BufferFlags, BufferOptions, BufferState, Capability, Content, Device, DeviceMemory,
    Error, ErrorKind, Event, HandleTypes, HostOptions, Instance, Physical, PhysicalFlags, PhysicalOptions,
    Pinned, Place, Processor, Region, Rejected, SleepFlags, SleepOptions, Status, Stream, WaitCondition,
};

/// Elements of `u32` in the smallest block.
fn unit(device: &Device) -> usize {
    Physical::granularity(device, &PhysicalOptions::new()).unwrap().minimum as usize / 4
}

/// Addresses for so many units.
fn reserving(device: &Device, units: usize) -> BufferOptions {
    BufferOptions::new().reserve((units * unit(device) * 4) as u64)
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// Elements from an index on.
fn read(instance: &Instance, buffer: &Buffer<u32>, start: usize, len: usize) -> Vec<u32> {
    let mut seen = vec![0; len];
    instance.copy(&mut seen, buffer.slice(start..start + len).unwrap()).unwrap();
    seen
}

/// Whether buffers can lie on the host here.
fn has_host(device: &Device) -> bool {
    let supported = device.capability(Capability::VMM_HOST, None).unwrap().is_supported();
    if !supported {
        println!("no physical memory of the host here");
    }
    supported
}

/// A stream whose work waits until the word is 1.
fn gated(device: &Device) -> (Stream, Pinned<AtomicU32>) {
    let (stream, gate) = (Stream::new(device).unwrap(), Pinned::<AtomicU32>::zeroed(device, 1).unwrap());
    stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
    (stream, gate)
}

#[test]
fn a_buffer_grows_in_place() {
    with_device(|instance, device| {
        let unit = unit(device);
        let options = reserving(device, 16).name("cache");
        let mut buffer = Buffer::<u32>::with_options(device, unit + 1, &options).unwrap();
        assert_eq!((buffer.len(), buffer.capacity(), buffer.is_empty()), (unit + 1, 2 * unit, false));
        let first = buffer.info().unwrap();
        // In the length, and where nothing is mapped.
        for offset in [0, first.reserved_size as usize - 1] {
            let at = first.base.cast::<u8>().wrapping_add(offset);
            assert_eq!(instance.pointer_info(at.cast()).unwrap().buffer, buffer.handle());
        }
        assert_eq!((first.size, first.capacity), (unit as u64 * 4 + 4, unit as u64 * 8));
        assert_eq!((first.granularity, first.block_count), (unit as u64 * 4, 1));
        assert_eq!((first.place, first.device_ordinal), (Place::device(0), 0));
        assert_eq!((first.state, first.ahead, first.registrations), (BufferState::AWAKE, 0, 0));
        assert!(first.group.is_null() && first.tag.is_empty());
        assert_eq!((first.base, first.name.as_str()), (buffer.as_ptr().cast(), "cache"));
        assert_eq!(first.reserved_size, unit as u64 * 64);
        let stats = instance.stats().unwrap();
        assert_eq!((stats.live_bytes, stats.reserved_bytes), (unit as u64 * 8, unit as u64 * 64));
        assert!(!buffer.handle().is_null() && !first.range.is_null());

        let values: Vec<u32> = (0..=unit as u32).collect();
        instance.copy(&buffer, &values).unwrap();
        buffer.resize(5 * unit).unwrap();
        let info = buffer.info().unwrap();
        assert_eq!((info.base, info.buffer_id), (first.base, first.buffer_id));
        assert_eq!((info.generation, info.block_count), (first.generation, 2));
        assert_eq!((buffer.len(), buffer.capacity()), (5 * unit, 5 * unit));
        instance.fill(buffer.slice(unit + 1..).unwrap(), 7u32).unwrap();
        let last = unit as u32;
        assert_eq!(read(instance, &buffer, unit - 1, 4), [last - 1, last, 7, 7]);
        assert_eq!(read(instance, &buffer, 5 * unit - 1, 1), [7]);

        // The block of four units goes with its last element.
        buffer.resize(2 * unit + 1).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (2 * unit + 1, 5 * unit));
        buffer.resize(2 * unit).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (2 * unit, 2 * unit));
        assert_eq!(read(instance, &buffer, unit - 1, 2), [last - 1, last]);
        buffer.resize(0).unwrap();
        assert_eq!((buffer.is_empty(), buffer.capacity(), buffer.as_ptr().cast()), (true, 0, first.base));
        buffer.close().unwrap();
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
}

#[test]
fn values_are_appended() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut buffer = Buffer::<u32>::with_options(device, 0, &reserving(device, 2)).unwrap();
        buffer.extend_from_slice(&[1, 2, 3]).unwrap();
        buffer.extend_from_slice(&[]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
        buffer.extend_from_slice(&vec![4; unit]).unwrap();
        assert_eq!(buffer.len(), unit + 3);
        assert_eq!(read(instance, &buffer, 1, 3), [2, 3, 4]);
        assert_eq!(read(instance, &buffer, unit + 2, 1), [4]);

        // No addresses are left.
        let error = buffer.extend_from_slice(&vec![5; 2 * unit]).unwrap_err();
        assert_eq!(error.status(), Status::OUT_OF_ADDRESS_SPACE);
        assert!(error.to_string().starts_with("Buffer::extend_from_slice: "), "{error}");
        assert_eq!(buffer.len(), unit + 3);
        assert_eq!(read(instance, &buffer, unit + 2, 1), [4]);
    });
}

#[test]
fn an_append_that_cannot_copy_leaves_the_length() {
    with_device(|instance, device| {
        if !is_host() {
            return;
        }
        let unit = unit(device);
        let mut buffer = Buffer::<u32>::with_options(device, 4, &reserving(device, 2)).unwrap();
        buffer.reserve_exact(unit).unwrap();
        // The memory is there, so the first step that can fail is one of the copy.
        host::fail_step(instance, 1, false).unwrap();
        let error = buffer.extend_from_slice(&[1, 2]).unwrap_err();
        assert!(error.to_string().starts_with("Buffer::extend_from_slice: "), "{error}");
        host::fail_step(instance, 0, false).unwrap();
        assert_eq!(buffer.len(), 4);
        buffer.extend_from_slice(&[3]).unwrap();
        assert_eq!(read(instance, &buffer, 4, 1), [3]);
    });
}

#[test]
fn memory_is_reserved_ahead_and_given_back() {
    with_device(|_, device| {
        let unit = unit(device);
        let mut buffer = Buffer::<u32>::with_options(device, unit, &reserving(device, 16)).unwrap();
        buffer.reserve_exact(unit + 1).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (unit, 3 * unit));
        buffer.reserve_exact(2 * unit).unwrap();
        buffer.resize(3 * unit).unwrap();
        assert_eq!(buffer.info().unwrap().block_count, 2);
        buffer.reserve_exact(2 * unit).unwrap();
        buffer.reserve_exact(3 * unit).unwrap();
        assert_eq!(buffer.capacity(), 6 * unit);
        // Nothing is behind that, and then one block is.
        buffer.shrink_to(6 * unit).unwrap();
        buffer.shrink_to(usize::MAX).unwrap();
        assert_eq!(buffer.capacity(), 6 * unit);
        buffer.shrink_to(4 * unit).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (3 * unit, 5 * unit));
        buffer.shrink_to_fit().unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (3 * unit, 3 * unit));

        let error = buffer.reserve_exact(14 * unit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().starts_with("Buffer::reserve_exact: "), "{error}");
        assert!(error.message().contains("BufferFlags::MOVABLE"), "{error}");
        for additional in [usize::MAX, usize::MAX / 4] {
            assert_eq!(kind(buffer.reserve_exact(additional)), ErrorKind::InvalidArgument);
            assert_eq!(kind(buffer.resize(additional)), ErrorKind::InvalidArgument);
        }
        assert_eq!(kind(buffer.resize(17 * unit)), ErrorKind::OutOfMemory);
        assert_eq!((buffer.len(), buffer.capacity()), (3 * unit, 3 * unit));
    });
}

#[test]
fn options_are_checked() {
    with_device(|_, device| {
        let make = |options: BufferOptions| Buffer::<u32>::with_options(device, 4, &options);
        assert_eq!(kind(make(BufferOptions::new().reserve(15))), ErrorKind::InvalidArgument);
        assert_eq!(kind(make(BufferOptions::new().name("a\0b"))), ErrorKind::InvalidArgument);
        assert_eq!(kind(make(BufferOptions::new().flags(BufferFlags(1 << 40)))), ErrorKind::InvalidArgument);
        let nobody = BufferOptions::new().access(Processor::Device(99), Access::READ);
        assert_eq!(kind(make(nobody)), ErrorKind::InvalidArgument);
        assert_eq!(kind(make(BufferOptions::new().numa_node(9999))), ErrorKind::InvalidArgument);
        let error = Buffer::<u32>::new(device, usize::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().starts_with("Buffer::new: "), "{error}");

        let shared = BufferOptions::new().handle_types(HandleTypes::POSIX_FD);
        let buffer = make(shared.prefer(PhysicalFlags::COMPRESSIBLE)).unwrap();
        let block = Physical::retain(&device.instance(), buffer.as_ptr().cast()).unwrap();
        block.export_fd().unwrap();
        drop(make(BufferOptions::new().require(PhysicalFlags::NONE)).unwrap());
    });
    with_host(HostOptions::new().compressible(false), |_, device| {
        let required = BufferOptions::new().require(PhysicalFlags::COMPRESSIBLE);
        assert_eq!(kind(Buffer::<u32>::with_options(device, 4, &required)), ErrorKind::Unsupported);
    });
}

#[test]
fn a_buffer_without_elements_is_one() {
    with_device(|instance, device| {
        let mut buffer = Buffer::<u32>::new(device, 0).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (0, 0));
        instance.copy(&buffer, &[]).unwrap();
        buffer.sleep(Content::PINNED).unwrap();
        buffer.wake().unwrap();
        buffer.resize(1).unwrap();
        instance.fill(&buffer, 7u32).unwrap();
        assert_eq!(read(instance, &buffer, 0, 1), [7]);
        // Nor do elements need bytes.
        let mut empty = Buffer::<[u32; 0]>::new(device, 5).unwrap();
        assert_eq!((empty.len(), empty.capacity()), (5, usize::MAX));
        empty.resize(usize::MAX).unwrap();
        empty.reserve_exact(0).unwrap();
        assert_eq!((empty.len(), empty.info().unwrap().size), (usize::MAX, 0));
    });
}

#[test]
fn parts_are_operands() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut buffer = Buffer::<u32>::with_options(device, unit, &reserving(device, 4)).unwrap();
        buffer.resize(2 * unit).unwrap();
        for range in [0..2 * unit + 1, 2 * unit + 1..2 * unit + 1] {
            assert!(buffer.slice(range).is_err());
        }
        let seam = buffer.slice(unit - 1..unit + 1).unwrap();
        assert_eq!((seam.len(), seam.is_empty()), (2, false));
        assert_eq!(seam.device_address(), buffer.device_address() + unit as u64 * 4 - 4);
        assert_eq!(buffer.as_slice().len(), 2 * unit);
        assert!(buffer.slice(3..3).unwrap().is_empty());
        // The numbers of elements must be equal.
        assert_eq!(kind(instance.copy(seam, &[1u32, 2, 3])), ErrorKind::InvalidArgument);
        instance.fill(&buffer, 9u32).unwrap();
        instance.copy(seam, &[1u32, 2]).unwrap();
        assert_eq!(read(instance, &buffer, unit - 2, 4), [9, 1, 2, 9]);
        instance.copy_regions([Region::new(&buffer, seam, 2)]).unwrap();
        assert_eq!(read(instance, &buffer, 0, 3), [1, 2, 9]);

        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u32>::new(device, 2).unwrap();
        stream.copy(&memory, seam).unwrap().wait().unwrap();
        assert_eq!(memory.to_vec().unwrap(), [1, 2]);
        let sent = Pinned::from_slice(device, &[5u32, 6]).unwrap();
        let part = buffer.slice(2 * unit - 2..).unwrap();
        stream.copy(part, sent).unwrap().wait().unwrap();
        assert_eq!(read(instance, &buffer, 2 * unit - 3, 3), [9, 5, 6]);
        stream.fill(&buffer, 8u32).unwrap().wait().unwrap();
        assert_eq!(read(instance, &buffer, 0, 2 * unit), vec![8; 2 * unit]);
        let text = format!("{buffer:?}");
        let (len, base) = (2 * unit, buffer.as_ptr());
        assert_eq!(text, format!("Buffer {{ len: {len}, capacity: {len}, base: {base:?} }}"));
    });
}

#[test]
fn content_sleeps_as_asked() {
    with_device(|instance, device| {
        let unit = unit(device);
        let values: Vec<u32> = (0..2 * unit as u32).collect();
        let options = |content| match content {
            Content::FILE => SleepOptions::new().directory(std::env::temp_dir()),
            content => SleepOptions::from(content),
        };
        for content in [Content::PINNED, Content::PAGEABLE, Content::ZERO, Content::DROP, Content::FILE] {
            let mut buffer = Buffer::<u32>::with_options(device, unit, &reserving(device, 8)).unwrap();
            buffer.resize(2 * unit).unwrap();
            instance.copy(&buffer, &values).unwrap();
            let before = buffer.info().unwrap();
            let free = || device.memory().unwrap().free;
            let awake = free();
            buffer.sleep(options(content)).unwrap();
            assert_eq!(kind(instance.mapping(before.base)), ErrorKind::InvalidState);
            // On a GPU, the tests beside this one have some too.
            assert!(!is_host() || free() == awake + 8 * unit as u64, "{content:?}");
            let kept = content != Content::ZERO && content != Content::DROP;
            let asleep = buffer.info().unwrap();
            assert_eq!(asleep.state, BufferState::ASLEEP);
            assert_eq!(asleep.stored_size, if kept { 8 * unit as u64 } else { 0 });
            assert_eq!((buffer.len(), buffer.capacity()), (2 * unit, 2 * unit));

            // Nothing can be done with it.
            assert_eq!(kind(buffer.sleep(options(content))), ErrorKind::InvalidState);
            assert_eq!(kind(buffer.prepare(Content::PINNED)), ErrorKind::InvalidState);
            assert_eq!(kind(buffer.resize(1)), ErrorKind::InvalidState);
            assert_eq!(kind(buffer.shrink_to_fit()), ErrorKind::InvalidState);
            assert_eq!(
                kind(buffer.set_access(&[(Processor::Device(0), Access::READ)])),
                ErrorKind::InvalidState
            );
            let error = buffer.reserve_exact(unit).unwrap_err();
            assert!(error.message().contains("Buffer::wake"), "{error}");
            let mut seen = [0u32; 4];
            let part = buffer.slice(..4).unwrap();
            assert_eq!(kind(instance.copy(&mut seen, part)), ErrorKind::InvalidState);

            buffer.wake().unwrap();
            let after = buffer.info().unwrap();
            assert_eq!((after.base, after.size, after.state), (before.base, before.size, BufferState::AWAKE));
            assert_eq!((after.generation, after.stored_size), (before.generation + 1, 0));
            assert_eq!(kind(buffer.wake()), ErrorKind::InvalidState);
            let seen = read(instance, &buffer, 0, 2 * unit);
            if kept {
                assert!(seen == values, "{content:?}");
            } else if content == Content::ZERO {
                assert!(seen.iter().all(|value| *value == 0));
            }
        }
        let mut buffer = Buffer::<u32>::new(device, 1).unwrap();
        assert_eq!(kind(buffer.sleep(Content(9))), ErrorKind::InvalidArgument);
        // It is freed asleep, too.
        buffer.sleep(Content::PINNED).unwrap();
        buffer.close().unwrap();
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
}

#[test]
fn access_is_set_for_each_processor() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut buffer = Buffer::<u32>::with_options(device, unit, &reserving(device, 8)).unwrap();
        let access = |buffer: &Buffer<u32>, index: usize, processor| {
            let address = buffer.slice(index..).unwrap().device_address();
            instance.pointer_access(address as *const _, processor).unwrap()
        };
        let (first, second) = (Processor::Device(0), Processor::Device(1));
        assert_eq!(access(&buffer, 0, first), Access::READ_WRITE);
        assert_eq!(access(&buffer, 0, second), Access::NONE);
        buffer.set_access(&[(first, Access::NONE)]).unwrap();
        // Nobody could save it.
        assert_eq!(kind(buffer.sleep(Content::PINNED)), ErrorKind::NoAccess);
        buffer.set_access(&[(second, Access::READ_WRITE)]).unwrap();
        // As it grows, and after sleep.
        buffer.resize(2 * unit).unwrap();
        buffer.sleep(Content::DROP).unwrap();
        buffer.wake().unwrap();
        for index in [0, unit] {
            assert_eq!(access(&buffer, index, first), Access::NONE);
            assert_eq!(access(&buffer, index, second), Access::READ_WRITE);
        }
        assert_eq!(kind(buffer.set_access(&[])), ErrorKind::InvalidArgument);

        // Those that are named, and nobody else.
        let options = reserving(device, 8).access(second, Access::READ_WRITE).access(first, Access::NONE);
        let buffer = Buffer::<u32>::with_options(device, 4, &options).unwrap();
        assert_eq!(access(&buffer, 0, first), Access::NONE);
        assert_eq!(access(&buffer, 0, second), Access::READ_WRITE);
        let stream = Stream::new(device).unwrap();
        assert_eq!(stream.fill(&buffer, 1u32).unwrap_err().error.kind(), ErrorKind::NoAccess);
    });
}

#[test]
fn the_cpu_borrows_memory_of_the_host() {
    with_device(|instance, device| {
        let mut there = Buffer::<u32>::new(device, 4).unwrap();
        assert_eq!(kind(there.host()), ErrorKind::NoAccess);
        assert_eq!(kind(there.host_mut()), ErrorKind::NoAccess);
        if !has_host(device) {
            return;
        }
        let unit = unit(device);
        let options = reserving(device, 8).host();
        let mut buffer = Buffer::<u32>::with_options(device, 0, &options).unwrap();
        assert_eq!(buffer.info().unwrap().place, Place::HOST);
        assert!(buffer.host().unwrap().is_empty());
        buffer.resize(unit).unwrap();
        buffer.resize(2 * unit).unwrap();
        for (index, value) in buffer.host_mut().unwrap().iter_mut().enumerate() {
            *value = index as u32;
        }
        instance.copy(&there, buffer.slice(unit - 2..unit + 2).unwrap()).unwrap();
        let middle = unit as u32;
        let mut seen = [0; 4];
        instance.copy(&mut seen, &there).unwrap();
        assert_eq!(seen, [middle - 2, middle - 1, middle, middle + 1]);
        instance.fill(buffer.slice(1..3).unwrap(), 9u32).unwrap();
        assert_eq!(buffer.host().unwrap()[..4], [0, 9, 9, 3]);

        buffer.sleep(Content::PAGEABLE).unwrap();
        let error = buffer.host_mut().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        assert!(error.to_string().starts_with("Buffer::host_mut: the buffer is asleep"), "{error}");
        buffer.wake().unwrap();
        assert_eq!(buffer.host().unwrap()[2 * unit - 1], 2 * middle - 1);

        // As much as the CPU may do.
        buffer.set_access(&[(Processor::Cpu, Access::NONE)]).unwrap();
        assert_eq!(kind(buffer.host()), ErrorKind::NoAccess);
        match buffer.set_access(&[(Processor::Cpu, Access::READ)]) {
            Ok(()) => {
                assert_eq!(buffer.host().unwrap()[3], 3);
                assert_eq!(kind(buffer.host_mut()), ErrorKind::NoAccess);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        }
        buffer.set_access(&[(Processor::Cpu, Access::READ_WRITE)]).unwrap();
        buffer.host_mut().unwrap()[3] = 4;

        // Work in a stream comes first.
        let (stream, gate) = gated(device);
        drop(stream.fill(buffer.slice(..1).unwrap(), 5u32).unwrap());
        assert_eq!(kind(buffer.host()), ErrorKind::Busy);
        gate[0].store(1, Ordering::Release);
        stream.synchronize().unwrap();
        assert_eq!(buffer.host().unwrap()[..4], [5, 9, 9, 4]);
        let empty = Buffer::<[u32; 0]>::with_options(device, 3, &BufferOptions::new().host());
        assert_eq!(empty.unwrap().host().unwrap().len(), 3);
    });
}

#[test]
fn what_the_cpu_borrows_has_no_alias() {
    with_device(|instance, device| {
        if !has_host(device) {
            return;
        }
        let unit = unit(device);
        let options = reserving(device, 1).host().flags(BufferFlags::MOVABLE);
        let mut buffer = Buffer::<u32>::with_options(device, unit, &options).unwrap();
        let retain = |address: u64| Physical::retain(instance, address as *const _);
        let address = buffer.device_address();
        for address in [address, address + unit as u64 * 4 - 1] {
            let error = retain(address).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("lends it to the CPU"), "{error}");
        }
        // At its new place too.
        buffer.host_mut().unwrap()[unit - 1] = 7;
        buffer.resize(2 * unit).unwrap();
        assert_ne!(buffer.device_address(), address);
        assert_eq!(buffer.host().unwrap()[unit - 1], 7);
        let error = retain(buffer.device_address() + unit as u64 * 4).unwrap_err();
        assert!(error.message().contains("lends it to the CPU"), "{error}");
        // The address may be that of other memory later.
        let moved = buffer.device_address();
        buffer.close().unwrap();
        for address in [address, moved] {
            let error = retain(address).unwrap_err();
            assert!(!error.message().contains("lends it to the CPU"), "{error}");
        }
    });
}

#[test]
fn a_movable_buffer_moves_when_it_must() {
    with_device(|instance, device| {
        let unit = unit(device);
        let options = reserving(device, 2).flags(BufferFlags::MOVABLE);
        let mut buffer = Buffer::<u32>::with_options(device, unit, &options).unwrap();
        instance.copy(buffer.slice(..2).unwrap(), &[1u32, 2]).unwrap();
        let before = buffer.info().unwrap();
        let (stream, gate) = gated(device);
        drop(stream.fill(buffer.slice(2..3).unwrap(), 3u32).unwrap());
        // In place while work runs, but not to another.
        buffer.resize(2 * unit).unwrap();
        assert_eq!(kind(buffer.resize(2 * unit + 1)), ErrorKind::Busy);
        assert_eq!(kind(buffer.reserve_exact(1)), ErrorKind::Busy);
        gate[0].store(1, Ordering::Release);
        stream.synchronize().unwrap();
        buffer.resize(2 * unit + 1).unwrap();
        let after = buffer.info().unwrap();
        assert_eq!((after.generation, after.base), (before.generation + 1, buffer.as_ptr().cast()));
        assert_ne!(after.base, before.base);
        instance.fill(buffer.slice(2 * unit..).unwrap(), 4u32).unwrap();
        assert_eq!(read(instance, &buffer, 0, 3), [1, 2, 3]);
        assert_eq!(read(instance, &buffer, 2 * unit, 1), [4]);
    });
}

#[test]
fn what_a_stream_uses_stays() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut buffer = Buffer::<u32>::with_options(device, 2 * unit, &reserving(device, 8)).unwrap();
        let (stream, gate) = gated(device);
        drop(stream.fill(buffer.slice(unit..unit + 4).unwrap(), 7u32).unwrap());
        stream.fill(buffer.slice(3..3).unwrap(), 7u32).unwrap().wait().unwrap();
        // It grows, and new elements are used behind it.
        buffer.resize(3 * unit).unwrap();
        drop(stream.fill(buffer.slice(2 * unit..2 * unit + 1).unwrap(), 8u32).unwrap());
        buffer.set_access(&[(Processor::Device(1), Access::READ_WRITE)]).unwrap();
        buffer.reserve_exact(unit).unwrap();
        buffer.shrink_to_fit().unwrap();
        buffer.resize(2 * unit + 1).unwrap();
        for len in [0, unit + 3, 2 * unit] {
            assert_eq!(kind(buffer.resize(len)), ErrorKind::Busy, "{len}");
        }
        let idle = SleepOptions::from(Content::DROP).flags(SleepFlags::IDLE);
        assert_eq!(kind(buffer.sleep(idle)), ErrorKind::Busy);
        let other = Stream::new(device).unwrap();
        assert_eq!(kind(buffer.sleep(SleepOptions::new().after(&other))), ErrorKind::Busy);
        let event = Event::new(device).unwrap();
        event.record(&other).unwrap();
        assert_eq!(kind(buffer.sleep(SleepOptions::new().after_event(&event))), ErrorKind::Busy);
        assert_eq!(buffer.info().unwrap().state, BufferState::AWAKE);
        let take = [(Processor::Device(0), Access::NONE)];
        assert_eq!(kind(buffer.set_access(&take)), ErrorKind::Busy);
        let Rejected { given: buffer, error, .. } = buffer.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(buffer.len(), 2 * unit + 1);

        // A dropped buffer is freed when the work is done.
        let address = buffer.as_ptr().cast();
        drop(buffer);
        assert!(instance.mapping(address).is_ok());
        gate[0].store(1, Ordering::Release);
        stream.synchronize().unwrap();
        assert!(instance.mapping(address).is_err());
    });
}

#[test]
fn after_a_lost_device_everything_is_released() {
    with_host(HostOptions::new(), |instance, device| {
        let (stream, gate) = gated(device);
        let mut buffer = Buffer::<u32>::new(device, 4).unwrap();
        let mut asleep = Buffer::<u32>::new(device, 4).unwrap();
        // The work would be waited for.
        asleep.sleep(SleepOptions::new().flags(SleepFlags::IDLE)).unwrap();
        let options = BufferOptions::new().host();
        let mut lent = Buffer::<u32>::with_options(device, 4, &options).unwrap();
        drop(stream.fill(&buffer, 7u32).unwrap());
        drop(stream.fill(&lent, 7u32).unwrap());
        host::device_lose(device).unwrap();
        assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::DeviceLost);
        assert_eq!(kind(buffer.resize(5)), ErrorKind::DeviceLost);
        assert_eq!(kind(asleep.wake()), ErrorKind::DeviceLost);
        assert_eq!((buffer.len(), buffer.info().unwrap().size), (4, 16));
        // The fill may go on.
        assert_eq!(kind(lent.host()), ErrorKind::DeviceLost);
        drop((buffer, asleep, lent, gate, stream));
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
}

#[test]
fn a_drop_that_fails_is_tried_again() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let buffer = Buffer::<u32>::new(device, 4).unwrap();
        let address = buffer.as_ptr().cast();
        // Nothing can be released in a host function.
        stream.launch_host_function(move || drop(buffer)).unwrap();
        stream.synchronize().unwrap();
        drop(Buffer::<u8>::new(device, 1).unwrap());
        assert!(instance.mapping(address).is_err());
        assert_eq!(instance.stats().unwrap().live_count, 0);
    });
}

#[test]
fn every_step_may_fail() {
    if !is_host() {
        println!("only the host backend fails steps");
        return;
    }
    with_device(|instance, device| {
        let unit = unit(device);
        let options = reserving(device, 2).host().flags(BufferFlags::MOVABLE);
        for step in 1..=1000 {
            assert!(step < 1000, "it never succeeds");
            host::fail_step(instance, step, false).unwrap();
            let result = (|| {
                let mut buffer = Buffer::<u32>::with_options(device, unit, &options)?;
                buffer.host_mut()?[0] = 7;
                buffer.resize(3 * unit)?;
                buffer.sleep(Content::PAGEABLE)?;
                buffer.wake()?;
                buffer.set_access(&[(Processor::Device(1), Access::READ)])?;
                buffer.resize(1)?;
                buffer.shrink_to_fit()?;
                assert_eq!(*buffer.host()?, [7]);
                buffer.close()?;
                Ok::<(), Error>(())
            })();
            host::fail_step(instance, 0, false).unwrap();
            drop(Pinned::<u8>::zeroed(device, 1).unwrap());
            assert_eq!(instance.stats().unwrap().live_objects(), 0, "step {step}: {result:?}");
            if result.is_ok() {
                break;
            }
        }
    });
}
