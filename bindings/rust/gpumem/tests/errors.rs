// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Errors as programs pass them on, and the names in their texts.

mod common;

use std::error::Error as StdError;
use std::mem::MaybeUninit;

use common::{backend, is_host, with_device, with_host};
use gpumem::{
    Access, AddressRange, Advice, Buffer, BufferOptions, DeviceMemory, Error, ErrorKind, Event, EventFlags,
    ExportOptions, Group, GroupOptions, HandleTypes, HostOptions, Hub, HubOptions, Instance, Kind, Link,
    LinkOptions, Managed, Memory, MemoryFlags, MemoryOptions, Physical, PhysicalOptions, Pinned, Pool,
    PoolOptions, Rectangle, Region, RegisterOptions, Registered, Rejected, Status, Stream, StreamOptions,
    WriteCombined,
};

/// An error of the kind that takes every other one, as those of several crates do.
#[derive(Debug)]
struct AnyError(Box<dyn StdError + Send + Sync>);

impl<E: StdError + Send + Sync + 'static> From<E> for AnyError {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

/// Every call that returns what it was given if it fails.
macro_rules! uses_of_every_rejection {
    ($name:ident, $error:ty) => {
        fn $name() -> Result<(), $error> {
            let instance = Instance::open(backend())?;
            let device = instance.device(0)?;
            let (stream, event) = (Stream::new(&device)?, Event::new(&device)?);
            let memory = DeviceMemory::<u8>::new(&device, 4)?;
            let part = memory.as_slice();
            let (_, pinned) = stream.copy(&memory, Pinned::<u8>::zeroed(&device, 4)?)?.wait()?;
            let (_, pinned) = stream.copy(part, std::sync::Arc::new(pinned))?.wait()?;
            stream.copy_from_slice(&memory, &[1, 2, 3, 4])?.wait()?;
            stream.fill(&memory, 7u8)?.wait()?;
            stream.fill_bytes(&memory, 7)?.wait()?;
            let registered = Registered::new(&device, vec![1u8; 4], &RegisterOptions::new())?;
            let regions = [gpumem::Region::new(&memory, registered, 4)];
            let regions = stream.copy_regions(regions)?.wait()?;
            for region in regions {
                region.source.into_vec()?;
            }
            WriteCombined::<u8>::new(&device, 4)?.close()?;
            let managed = Managed::<u8>::zeroed(&device, 4)?.into_uninit();
            for array in stream.discard([managed])?.wait()? {
                array.close()?;
            }
            let unit = Physical::granularity(&device, &PhysicalOptions::new())?.minimum;
            Physical::new(&device, unit)?.close()?;
            AddressRange::reserve(&instance, unit)?.close()?;
            let buffer = Buffer::<u32>::new(&device, 4)?;
            buffer.note_registration("nic")?.close()?;
            buffer.close()?;
            Group::new(&instance)?.close()?;
            Memory::create(&device, Kind::DEVICE, 4, &MemoryOptions::new())?.close()?;
            drop(pinned);
            memory.close()?;
            event.close()?;
            stream.close()?;
            drop(device);
            instance.close()?;
            Ok(())
        }
    };
}
uses_of_every_rejection!(into_own_errors, Error);
uses_of_every_rejection!(into_boxes, Box<dyn StdError>);
uses_of_every_rejection!(into_boxes_for_threads, Box<dyn StdError + Send + Sync>);
uses_of_every_rejection!(into_any_error, AnyError);

#[test]
fn every_failure_can_be_passed_on() {
    into_own_errors().unwrap();
    into_boxes().unwrap();
    into_boxes_for_threads().unwrap();
    into_any_error().unwrap();
}

#[test]
fn a_failure_that_was_passed_on_has_what_was_given() {
    with_device(|_, device| {
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        let stream = Stream::new(device).unwrap();
        let pass_on = || -> Result<(), AnyError> {
            drop(stream.copy(&memory, Pinned::<u8>::zeroed(device, 5)?)?);
            Ok(())
        };
        let error = pass_on().unwrap_err().0;
        assert!(
            error.to_string().starts_with(
                "Stream::copy: the destination has 4 elements and the source 5; pass a slice of"
            ),
            "{error}"
        );
        let rejected = error.downcast::<Rejected<((), Pinned<u8>)>>().unwrap();
        assert_eq!((rejected.given.1.len(), rejected.error.kind()), (5, ErrorKind::InvalidArgument));
    });
}

#[test]
fn refused_operands_name_the_function() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        let large = Rectangle { width: 3, height: 2, destination_pitch: 3, source_pitch: 3 };
        let region = || Region::new(&memory, &memory, 5);
        for (name, error) in [
            ("Instance::copy", instance.copy(&memory, &[0; 5]).unwrap_err()),
            ("Instance::copy_2d", instance.copy_2d(&memory, &memory, &large).unwrap_err()),
            ("Instance::copy_regions", instance.copy_regions([region()]).unwrap_err()),
            ("Instance::fill_2d", instance.fill_2d(&memory, &large, 1u8).unwrap_err()),
            ("Stream::copy_2d", stream.copy_2d(&memory, &memory, &large).unwrap_err().error),
            ("Stream::copy_regions", stream.copy_regions([region()]).unwrap_err().error),
            ("Stream::copy_from_slice", stream.copy_from_slice(&memory, &[0; 5]).unwrap_err().error),
            ("Stream::fill_2d", stream.fill_2d(&memory, &large, 1u8).unwrap_err().error),
        ] {
            assert!(error.to_string().starts_with(&format!("{name}: ")), "{name}: {error}");
        }
    });
}

#[test]
fn failures_name_what_the_program_called() {
    with_device(|instance, device| {
        let other = Instance::open(backend()).unwrap();
        let foreign = Stream::new(&other.device(0).unwrap()).unwrap();
        let pool = Pool::new(device).unwrap();
        let block = pool.alloc::<u8>(4, None).unwrap();
        let nowhere = std::ptr::null();
        for (name, error) in [
            ("PoolBlock::free_on", block.free_on(&foreign).unwrap_err().error),
            ("Pool::alloc", pool.alloc::<u8>(4, Some(&foreign)).unwrap_err()),
            ("Pool::alloc_aligned", pool.alloc_aligned::<u8>(4, 0, Some(&foreign)).unwrap_err()),
            ("Pool::alloc_batch", pool.alloc_batch::<u8>(&[4], Some(&foreign)).unwrap_err()),
            ("Pool::alloc_raw", pool.alloc_raw(4, Some(&foreign)).unwrap_err()),
            ("Pool::try_alloc", pool.try_alloc::<u8>(4, 3, None).unwrap_err()),
            ("Pool::alloc_aligned_raw", pool.alloc_aligned_raw(4, 3, None).unwrap_err()),
            ("Pool::alloc_batch_raw", pool.alloc_batch_raw(&[4], Some(&foreign)).unwrap_err()),
            ("Instance::advise_raw", instance.advise_raw(nowhere, 1, Advice(77), None).unwrap_err()),
            ("Instance::managed_info_raw", instance.managed_info_raw(nowhere, 1).unwrap_err()),
        ] {
            assert!(error.to_string().starts_with(&format!("{name}: ")), "{name}: {error}");
        }
    });
}

#[test]
fn texts_have_the_arguments_of_this_crate() {
    with_device(|instance, device| {
        let pool = Pool::new(device).unwrap();
        let memory = DeviceMemory::<u32>::new(device, 4).unwrap();
        let other = Instance::open(backend()).unwrap();
        let unit = Physical::granularity(device, &PhysicalOptions::new()).unwrap().minimum;
        let foreign = Physical::new(&other.device(0).unwrap(), unit).unwrap();
        let mut range = AddressRange::reserve(instance, 2 * unit).unwrap();
        let hub = |options: &HubOptions| Hub::open(instance, options).unwrap_err();
        let (group, tag) = (Group::new(instance).unwrap(), "t".repeat(100));
        for (text, error) in [
            ("Pool::alloc_batch: lens[1]: ", pool.alloc_batch::<u8>(&[1, 1 << 62], None).unwrap_err()),
            ("Pool::alloc_batch_raw: sizes[1]: ", pool.alloc_batch_raw(&[1, u64::MAX], None).unwrap_err()),
            ("AddressRange::map: blocks[0] ", range.map(0, [&foreign]).unwrap_err()),
            ("AddressRange::map: there are no blocks; pass at least one", range.map(0, []).unwrap_err()),
            (
                "AddressRange::set_access: there are no accesses; pass at least one",
                range.set_access(0, unit, &[]).unwrap_err(),
            ),
            (
                "must be Access::READ, Access::READ_WRITE or Access::NONE",
                instance.export(&memory, &ExportOptions::new().access(Access(77))).unwrap_err(),
            ),
            (
                "Hub::open: the size of the token is 1000, and a token has at most 256 bytes",
                hub(&HubOptions::new().token([7; 1000])),
            ),
            (
                "Link::connect: the size of the token is 1000, ",
                Link::connect(instance, &LinkOptions::new().token([7; 1000])).unwrap_err(),
            ),
            ("is empty; leave it out for the default", hub(&HubOptions::new().path(""))),
            (
                "Buffer::with_options: tag: ",
                Buffer::<u8>::with_options(device, 1, &BufferOptions::new().group(&group).tag(&tag))
                    .unwrap_err(),
            ),
            (
                "Instance::receive_for: ",
                instance.receive_for(std::io::stderr(), std::time::Duration::ZERO).unwrap_err(),
            ),
            // SAFETY: it is refused.
            ("the size of the value is 3; it must be 1, 2 or 4", unsafe {
                instance.fill_raw(memory.device_address().unwrap() as *mut _, 3, (7, 3)).unwrap_err()
            }),
        ] {
            assert!(error.to_string().contains(text), "{text}: {error}");
        }
        let path = format!("@gpumem-rust-words-{}", std::process::id());
        let hub = Hub::open(instance, &HubOptions::new().path(path)).unwrap();
        assert!(hub.withdraw("a").unwrap_err().to_string().starts_with("Hub::withdraw: "));
        assert!(hub.withdraw_version("a", 1).unwrap_err().to_string().starts_with("Hub::withdraw_version: "));
        hub.close().unwrap();
    });
}

#[test]
fn work_that_failed_is_a_failure_of_what_waits_for_it() {
    with_host(HostOptions::new(), |_, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        let [asked, waited, awaited] = [(); 3].map(|()| stream.fill(&memory, 7u8).unwrap());
        gpumem::host::device_lose(device).unwrap();
        let error = asked.is_complete().unwrap_err();
        assert!(error.to_string().starts_with("Pending::is_complete: "), "{error}");
        let error = waited.wait().unwrap_err();
        assert!(error.to_string().starts_with("Pending::wait: "), "{error}");
        let error = now(awaited).unwrap_err();
        assert!(error.to_string().starts_with("Pending::await: "), "{error}");
    });
}

/// What a future is ready with at once.
fn now<F: std::future::Future + Unpin>(mut future: F) -> F::Output {
    struct Nobody;
    impl std::task::Wake for Nobody {
        fn wake(self: std::sync::Arc<Self>) {}
    }
    let waker = std::sync::Arc::new(Nobody).into();
    match std::pin::Pin::new(&mut future).poll(&mut std::task::Context::from_waker(&waker)) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it is not ready"),
    }
}

#[test]
fn texts_have_the_names_of_this_crate() {
    let instance = Instance::open(backend()).unwrap();
    let device = instance.device(0).unwrap();
    let memory = DeviceMemory::<u8>::new(&device, 4096).unwrap();
    let Rejected { given: instance, error, .. } = instance.close().unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("Instance::close: "), "{text}");
    assert!(text.contains("; drop it, or close with Instance::close_by_force: "), "{text}");
    assert_eq!(error.function(), "gpumem_instance_close");

    let error = Memory::create(&device, Kind(77), 1, &MemoryOptions::new()).unwrap_err();
    assert!(error.to_string().starts_with("Memory::create: ") && error.message().contains("Kind"), "{error}");
    let error = Memory::create(&device, Kind::REGISTERED, 1, &MemoryOptions::new()).unwrap_err();
    assert!(error.message().contains("Memory::register"), "{error}");
    let refused = MemoryOptions::new().alignment(3);
    let error = DeviceMemory::<u8>::with_options(&device, 8, &refused).unwrap_err();
    assert_eq!(error.to_string(), "DeviceMemory::with_options: the alignment of 3 is not a power of two");
    assert_eq!(
        format!("{error:?}"),
        "Error { kind: InvalidArgument, status: INVALID_ARGUMENT, function: \"DeviceMemory::with_options\", message: \"the \
         alignment of 3 is not a power of two\" }"
    );
    assert_eq!(error.function(), "gpumem_memory_create");
    let refused = RegisterOptions::new().require(MemoryFlags::WRITE_COMBINED);
    let error = Registered::new(&device, vec![1u8], &refused).unwrap_err();
    assert!(error.to_string().starts_with("Registered::new: "), "{error}");
    if is_host() {
        let peer = instance.device(1).unwrap();
        let error = device.disable_peer_access(&peer).unwrap_err();
        assert!(error.to_string().starts_with("Device::disable_peer_access: "), "{error}");
    }
    let shared = HandleTypes::POSIX_FD;
    for error in [
        Buffer::<u8>::with_options(&device, 1, &BufferOptions::new().host().handle_types(shared))
            .unwrap_err(),
        Physical::with_options(&device, 1, &PhysicalOptions::new().host().handle_types(shared)).unwrap_err(),
    ] {
        assert!(error.message().ends_with("has no handle types; call numa_node in place of host"), "{error}");
    }
    let ordinary = PoolOptions::new().kind(Kind::PAGEABLE);
    let error = Pool::with_options(&device, &ordinary.clone().numa_node(0)).unwrap_err();
    assert!(error.message().starts_with("leave out MemoryFlags::NUMA_NODE"), "{error}");
    let pool = Pool::with_options(&device, &ordinary).unwrap();
    let block = pool.alloc::<u8>(4, None).unwrap();
    // SAFETY: it is refused.
    let error = unsafe { instance.free(block.as_ptr().cast()) }.unwrap_err();
    assert!(error.message().contains("a block of a pool"), "{error}");
    let pinned = Pool::with_options(&device, &ordinary.kind(Kind::PINNED)).unwrap();
    let pinned_block = pinned.alloc::<u8>(4, None).unwrap();
    // SAFETY: as above.
    let error = unsafe { instance.free(pinned_block.as_ptr().cast()) }.unwrap_err();
    assert!(
        error.message().ends_with("is a block of a pool; drop it, or use Pool::free_raw if it is raw"),
        "{error}"
    );
    drop((block, pool, pinned_block, pinned));
    let options = RegisterOptions::new().require(MemoryFlags::READ_ONLY);
    if let Ok(registered) = Registered::new(&device, vec![0u8; 4096], &options) {
        let mut registered = registered;
        let error = instance.fill(&mut registered, 1u8).unwrap_err();
        assert!(!error.to_string().contains("GPUMEM_") && error.message().contains("READ_ONLY"), "{error}");
    }
    for status in Status::all().unwrap() {
        let info = status.info().unwrap();
        assert!(!info.cause.contains("gpumem_") && !info.remedy.contains("gpumem_"), "{info:?}");
        assert!(!info.remedy.contains("estroy the"), "{info:?}");
    }
    assert_eq!(format!("{:?} {:?}", Status::BUSY, Status(-5)), "BUSY Status(-5)");
    for capability in gpumem::Capability::all().unwrap() {
        if let Ok(info) = device.capability(capability, None) {
            assert!(!info.reason.contains("GPUMEM_") && !info.reason.contains("gpumem_"), "{info:?}");
        }
    }
    memory.close().unwrap();
    drop(device);
    instance.close().unwrap();
}

#[test]
fn an_error_names_what_was_called() {
    with_host(HostOptions::new().device_bytes(8 << 20), |instance, device| {
        let large = usize::MAX / 2;
        let (memory, none) = (MemoryOptions::new().alignment(3), MemoryOptions::new());
        let name = "a".repeat(100);
        for (called, error) in [
            ("DeviceMemory::new", DeviceMemory::<u8>::new(device, large).unwrap_err()),
            ("DeviceMemory::with_options", DeviceMemory::<u8>::with_options(device, 1, &memory).unwrap_err()),
            ("DeviceMemory::from_slice", DeviceMemory::from_slice(device, &vec![0u8; 9 << 20]).unwrap_err()),
            ("Pinned::zeroed", Pinned::<u16>::zeroed(device, usize::MAX).unwrap_err()),
            (
                "Pinned::zeroed_with_options",
                Pinned::<u8>::zeroed_with_options(device, 1, &memory).unwrap_err(),
            ),
            ("Pinned::uninit", Pinned::<MaybeUninit<u16>>::uninit(device, usize::MAX).unwrap_err()),
            (
                "Pinned::uninit_with_options",
                Pinned::<MaybeUninit<u8>>::uninit_with_options(device, 1, &memory).unwrap_err(),
            ),
            ("WriteCombined::new", WriteCombined::<u16>::new(device, usize::MAX).unwrap_err()),
            (
                "WriteCombined::with_options",
                WriteCombined::<u8>::with_options(device, 1, &memory).unwrap_err(),
            ),
            ("Managed::zeroed", Managed::<u16>::zeroed(device, usize::MAX).unwrap_err()),
            (
                "Managed::zeroed_with_options",
                Managed::<u8>::zeroed_with_options(device, 1, &memory).unwrap_err(),
            ),
            ("Managed::uninit", Managed::<MaybeUninit<u16>>::uninit(device, usize::MAX).unwrap_err()),
            (
                "Managed::uninit_with_options",
                Managed::<MaybeUninit<u16>>::uninit_with_options(device, usize::MAX, &none).unwrap_err(),
            ),
            ("Buffer::new", Buffer::<u8>::new(device, 9 << 20).unwrap_err()),
            (
                "Buffer::with_options",
                Buffer::<u8>::with_options(device, 9 << 20, &BufferOptions::new()).unwrap_err(),
            ),
            ("Physical::new", Physical::new(device, 1).unwrap_err()),
            (
                "Physical::with_options",
                Physical::with_options(device, 1, &PhysicalOptions::new()).unwrap_err(),
            ),
            (
                "Pool::with_options",
                Pool::with_options(device, &PoolOptions::new().kind(Kind(77))).unwrap_err(),
            ),
            (
                "Stream::with_options",
                Stream::with_options(device, &StreamOptions::new().name(&*name)).unwrap_err(),
            ),
            (
                "Group::with_options",
                Group::with_options(instance, &GroupOptions::new().name(&*name)).unwrap_err(),
            ),
            ("Event::with_options", Event::with_options(device, EventFlags::NONE, Some(&name)).unwrap_err()),
        ] {
            assert!(error.to_string().starts_with(&format!("{called}: ")), "{called}: {error}");
        }
        // Without options only a loss or a lack can make these fail.
        gpumem::host::device_lose(device).unwrap();
        for (called, error) in [
            ("Pinned::from_slice", Pinned::from_slice(device, &[1u8]).unwrap_err()),
            ("Managed::from_slice", Managed::from_slice(device, &[1u8]).unwrap_err()),
            ("Pool::new", Pool::new(device).unwrap_err()),
            ("Stream::new", Stream::new(device).unwrap_err()),
            ("Event::new", Event::new(device).unwrap_err()),
        ] {
            assert!(error.to_string().starts_with(&format!("{called}: ")), "{called}: {error}");
        }
    });
}
