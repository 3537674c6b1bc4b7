// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Physical memory, ranges of addresses, and work that uses them.

mod common;

use std::fs::File;
use std::mem::size_of;
use std::ops::Range;
use std::os::raw::c_void;
use std::os::unix::io::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{is_host, with_device, with_host};
use gpumem::{
    host, Access, AddressRange, Capability, Device, DeviceMemory, ErrorKind, HandleTypes, HostOptions,
    Instance, Kind, Physical, PhysicalFlags, PhysicalOptions, Pinned, Place, Processor, RangeFlags,
    RangeOptions, Region, Rejected, Stream, WaitCondition,
};

const DEVICE: (Processor, Access) = (Processor::Device(0), Access::READ_WRITE);

fn unit(device: &Device) -> u64 {
    Physical::granularity(device, &PhysicalOptions::new()).unwrap().minimum
}

/// A range of `reserved` units, the first `mapped` of which the first device can use.
fn range_of(device: &Device, reserved: u64, mapped: u64) -> AddressRange {
    let unit = unit(device);
    let mut range = AddressRange::reserve(&device.instance(), reserved * unit).unwrap();
    for index in 0..mapped {
        range.map(index * unit, [&Physical::new(device, unit).unwrap()]).unwrap();
    }
    if mapped != 0 {
        range.set_access(0, mapped * unit, &[DEVICE]).unwrap();
    }
    range
}

#[test]
fn physical_memory_is_made_in_units() {
    with_device(|_, device| {
        let found = Physical::granularity(device, &PhysicalOptions::new()).unwrap();
        assert!(found.minimum.is_power_of_two() && found.recommended.is_power_of_two());
        assert_eq!(found.recommended % found.minimum, 0);
        let options = PhysicalOptions::new().name("weights");
        let block = Physical::with_options(device, 2 * found.minimum, &options).unwrap();
        let info = block.info().unwrap();
        assert_eq!((info.size, block.bytes()), (2 * found.minimum, 2 * found.minimum));
        assert_eq!((info.place, info.device_ordinal, info.imported), (Place::device(0), 0, false));
        assert_eq!((info.granularity, info.name.as_str()), (found.minimum, "weights"));
        assert_eq!((info.handle_types, info.granted_flags), (HandleTypes::NONE, PhysicalFlags::NONE));
        assert_eq!(info.native_handle != 0, !is_host());
        let another = Physical::new(device, found.minimum).unwrap();
        assert_ne!(another.info().unwrap().block_id, info.block_id);
        assert!(!block.handle().is_null());
        block.close().unwrap();
        for bytes in [0, found.minimum / 2, found.minimum + 1, u64::MAX] {
            assert_eq!(Physical::new(device, bytes).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let error = Physical::with_options(device, found.minimum, &PhysicalOptions::new().name("a\0b"));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn properties_are_granted_or_refused() {
    with_host(HostOptions::new().compressible(false), |_, device| {
        let (unit, compressible) = (unit(device), PhysicalFlags::COMPRESSIBLE);
        let preferred = PhysicalOptions::new().prefer(compressible);
        let block = Physical::with_options(device, unit, &preferred).unwrap();
        assert_eq!(block.info().unwrap().granted_flags, PhysicalFlags::NONE);
        let required = PhysicalOptions::new().require(compressible);
        let error = Physical::with_options(device, unit, &required).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(Physical::granularity(device, &required).unwrap_err().kind(), ErrorKind::Unsupported);
    });
    with_host(HostOptions::new().vmm_granularity(1 << 16), |_, device| {
        assert_eq!(unit(device), 1 << 16);
        let required = PhysicalOptions::new().require(PhysicalFlags::COMPRESSIBLE);
        let block = Physical::with_options(device, 1 << 16, &required).unwrap();
        assert_eq!(block.info().unwrap().granted_flags, PhysicalFlags::COMPRESSIBLE);
    });
}

#[test]
fn addresses_are_reserved() {
    with_device(|instance, device| {
        let unit = unit(device);
        let options = RangeOptions::new().name("cache").alignment(8 * unit);
        let range = AddressRange::reserve_with_options(instance, 4 * unit, &options).unwrap();
        let info = range.info().unwrap();
        assert_eq!((info.base, info.size, info.name.as_str()), (range.as_ptr(), 4 * unit, "cache"));
        assert_eq!((info.mapped_size, info.mapping_count), (0, 0));
        assert_eq!((range.bytes(), range.as_ptr() as u64 % (8 * unit)), (4 * unit, 0));
        assert!(unit % info.granularity == 0 || info.granularity % unit == 0);
        let other = AddressRange::reserve(instance, unit).unwrap();
        assert_ne!(other.info().unwrap().buffer_id, info.buffer_id);
        let at = instance.pointer_info(range.as_ptr()).unwrap();
        assert_eq!((at.kind, at.buffer.is_null()), (Kind::VIRTUAL, true));

        let at = |address: u64| {
            let options = RangeOptions::new().address(address).flags(RangeFlags::FIXED);
            AddressRange::reserve_with_options(instance, unit, &options)
        };
        let address = range.as_ptr() as u64;
        assert_eq!(at(address).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(at(address + 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(at(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
        range.close().unwrap();
        for bytes in [0, 1, u64::MAX] {
            let error = AddressRange::reserve(instance, bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().starts_with("AddressRange::reserve: "), "{error}");
        }
    });
}

#[test]
fn a_range_is_reserved_at_an_address() {
    with_host(HostOptions::new(), |instance, device| {
        let unit = unit(device);
        // Between two ranges is room for nobody else.
        let whole = AddressRange::reserve(instance, 64 * unit).unwrap();
        let address = whole.as_ptr() as u64 + 32 * unit;
        whole.close().unwrap();
        let options = RangeOptions::new().address(address);
        let there = AddressRange::reserve_with_options(instance, unit, &options.flags(RangeFlags::FIXED));
        match there {
            Ok(there) => assert_eq!(there.as_ptr() as u64, address),
            // Freed addresses stay reserved for a while.
            Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
        }
    });
}

/// The indices of elements from an offset in bytes on.
fn from<T>(offset: u64, len: usize) -> Range<usize> {
    let first = offset as usize / size_of::<T>();
    first..first + len
}

#[test]
fn a_range_grows_in_place() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut range = range_of(device, 1000, 1);
        let values: Vec<u32> = (0..unit as u32 / 4).collect();
        instance.copy(range.slice(..values.len()).unwrap(), &values).unwrap();
        let base = range.as_ptr();
        let blocks = [Physical::new(device, unit).unwrap(), Physical::new(device, 2 * unit).unwrap()];
        range.map(unit, &blocks).unwrap();
        // The mappings keep the memory alive.
        drop(blocks);
        range.set_access(unit, 3 * unit, &[DEVICE]).unwrap();
        let info = range.info().unwrap();
        assert_eq!((range.as_ptr(), info.mapped_size, info.mapping_count), (base, 4 * unit, 3));

        // A fill and a copy across the seams.
        let tail = range.slice(from::<u32>(unit - 8, unit as usize / 2)).unwrap();
        assert_eq!(tail.device_address(), base as u64 + unit - 8);
        assert!(!tail.is_empty() && tail.len() == unit as usize / 2);
        instance.fill(tail, 7u32).unwrap();
        let mut seen = [0u32; 8];
        instance.copy(&mut seen, range.slice(from::<u32>(unit - 16, 8)).unwrap()).unwrap();
        let last = unit as u32 / 4 - 1;
        assert_eq!(seen, [last - 3, last - 2, 7, 7, 7, 7, 7, 7]);
        instance
            .copy_regions([Region::new(
                range.slice(from::<u32>(3 * unit - 4, 2)).unwrap(),
                &[1u32, 2][..],
                2,
            )])
            .unwrap();
        instance.copy(&mut seen[..2], range.slice(from::<u32>(3 * unit - 4, 2)).unwrap()).unwrap();
        assert_eq!(seen[..2], [1, 2]);
        // It is unmapped and released as a whole.
        range.close().unwrap();
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
}

#[test]
fn mappings_are_known() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut range = AddressRange::reserve(instance, 8 * unit).unwrap();
        let block = Physical::new(device, 2 * unit).unwrap();
        let id = block.info().unwrap().block_id;
        // Twice: the two are aliases.
        range.map(unit, [&block, &block]).unwrap();
        let found = range.mapping(4 * unit + 5).unwrap();
        assert_eq!((found.size, found.block_id, found.place), (2 * unit, id, Place::device(0)));
        assert_eq!((found.base, found.range), (range.as_ptr() as u64 + 3 * unit, range.handle()));
        assert!(format!("{found:?}").contains(&format!("base: {:#x}", found.base)));
        for offset in [0, 5 * unit] {
            assert_eq!(range.mapping(offset).unwrap_err().kind(), ErrorKind::InvalidState);
        }
        let error = range.mapping(8 * unit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let pinned = Pinned::<u8>::zeroed(device, 1).unwrap();
        assert_eq!(instance.mapping(pinned.as_ptr().cast()).unwrap_err().kind(), ErrorKind::WrongKind);

        block.close().unwrap();
        let retained = Physical::retain(instance, found.base as *const c_void).unwrap();
        assert_eq!((retained.info().unwrap().block_id, retained.bytes()), (id, 2 * unit));
        let error = Physical::retain(instance, range.as_ptr()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        // What was written through one is read through the other.
        range.set_access(unit, 4 * unit, &[DEVICE]).unwrap();
        instance.copy(range.slice(from::<u64>(unit, 2)).unwrap(), &[5u64, 6]).unwrap();
        let mut seen = [0u64; 2];
        instance.copy(&mut seen, range.slice(from::<u64>(3 * unit, 2)).unwrap()).unwrap();
        assert_eq!(seen, [5, 6]);
        // The handle lives on without its mappings.
        range.close().unwrap();
        assert_eq!(retained.info().unwrap().block_id, id);
    });
}

#[test]
fn illegal_steps_change_nothing() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut range = range_of(device, 4, 2);
        let block = Physical::new(device, unit).unwrap();
        let kind = |result: Result<(), gpumem::Error>| result.unwrap_err().kind();
        assert_eq!(kind(range.map(unit, [&block])), ErrorKind::AlreadyExists);
        assert_eq!(kind(range.map(2 * unit + 1, [&block])), ErrorKind::InvalidArgument);
        assert_eq!(kind(range.map(4 * unit, [&block])), ErrorKind::InvalidArgument);
        assert_eq!(kind(range.map(2 * unit, [&block, &block, &block])), ErrorKind::InvalidArgument);
        assert_eq!(kind(range.map(2 * unit, [])), ErrorKind::InvalidArgument);
        assert_eq!(kind(range.unmap(0, unit / 2)), ErrorKind::InvalidArgument);
        assert_eq!(kind(range.unmap(0, 0)), ErrorKind::InvalidArgument);
        assert_eq!(kind(range.unmap(unit, 2 * unit)), ErrorKind::InvalidState);
        assert_eq!(kind(range.unmap(unit, u64::MAX)), ErrorKind::InvalidArgument);
        assert_eq!(kind(range.set_access(2 * unit, unit, &[DEVICE])), ErrorKind::InvalidState);
        assert_eq!(kind(range.set_access(0, unit, &[])), ErrorKind::InvalidArgument);
        assert_eq!(kind(range.set_access(0, unit, &[DEVICE, DEVICE])), ErrorKind::InvalidArgument);
        let nobody = (Processor::Device(99), Access::READ);
        assert_eq!(kind(range.set_access(0, unit, &[nobody])), ErrorKind::InvalidArgument);
        let cpu = (Processor::Cpu, Access::READ_WRITE);
        assert_eq!(kind(range.set_access(0, unit, &[cpu])), ErrorKind::Unsupported);
        let foreign = Instance::open(common::backend()).unwrap().device(0).unwrap();
        let foreign = Physical::new(&foreign, unit).unwrap();
        assert!(matches!(kind(range.map(2 * unit, [&foreign])), ErrorKind::InvalidArgument));
        assert_eq!(range.info().unwrap().mapping_count, 2);

        // Nothing is mapped there, or nobody has access.
        let mut seen = [0u8; 4];
        let error = instance.copy(&mut seen, range.slice(from::<u8>(2 * unit - 2, 4)).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        range.map(2 * unit, [&block]).unwrap();
        let error = instance.copy(&mut seen, range.slice(from::<u8>(2 * unit - 2, 4)).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAccess);
    });
}

#[test]
fn access_is_set_for_each_processor() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut range = range_of(device, 4, 2);
        let second = (range.as_ptr() as u64 + unit) as *const c_void;
        let access = |processor| instance.pointer_access(second, processor).unwrap();
        assert_eq!(access(Processor::Device(0)), Access::READ_WRITE);
        assert_eq!((access(Processor::Device(1)), access(Processor::Cpu)), (Access::NONE, Access::NONE));
        let both = [(Processor::Device(0), Access::READ), (Processor::Device(1), Access::READ_WRITE)];
        range.set_access(unit, unit, &both).unwrap();
        assert_eq!(access(Processor::Device(0)), Access::READ);
        assert_eq!(access(Processor::Device(1)), Access::READ_WRITE);
        let first = instance.pointer_access(range.as_ptr(), Processor::Device(0)).unwrap();
        assert_eq!(first, Access::READ_WRITE);
        let stream = Stream::new(device).unwrap();
        let part = range.slice(from::<u32>(unit, 4)).unwrap();
        assert_eq!(stream.fill(part, 1u32).unwrap_err().error.kind(), ErrorKind::NoAccess);
        let peer = Stream::new(&instance.device(1).unwrap()).unwrap();
        peer.fill(part, 1u32).unwrap().wait().unwrap();
        // A mapping of the same memory begins without access.
        range.unmap(unit, unit).unwrap();
        range.map(unit, [&Physical::new(device, unit).unwrap()]).unwrap();
        assert_eq!(
            (access(Processor::Device(0)), access(Processor::Device(1))),
            (Access::NONE, Access::NONE)
        );
    });
}

#[test]
fn memory_of_the_host_is_mapped_too() {
    with_device(|instance, device| {
        if !device.capability(Capability::VMM_HOST, None).unwrap().is_supported() {
            println!("no physical memory of the host here");
            return;
        }
        let options = PhysicalOptions::new().host();
        let unit = Physical::granularity(device, &options).unwrap().minimum.max(unit(device));
        let block = Physical::with_options(device, unit, &options).unwrap();
        assert_eq!(block.info().unwrap().place, Place::HOST);
        let mut range = AddressRange::reserve(instance, 2 * unit).unwrap();
        range.map(0, [&Physical::new(device, unit).unwrap(), &block]).unwrap();
        range.set_access(0, 2 * unit, &[DEVICE]).unwrap();
        range.set_access(unit, unit, &[(Processor::Cpu, Access::READ_WRITE)]).unwrap();
        instance.fill(range.slice(from::<u32>(unit - 4, 2)).unwrap(), 0x0102_0304u32).unwrap();
        let word = (range.as_ptr() as u64 + unit) as *mut u32;
        // SAFETY: the CPU has access to the second block, and nothing else uses it now.
        unsafe {
            assert_eq!(word.read(), 0x0102_0304);
            word.write(9);
        }
        let mut seen = [0u32; 2];
        instance.copy(&mut seen, range.slice(from::<u32>(unit - 4, 2)).unwrap()).unwrap();
        assert_eq!(seen, [0x0102_0304, 9]);
        let nodes = PhysicalOptions::new().numa_node(0);
        if device.capability(Capability::VMM_HOST_NUMA, None).unwrap().is_supported() {
            let block = Physical::with_options(device, unit, &nodes).unwrap();
            assert_eq!(block.info().unwrap().place, Place::numa_node(0));
        }
        let shared = PhysicalOptions::new().host().handle_types(HandleTypes::POSIX_FD);
        let error = Physical::with_options(device, unit, &shared).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn memory_is_shared_by_descriptor() {
    with_device(|instance, device| {
        let unit = unit(device);
        let plain = Physical::new(device, unit).unwrap();
        assert_eq!(plain.export_fd().unwrap_err().kind(), ErrorKind::Unsupported);
        let options = PhysicalOptions::new().handle_types(HandleTypes::POSIX_FD);
        let block = Physical::with_options(device, unit, &options).unwrap();
        assert_eq!(block.info().unwrap().handle_types, HandleTypes::POSIX_FD);
        let mut range = AddressRange::reserve(instance, 2 * unit).unwrap();
        range.map(0, [&block]).unwrap();
        range.set_access(0, unit, &[DEVICE]).unwrap();
        instance.copy(range.slice(..2).unwrap(), &[3u8, 4]).unwrap();

        let descriptor = block.export_fd().unwrap();
        drop(block);
        // The descriptor stays the caller's, borrowed or not.
        let imported = Physical::import_fd(device, unit, &options, descriptor.as_fd()).unwrap();
        let again = Physical::import_fd(device, unit, &options, &descriptor).unwrap();
        drop(descriptor);
        let info = imported.info().unwrap();
        assert!(info.imported && info.size == unit && imported.bytes() == unit);
        assert_eq!(again.info().unwrap().size, unit);
        range.map(unit, [&imported]).unwrap();
        range.set_access(unit, unit, &[DEVICE]).unwrap();
        let mut seen = [0u8; 2];
        instance.copy(&mut seen, range.slice(from::<u8>(unit, 2)).unwrap()).unwrap();
        assert_eq!(seen, [3, 4]);

        let other = File::open("/dev/null").unwrap();
        let error = Physical::import_fd(device, unit, &options, &other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().starts_with("Physical::import_fd: "), "{error}");
    });
}

#[test]
fn parts_are_checked() {
    with_device(|_, device| {
        let range = range_of(device, 2, 0);
        let kind = |result: Result<_, gpumem::Error>| result.map(|_: usize| ()).unwrap_err().kind();
        let bytes = range.bytes() as usize;
        let elements = |from, to| range.slice::<u64>(from..to).map(|part| part.len());
        assert_eq!(elements(0, bytes / 8).unwrap(), bytes / 8);
        assert_eq!(elements(bytes / 8, bytes / 8).unwrap(), 0);
        assert_eq!(range.slice::<u64>(..).unwrap().len(), bytes / 8);
        // Bytes at the end that are no whole element do not count.
        assert_eq!(range.slice::<[u8; 1000]>(..).unwrap().len(), bytes / 1000);
        for (from, to) in [
            (1, bytes / 8 + 1),
            (bytes / 8 + 1, bytes / 8 + 1),
            (2, 1),
            (usize::MAX / 8, usize::MAX),
            (0, usize::MAX),
        ] {
            assert_eq!(kind(elements(from, to)), ErrorKind::InvalidArgument, "{from} {to}");
        }
        assert_eq!(range.slice::<[u32; 0]>(..).unwrap().len(), usize::MAX);
        assert_eq!(
            format!("{range:?}"),
            format!("AddressRange {{ base: {:?}, bytes: {bytes} }}", range.as_ptr())
        );
    });
}

#[test]
fn what_a_stream_uses_is_not_unmapped() {
    with_device(|instance, device| {
        let unit = unit(device);
        let mut range = range_of(device, 4, 3);
        let stream = Stream::new(device).unwrap();
        let gate = Pinned::<AtomicU32>::zeroed(device, 1).unwrap();
        stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
        drop(stream.fill(range.slice(from::<u32>(unit, 4)).unwrap(), 7u32).unwrap());
        let none = stream.fill(range.slice(..0).unwrap(), 7u32).unwrap();
        none.wait().unwrap();
        assert_eq!(range.unmap(unit, unit).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(range.unmap(0, 3 * unit).unwrap_err().kind(), ErrorKind::Busy);
        let take = [(Processor::Device(0), Access::NONE)];
        assert_eq!(range.set_access(0, 2 * unit, &take).unwrap_err().kind(), ErrorKind::Busy);
        // Access is added, and other parts change.
        range.set_access(unit, unit, &[(Processor::Device(1), Access::READ_WRITE)]).unwrap();
        range.set_access(0, unit, &take).unwrap();
        range.map(3 * unit, [&Physical::new(device, unit).unwrap()]).unwrap();
        range.unmap(2 * unit, 2 * unit).unwrap();
        let Rejected { given: range, error, .. } = range.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(range.info().unwrap().mapping_count, 2);

        // A dropped range is unmapped when the work is done.
        let address = (range.as_ptr() as u64 + unit) as *const c_void;
        drop(range);
        assert!(instance.mapping(address).is_ok());
        gate[0].store(1, Ordering::Release);
        stream.synchronize().unwrap();
        assert!(instance.mapping(address).is_err());
    });
}

#[test]
fn a_stream_copies_between_ranges() {
    with_device(|_, device| {
        let unit = unit(device);
        let mut range = range_of(device, 2, 2);
        let stream = Stream::new(device).unwrap();
        let sent = Pinned::from_slice(device, &[1u32, 2, 3]).unwrap();
        let (_, sent) =
            stream.copy(range.slice(from::<u32>(unit - 4, 3)).unwrap(), sent).unwrap().wait().unwrap();
        let memory = DeviceMemory::<u32>::new(device, 3).unwrap();
        stream.copy(&memory, range.slice(from::<u32>(unit - 4, 3)).unwrap()).unwrap().wait().unwrap();
        assert_eq!(memory.to_vec().unwrap(), *sent);
        range.unmap(0, 2 * unit).unwrap();
    });
}

#[test]
fn after_a_lost_device_everything_is_released() {
    with_host(HostOptions::new(), |instance, device| {
        let stream = Stream::new(device).unwrap();
        let gate = Pinned::<AtomicU32>::zeroed(device, 1).unwrap();
        stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
        let block = Physical::new(device, unit(device)).unwrap();
        let mut range = range_of(device, 4, 2);
        drop(stream.fill(range.slice(..4).unwrap(), 7u32).unwrap());
        host::device_lose(device).unwrap();
        assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::DeviceLost);
        assert_eq!(range.map(2 * block.bytes(), [&block]).unwrap_err().kind(), ErrorKind::DeviceLost);
        assert_eq!(block.info().unwrap().device_ordinal, 0);
        range.unmap(0, block.bytes()).unwrap();
        drop((range, block, gate, stream));
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
}

#[test]
fn a_drop_that_fails_is_tried_again() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let range = range_of(device, 4, 2);
        let block = Physical::new(device, unit(device)).unwrap();
        let address = range.as_ptr();
        // Nothing can be released in a host function.
        stream.launch_host_function(move || drop((range, block))).unwrap();
        stream.synchronize().unwrap();
        drop(DeviceMemory::<u8>::new(device, 1).unwrap());
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
        for step in 1..=1000 {
            assert!(step < 1000, "it never succeeds");
            host::fail_step(instance, step, false).unwrap();
            let result = (|| {
                let options = PhysicalOptions::new().handle_types(HandleTypes::POSIX_FD);
                let blocks = [Physical::with_options(device, unit, &options)?, Physical::new(device, unit)?];
                let imported = Physical::import_fd(device, unit, &options, blocks[0].export_fd()?)?;
                let mut range = AddressRange::reserve(instance, 4 * unit)?;
                range.map(0, &blocks)?;
                range.map(2 * unit, [&imported])?;
                range.set_access(0, 3 * unit, &[DEVICE, (Processor::Device(1), Access::READ)])?;
                instance.fill(range.slice(..3 * unit as usize)?, 7u8)?;
                drop(Physical::retain(instance, range.as_ptr())?);
                range.unmap(0, unit)?;
                Ok::<(), gpumem::Error>(())
            })();
            host::fail_step(instance, 0, false).unwrap();
            // Tries again what could not be released.
            drop(DeviceMemory::<u8>::new(device, 1).unwrap());
            assert_eq!(instance.stats().unwrap().live_objects(), 0, "step {step}");
            if result.is_ok() {
                assert!(step > 5);
                break;
            }
        }
    });
}
