// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Arrays in each kind of memory.

mod common;

use std::mem::MaybeUninit;
use std::os::raw::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{is_host, with_device};
use gpumem::{
    sys, Access, DeviceMemory, ErrorKind, Kind, Location, Memory, MemoryFlags, MemoryOptions, Pinned,
    Processor, Rectangle, Region, RegisterOptions, Registered, Rejected, Status, WriteCombined,
};

#[test]
fn device_memory_keeps_values() {
    with_device(|instance, device| {
        let memory = DeviceMemory::from_slice(device, &[1u32, 2, 3, 4]).unwrap();
        assert_eq!(memory.to_vec().unwrap(), [1, 2, 3, 4]);
        instance.copy(memory.slice(1..=2).unwrap(), &[7, 8]).unwrap();
        assert_eq!(memory.to_vec().unwrap(), [1, 7, 8, 4]);
        let mut part = [0; 2];
        instance.copy(&mut part, memory.slice(2..).unwrap()).unwrap();
        assert_eq!(part, [8, 4]);
        let info = memory.info().unwrap().unwrap();
        assert_eq!((info.kind, info.size), (Kind::DEVICE, 16));
        assert_eq!(
            memory.slice(1..).unwrap().device_address().unwrap(),
            memory.device_address().unwrap() + 4
        );
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_bytes, 16);
    });
}

#[test]
fn parts_outside_are_refused() {
    with_device(|_, device| {
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        assert!(memory.slice(..).is_ok() && memory.slice(4..).unwrap().is_empty());
        let error = memory.slice(2..5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.function(), "DeviceMemory::slice");
        assert_eq!(error.message(), "the part from 2 to 5 does not lie in the 4 elements here");
        assert!(memory.slice(5..).is_err() && memory.slice(..5).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = 3..2;
        assert!(memory.slice(reversed).is_err());
        assert!(memory.slice(..=usize::MAX).is_err());
        assert!(memory.slice((std::ops::Bound::Excluded(usize::MAX), std::ops::Bound::Unbounded)).is_err());
    });
}

#[test]
fn pinned_memory_is_a_slice_and_is_mapped() {
    with_device(|instance, device| {
        let options = MemoryOptions::new().require(MemoryFlags::PORTABLE | MemoryFlags::MAPPED).name("table");
        let mut pinned = Pinned::<f64>::zeroed_with_options(device, 100, &options).unwrap();
        assert!(pinned.iter().all(|value| *value == 0.0));
        pinned[99] = 2.5;
        let info = pinned.info().unwrap().unwrap();
        assert!(info.granted_flags.contains(MemoryFlags::PORTABLE | MemoryFlags::MAPPED));
        assert!(!info.granted_flags.contains(MemoryFlags::WRITE_COMBINED));
        assert_eq!((info.kind, info.size, info.name.as_str()), (Kind::PINNED, 800, "table"));
        let address = pinned.device_address().unwrap();
        assert_ne!(address, 0);
        assert_eq!(device.device_address(pinned.as_ptr().cast()).unwrap(), address);
        // The device can write it in place.
        instance.fill_bytes(&mut pinned, 0).unwrap();
        assert_eq!(pinned[99], 0.0);
    });
}

#[test]
fn uninitialised_memory_becomes_values_when_it_is_written() {
    with_device(|instance, device| {
        let mut pinned = Pinned::<MaybeUninit<u16>>::uninit(device, 3).unwrap();
        let memory = DeviceMemory::from_slice(device, &[1u16, 2, 3]).unwrap();
        instance.copy(&mut pinned, &memory).unwrap();
        // SAFETY: the copy wrote all of it.
        let pinned = unsafe { pinned.assume_init() };
        assert_eq!(*pinned, [1, 2, 3]);
        let mut stack = [MaybeUninit::<u16>::uninit(); 3];
        instance.copy(&mut stack, &memory).unwrap();
        // SAFETY: the copy wrote it.
        assert_eq!(unsafe { stack[2].assume_init() }, 3);
    });
}

#[test]
fn write_combined_memory_is_written() {
    with_device(|instance, device| {
        let mut combined = WriteCombined::<u32>::new(device, 4).unwrap();
        combined.write_all(9);
        combined.write(1, 7).unwrap();
        combined.write_slice(2, &[5, 6]).unwrap();
        assert_eq!(combined.write(4, 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(combined.write_slice(usize::MAX, &[1]).is_err());
        assert!(combined.info().unwrap().unwrap().granted_flags.contains(MemoryFlags::WRITE_COMBINED));
        let mut back = [0; 4];
        instance.copy(&mut back, &combined).unwrap();
        assert_eq!(back, [9, 7, 5, 6]);
    });
}

#[test]
fn write_combined_is_never_hidden_in_a_type_with_reads() {
    with_device(|_, device| {
        for options in [
            MemoryOptions::new().require(MemoryFlags::WRITE_COMBINED),
            MemoryOptions::new().prefer(MemoryFlags::WRITE_COMBINED | MemoryFlags::PAGE_LOCKED),
        ] {
            let error = Pinned::<u8>::zeroed_with_options(device, 10, &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    });
}

#[test]
fn registered_memory_comes_back() {
    with_device(|instance, device| {
        let values: Vec<u32> = (0..10_000).collect();
        let place = values.as_ptr();
        let options = RegisterOptions::new().require(MemoryFlags::MAPPED).name("table");
        let mut registered = Registered::new(device, values, &options).unwrap();
        assert_eq!(instance.kind_stats(Kind::REGISTERED).unwrap().live_bytes, 40_000);
        assert_eq!(registered.info().unwrap().unwrap().name, "table");
        assert_eq!(registered.as_ptr(), place);
        assert_ne!(registered.device_address().unwrap(), 0);
        registered[0] = 77;
        let memory = DeviceMemory::from_slice(device, &registered).unwrap();
        instance.fill(&mut registered, 0u32).unwrap();
        instance.copy(&mut registered, &memory).unwrap();
        let values = registered.into_vec().unwrap();
        assert_eq!((values[0], values[9_999], values.as_ptr()), (77, 9_999, place));
        assert_eq!(instance.kind_stats(Kind::REGISTERED).unwrap().live_count, 0);
    });
}

/// An array whose spare capacity would be cut off is moved by the allocator.
#[test]
fn registration_never_moves_an_array() {
    with_device(|instance, device| {
        let mut values = Vec::<u16>::with_capacity(1 << 20);
        values.extend(0..100);
        let (place, capacity) = (values.as_ptr(), values.capacity());
        let registered = Registered::new(device, values, &RegisterOptions::new()).unwrap();
        assert_eq!(instance.kind_stats(Kind::REGISTERED).unwrap().live_bytes, 200);
        assert_eq!((registered.as_ptr(), registered.len()), (place, 100));
        let values = registered.into_vec().unwrap();
        assert_eq!((values.as_ptr(), values.len(), values.capacity()), (place, 100, capacity));
        // A failure returns it as it was, and dropping the registration frees all of it.
        let refused = RegisterOptions::new().require(MemoryFlags::WRITE_COMBINED);
        let values = Registered::new(device, values, &refused).unwrap_err().given;
        assert_eq!((values.as_ptr(), values.len(), values.capacity()), (place, 100, capacity));
        drop(Registered::new(device, values, &RegisterOptions::new()).unwrap());

        let boxed = vec![5u64; 4].into_boxed_slice();
        let place = boxed.as_ptr();
        let boxed: Box<[u64]> = Registered::new(device, boxed, &refused).unwrap_err().given;
        let registered = Registered::new(device, boxed, &RegisterOptions::new()).unwrap();
        let values = registered.into_vec().unwrap();
        assert_eq!((values.as_ptr(), values.capacity(), &values[..]), (place, 4, &[5; 4][..]));
    });
}

#[test]
fn addresses_are_printed_alike() {
    with_device(|instance, device| {
        let memory = DeviceMemory::<u8>::new(device, 100).unwrap();
        let pinned = Pinned::<u8>::zeroed(device, 100).unwrap();
        let address = memory.device_address().unwrap();
        let info = memory.info().unwrap().unwrap();
        assert!(format!("{info:?}")
            .contains(&format!("host_pointer: 0x0, device_address: {address:#x}, size: 100")));
        let known = instance.pointer_info(address as *const c_void).unwrap();
        assert!(format!("{known:?}")
            .contains(&format!("device_address: {address:#x}, base: {address:#x}, size: 100")));
        let (host, address) = (pinned.as_ptr(), pinned.device_address().unwrap());
        let expected = format!(
            "Pinned {{ len: 100, memory: Some(Memory {{ bytes: 100, host: {host:?}, device: {address:#x} }}) }}"
        );
        assert_eq!(format!("{pinned:?}"), expected);
    });
}

#[test]
fn registration_that_fails_returns_the_array() {
    with_device(|_, device| {
        let options = RegisterOptions::new().require(MemoryFlags::WRITE_COMBINED);
        let rejected = Registered::new(device, vec![1u8, 2, 3], &options).unwrap_err();
        assert_eq!(*rejected.given, [1, 2, 3]);
        assert_eq!(rejected.error.kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn registered_without_mapped_has_no_device_address() {
    with_device(|_, device| {
        let registered = Registered::new(
            device,
            vec![0u8; 4096],
            &RegisterOptions::new().prefer(MemoryFlags::PAGE_LOCKED),
        )
        .unwrap();
        match registered.device_address() {
            Ok(_) => assert!(registered.info().unwrap().unwrap().granted_flags.contains(MemoryFlags::MAPPED)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoAccess),
        }
    });
}

#[test]
fn a_borrowed_array_is_registered_while_a_function_runs() {
    with_device(|instance, device| {
        let mut values = vec![1u32; 5000];
        let registered = device
            .with_registered(&mut values, &RegisterOptions::new(), |values, registration| {
                assert_eq!(registration.info().unwrap().unwrap().kind, Kind::REGISTERED);
                instance.fill(&mut *values, 5u32).unwrap();
                instance.kind_stats(Kind::REGISTERED).unwrap().live_count
            })
            .unwrap();
        assert_eq!((registered, values[4999]), (1, 5));
        assert_eq!(instance.kind_stats(Kind::REGISTERED).unwrap().live_count, 0);
    });
}

#[test]
fn a_panic_ends_the_registration_too() {
    with_device(|instance, device| {
        let mut values = [0u8; 64];
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            device.with_registered(&mut values, &RegisterOptions::new(), |_, _| {
                std::panic::resume_unwind(Box::new(1))
            })
        }));
        let unwound: Result<Result<(), _>, _> = result;
        assert!(unwound.is_err());
        assert_eq!(instance.kind_stats(Kind::REGISTERED).unwrap().live_count, 0);
    });
}

#[test]
fn arrays_without_bytes_never_reach_the_library() {
    with_device(|instance, device| {
        let device_memory = DeviceMemory::<u64>::new(device, 0).unwrap();
        let pinned = Pinned::<u64>::zeroed(device, 0).unwrap();
        let combined = WriteCombined::<u64>::new(device, 0).unwrap();
        let registered = Registered::new(device, Vec::<u64>::new(), &RegisterOptions::new()).unwrap();
        let sizeless = Pinned::<[u32; 0]>::zeroed(device, usize::MAX).unwrap();
        assert_eq!(sizeless.len(), usize::MAX);
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
        assert!(
            device_memory.is_empty() && pinned.is_empty() && combined.is_empty() && registered.is_empty()
        );
        assert!(pinned.memory().is_none() && pinned.info().unwrap().is_none());
        instance.copy(&device_memory, &pinned).unwrap();
        instance.fill_bytes(&device_memory, 1).unwrap();
        assert_eq!(device_memory.to_vec().unwrap(), []);
        assert_eq!(device.with_registered(&mut [0u32; 0], &RegisterOptions::new(), |_, _| 7).unwrap(), 7);
        assert_eq!(registered.into_vec().unwrap().len(), 0);
        pinned.close().unwrap();
    });
}

#[test]
fn sizes_that_overflow_are_refused() {
    with_device(|instance, device| {
        for len in [usize::MAX, usize::MAX / 8 + 1, isize::MAX as usize / 8 + 1] {
            for error in [
                DeviceMemory::<u64>::new(device, len).unwrap_err(),
                Pinned::<u64>::zeroed(device, len).unwrap_err(),
                WriteCombined::<u64>::new(device, len).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.message().contains(&len.to_string()));
            }
        }
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().total_count, 0);
    });
}

#[test]
fn too_much_memory_is_an_error_with_detail() {
    with_device(|instance, device| {
        let error = DeviceMemory::<u8>::new(device, 1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(error.status(), Status::OUT_OF_DEVICE_MEMORY);
        assert_eq!(error.function(), "gpumem_memory_create");
        if !is_host() {
            assert_eq!(error.native_domain(), gpumem::NativeDomain::CUDA);
            assert_eq!(error.native_name(), "CUDA_ERROR_OUT_OF_MEMORY");
            assert_ne!(error.entry_point(), "");
        }
        assert!(error.to_string().contains(error.message()));
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 0);
    });
}

#[test]
fn alignment_is_that_of_the_elements() {
    #[derive(Clone, Copy)]
    #[repr(C, align(4096))]
    struct Page([u8; 4096]);
    // SAFETY: bytes.
    unsafe impl gpumem::Element for Page {}
    with_device(|_, device| {
        let pages = Pinned::<Page>::zeroed(device, 2).unwrap();
        assert_eq!(pages.as_ptr() as usize % 4096, 0);
        assert_eq!(pages[1].0[4095], 0);
    });
}

#[test]
fn rectangles() {
    with_device(|instance, device| {
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        instance.fill(&memory, 0u8).unwrap();
        let fill = Rectangle { width: 4, height: 3, destination_pitch: 16, source_pitch: 0 };
        instance.fill_2d(&memory, &fill, 0x77u8).unwrap();
        let copy = Rectangle { width: 2, height: 3, destination_pitch: 3, source_pitch: 16 };
        let mut back = [1u8; 9];
        instance.copy_2d(&mut back, memory.slice(3..).unwrap(), &copy).unwrap();
        assert_eq!(back, [0x77, 0, 1, 0x77, 0, 1, 0x77, 0, 1]);
        let wide = Rectangle { height: 4, ..copy };
        assert!(instance.copy_2d(&mut back, &memory, &wide).is_err());
        assert!(instance.fill_2d(&memory, &Rectangle { height: 5, ..fill }, 1u8).is_err());
    });
}

#[test]
fn fills_of_each_width() {
    with_device(|instance, device| {
        let bytes = DeviceMemory::<u8>::new(device, 4).unwrap();
        instance.fill(&bytes, 0xa5u8).unwrap();
        assert_eq!(bytes.to_vec().unwrap(), [0xa5; 4]);
        let halves = DeviceMemory::<i16>::new(device, 4).unwrap();
        instance.fill(&halves, -2i16).unwrap();
        assert_eq!(halves.to_vec().unwrap(), [-2; 4]);
        let floats = DeviceMemory::<f32>::new(device, 4).unwrap();
        instance.fill(&floats, 0.5f32).unwrap();
        assert_eq!(floats.to_vec().unwrap(), [0.5; 4]);
    });
}

#[test]
fn a_close_reports_what_is_live() {
    with_device(|instance, device| {
        let pinned = Pinned::<u8>::zeroed(device, 10).unwrap();
        let Rejected { given: again, error, .. } = instance.clone().close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(again.kind_stats(Kind::PINNED).unwrap().live_count, 1);
        pinned.close().unwrap();
    });
}

#[test]
fn regions_of_one_batch() {
    with_device(|instance, device| {
        let memory = DeviceMemory::<u16>::new(device, 24).unwrap();
        instance.fill(&memory, 0u16).unwrap();
        let values: Vec<u16> = (1..=24).collect();
        // A box of 2 by 2 by 2 elements, and a row behind it.
        instance
            .copy_regions([
                Region::new(memory.as_slice(), &values[..], 2)
                    .height(2)
                    .depth(2)
                    .destination_row_pitch(3)
                    .destination_slice_pitch(8)
                    .source_row_pitch(4)
                    .source_slice_pitch(12),
                Region::new(memory.slice(20..).unwrap(), &values[20..], 4),
                Region::new(memory.slice(24..).unwrap(), &values[..0], 0),
                Region::new(memory.slice(24..).unwrap(), &values[..0], 9).height(0),
                Region::new(memory.slice(24..).unwrap(), &values[..0], 9).depth(0),
            ])
            .unwrap();
        let expected = [1, 2, 0, 5, 6, 0, 0, 0, 13, 14, 0, 17, 18, 0, 0, 0, 0, 0, 0, 0, 21, 22, 23, 24];
        assert_eq!(memory.to_vec().unwrap(), expected);
        // Other operands, and none at all.
        let mut back = [0u16; 6];
        let (left, right) = back.split_at_mut(3);
        let regions = [
            Region::new(left, memory.slice(3..).unwrap(), 2),
            Region::new(right, memory.slice(20..).unwrap(), 3),
        ];
        instance.copy_regions(regions).unwrap();
        assert_eq!(back, [5, 6, 0, 21, 22, 23]);
        instance.copy_regions(Vec::<Region<&DeviceMemory<u16>, &[u16]>>::new()).unwrap();
        let mut sizeless = [[0u16; 0]; 2];
        instance.copy_regions([Region::new(&mut sizeless, &[[0u16; 0]; 2], 2)]).unwrap();
    });
}

#[test]
fn a_batch_reports_the_region_that_failed() {
    with_device(|instance, device| {
        let memory = DeviceMemory::<u8>::from_slice(device, &[0; 16]).unwrap();
        let source = [1u8; 16];
        let good = Region::new(memory.as_slice(), &source[..], 4);
        for bad in [
            Region::new(memory.slice(14..).unwrap(), &source[..], 4),
            Region::new(memory.as_slice(), &source[13..], 4),
            good.height(4).destination_row_pitch(5),
            good.height(2).source_row_pitch(3),
            good.height(2).depth(2).source_slice_pitch(7),
            good.height(usize::MAX),
            good.depth(usize::MAX),
            // It lies within its operands, but this pitch is more than can be addressed.
            good.source_row_pitch(usize::MAX),
        ] {
            let error = instance.copy_regions([good, good, bad]).unwrap_err();
            assert_eq!((error.kind(), error.region()), (ErrorKind::InvalidArgument, Some(2)), "{bad:?}");
            assert!(error.to_string().contains("region 2"), "{error}");
        }
        // The library refuses the second; nothing is copied.
        let mut regions = [sys::gpumem_copy_region::default(); 3];
        for (index, region) in regions.iter_mut().enumerate() {
            region.destination.memory = memory.memory().unwrap().handle();
            region.destination.offset = 8 * index as u64;
            region.source.pointer = source.as_ptr() as *mut c_void;
            region.width = 8;
        }
        regions[2].width = 0;
        regions[1].destination.offset = 9;
        // SAFETY: the library checks the range, and refuses it.
        let error = unsafe { instance.copy_regions_raw(&regions) }.unwrap_err();
        assert_eq!((error.kind(), error.region()), (ErrorKind::InvalidArgument, Some(1)));
        assert_eq!(error.function(), "gpumem_copy_regions");
        assert_eq!(memory.to_vec().unwrap(), [0; 16]);
        regions[1].destination.offset = 8;
        // SAFETY: the regions lie within their operands.
        unsafe { instance.copy_regions_raw(&regions) }.unwrap();
        assert_eq!(memory.to_vec().unwrap(), source);
    });
}

#[test]
fn access_of_each_processor() {
    with_device(|instance, device| {
        let memory = DeviceMemory::<u8>::new(device, 100).unwrap();
        let pinned = Pinned::<u8>::zeroed(device, 100).unwrap();
        let there = memory.device_address().unwrap() as *const c_void;
        let access = |pointer: *const c_void, processor| instance.pointer_access(pointer, processor);
        assert_eq!(access(there, Processor::Device(0)).unwrap(), Access::READ_WRITE);
        assert_eq!(access(there, Processor::Device(1)).unwrap(), Access::NONE);
        assert_eq!(access(there, Processor::Cpu).unwrap(), Access::NONE);
        let peer = instance.device(1).unwrap();
        peer.enable_peer_access(device).unwrap();
        assert_eq!(access(there, Processor::Device(1)).unwrap(), Access::READ_WRITE);
        peer.disable_peer_access(device).unwrap();
        for processor in [Processor::Cpu, Processor::Device(0), Processor::Device(1)] {
            assert_eq!(access(pinned.as_ptr().cast(), processor).unwrap(), Access::READ_WRITE);
        }
        for processor in [Processor::Device(2), Processor::Device(u32::MAX)] {
            assert_eq!(access(there, processor).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        assert_eq!(access(std::ptr::null(), Processor::Cpu).unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn pointers_are_known() {
    with_device(|instance, device| {
        let pinned = Pinned::<u8>::zeroed(device, 100).unwrap();
        let info = instance.pointer_info(pinned[99..].as_ptr().cast()).unwrap();
        assert_eq!((info.kind, info.size, info.base), (Kind::PINNED, 100, pinned.as_ptr() as u64));
        assert_eq!(info.device_ordinal, Some(0));
        let memory = DeviceMemory::<u8>::new(device, 1).unwrap();
        let info = instance.pointer_info(memory.device_address().unwrap() as *const c_void).unwrap();
        assert_eq!((info.location, info.location_id), (Location::DEVICE, 0));
        let on_stack = 1u8;
        let pointer: *const u8 = &on_stack;
        assert_eq!(instance.pointer_info(pointer.cast()).unwrap().kind, Kind::PAGEABLE);
        let error = instance.pointer_info(std::ptr::null()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn allocation_by_pointer() {
    with_device(|instance, device| {
        let pointer = device.malloc(Kind::PINNED, 4096).unwrap();
        // SAFETY: the pointers are those of the allocations, and nothing uses them.
        unsafe {
            instance.free(pointer).unwrap();
            assert_eq!(instance.free(pointer).unwrap_err().kind(), ErrorKind::NotFound);
            let mut own = [0u8; 4096];
            let own: *mut c_void = own.as_mut_ptr().cast();
            device.register(own, 4096, MemoryFlags::NONE).unwrap();
            instance.unregister(own).unwrap();
        }
        let memory = Memory::create(device, Kind::PINNED, 1000, &MemoryOptions::new()).unwrap();
        assert_eq!((memory.bytes(), memory.host_pointer().is_null()), (1000, false));
        memory.close().unwrap();
    });
}

#[test]
fn atomics_are_shared_with_the_device() {
    with_device(|_, device| {
        let flags = Pinned::<AtomicU32>::zeroed(device, 4).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| flags[1].store(5, Ordering::Release));
        });
        assert_eq!(flags[1].load(Ordering::Acquire), 5);
    });
}

#[test]
fn names_with_a_zero_byte_are_refused() {
    with_device(|_, device| {
        let options = MemoryOptions::new().name("a\0b");
        assert_eq!(
            DeviceMemory::<u8>::with_options(device, 1, &options).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    });
}
