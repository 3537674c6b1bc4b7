// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Closing, errors, lost devices, forks and exits.

mod common;

use std::mem;
use std::process::Command;
use std::sync::mpsc;
use std::sync::Arc;

use common::{backend, is_host, with_device};
use gpumem::{
    host, probe, AnswerType, Backend, Buffer, BufferOptions, Capability, CudaOptions, Device, DeviceMemory,
    ErrorKind, Event, Feature, HostOptions, Instance, InstanceOptions, Kind, Managed, MemoryOptions, Pinned,
    Pool, PoolOptions, Region, RegisterOptions, Registered, Rejected, Status, Stream, Version, WriteCombined,
};

extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

#[test]
fn objects_may_outlive_their_instance() {
    let instance = Instance::open(backend()).unwrap();
    let device = instance.device(0).unwrap();
    let mut pinned = Pinned::<u8>::zeroed(&device, 4096).unwrap();
    let memory = DeviceMemory::<u8>::new(&device, 4096).unwrap();
    drop(instance);
    drop(device);
    // The last of them keeps it open.
    pinned[4095] = 7;
    assert_eq!(memory.info().unwrap().unwrap().size, 4096);
    drop(memory);
    assert_eq!(pinned[4095], 7);
}

#[test]
fn the_default_instance_is_never_closed() {
    let first = Instance::default_instance().unwrap();
    let second = Instance::default_instance().unwrap();
    let (device, same) = (first.device(0).unwrap(), second.device(0).unwrap());
    assert_eq!(format!("{device:?}"), format!("{same:?}"));
    let Rejected { given: first, error, .. } = first.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    drop(first);
    assert!(second.info().is_ok());
}

#[test]
fn options_are_honoured_or_refused() {
    let options = InstanceOptions::new()
        .backend(Backend::HOST)
        .name("small")
        .pin_budget(1 << 20)
        .host(HostOptions::new().device_count(3).device_bytes(4 << 20).peers("0>1").masked("register"));
    let instance = Instance::open(options).unwrap();
    let info = instance.info().unwrap();
    assert_eq!((info.name.as_str(), info.device_count, info.pin_budget), ("small", 3, 1 << 20));
    let ordinals: Vec<u32> = instance.devices().unwrap().iter().map(Device::ordinal).collect();
    assert_eq!(ordinals, [0, 1, 2]);
    let device = instance.device(0).unwrap();
    assert_eq!(device.memory().unwrap().total, 4 << 20);
    assert!(device.can_access_peer(&instance.device(1).unwrap()).unwrap());
    assert!(!device.can_access_peer(&instance.device(2).unwrap()).unwrap());
    assert!(Registered::new(&device, vec![0u8; 10], &RegisterOptions::new()).is_err());
    assert_eq!(Pinned::<u8>::zeroed(&device, (1 << 20) + 1).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(instance.device(3).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let bad = InstanceOptions::from(Backend::HOST).host(HostOptions::new().device_count(65));
    assert_eq!(Instance::open(bad).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(Instance::open(Backend(77)).unwrap_err().status(), Status::INVALID_ARGUMENT);
    let text = InstanceOptions::from(Backend::HOST).name("a\0b");
    let error = Instance::open(text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        error.to_string(),
        r#"InstanceOptions::name: the text "a\0b" contains a 0 byte; leave it out"#
    );
}

#[test]
fn a_fallback_has_a_reason() {
    let probed = probe(Backend::ANY).unwrap();
    let instance = Instance::open(Backend::ANY).unwrap();
    let info = instance.info().unwrap();
    assert_eq!((info.backend, &info.fallback), (probed.backend, &probed.fallback));
    match info.fallback {
        None => assert_eq!(info.backend, Backend::CUDA),
        Some(fallback) => {
            assert_eq!(info.backend, Backend::HOST);
            assert_eq!(fallback.status, probe(Backend::CUDA).unwrap_err().status());
            assert!(!fallback.reason.is_empty());
        }
    }
    // A named backend never falls back.
    assert_eq!(probe(backend()).unwrap().fallback, None);
    assert_eq!(Instance::open(backend()).unwrap().info().unwrap().fallback, None);
}

#[test]
fn options_of_the_other_backend_are_ignored() {
    // SAFETY: the host backend does not use them.
    let contexts = unsafe { CudaOptions::new().contexts(&[std::ptr::null_mut(); 65]) };
    let options = InstanceOptions::from(Backend::HOST);
    Instance::open(options.cuda(contexts.clone())).unwrap();
    if !is_host() {
        let options = InstanceOptions::from(Backend::CUDA);
        // The host options are ignored, and so are cuda options without contexts.
        let bad = HostOptions::new().device_count(65);
        Instance::open(options.clone().host(bad).cuda(CudaOptions::new())).unwrap();
        let error = Instance::open(options.cuda(contexts)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn information_about_devices() {
    with_device(|instance, device| {
        assert_eq!(probe(backend()).unwrap().device_count, 2);
        let info = device.info().unwrap();
        assert_eq!((info.ordinal, info.lost), (0, false));
        assert_eq!(info.total_bytes, device.memory().unwrap().total);
        let bytes = device.capability(Capability::DEVICE_BYTES, None).unwrap();
        assert_eq!((bytes.answer_type, bytes.value), (AnswerType::BYTES, info.total_bytes));
        assert!(bytes.is_supported() && !bytes.is_emulated());
        let pinned = device.capability(Capability::PIN_MAP_HOST, None).unwrap();
        assert_eq!((pinned.answer_type, pinned.is_supported()), (AnswerType::TRI, true));
        let cpu = device.capability(Capability::DEVICE_CPU_ACCESS, None).unwrap();
        assert_eq!((cpu.is_supported(), cpu.status), (false, Status::UNSUPPORTED));
        // Write-combining has no effect on the CPU's own memory.
        let combined = device.capability(Capability::PIN_WRITE_COMBINED, None).unwrap();
        assert_eq!((combined.is_supported(), combined.is_emulated()), (true, is_host()));
        let peer = instance.device(1).unwrap();
        assert!(device.capability(Capability::PEER_ACCESS, Some(&peer)).unwrap().is_supported());
        assert!(device.capability(Capability::PEER_ACCESS, None).is_err());
        device.enable_peer_access(&peer).unwrap();
        device.disable_peer_access(&peer).unwrap();
        assert_eq!(device.disable_peer_access(&peer).unwrap_err().kind(), ErrorKind::InvalidState);
        let all = Capability::all().unwrap();
        assert!(all.contains(&Capability::UVA) && all.len() >= 23);
        for capability in all.iter().filter(|capability| capability.0 < 60) {
            let answer = device.capability(*capability, None).unwrap();
            assert_ne!(answer.name, "");
        }
    });
}

#[test]
fn versions_features_and_statuses() {
    assert_eq!(Version::of_library().unwrap().to_string(), Version::text_of_library().unwrap());
    assert_eq!(Version::OF_CRATE.to_string(), env!("CARGO_PKG_VERSION"));
    assert!(Feature::BACKEND_HOST.is_supported().unwrap());
    assert!(!Feature(12345).is_supported().unwrap());
    let all = Status::all().unwrap();
    assert!(all.len() >= 26);
    for status in all {
        let info = status.info().unwrap();
        assert_eq!(info.name, status.name());
        assert_eq!(status.library_name().unwrap(), status.name());
        assert!(!info.cause.is_empty() && !info.remedy.is_empty());
        assert_eq!(info.status, status);
    }
    assert_eq!(Status(-12345).library_name().unwrap(), Status(-12345).name());
    assert_eq!(Status(-12345).info().unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn counters_and_reports() {
    with_device(|instance, device| {
        assert_eq!(instance.report().unwrap().trim(), "nothing lives");
        let memory =
            DeviceMemory::<u8>::with_options(device, 1000, &MemoryOptions::new().name("accounts")).unwrap();
        assert!(instance.report().unwrap().contains("accounts"));
        assert!(instance.snapshot().unwrap().contains("\"name\":\"accounts\""));
        let (stream, event) = (Stream::new(device).unwrap(), Event::new(device).unwrap());
        let stats = instance.stats().unwrap();
        assert_eq!((stats.live_count, stats.live_bytes, stats.streams, stats.events), (1, 1000, 1, 1));
        assert_eq!(stats.live_objects(), 3);
        drop((stream, event));
        let error = instance.kind_stats(Kind::PAGEABLE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        drop(memory);
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().peak_bytes, 1000);
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().total_bytes, 1000);
        assert_eq!(instance.stats().unwrap().peak_bytes, 1000);
        instance.reset_peaks().unwrap();
        assert_eq!(instance.stats().unwrap().peak_bytes, 0);
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().peak_bytes, 0);
    });
}

#[test]
fn after_a_lost_device_the_memory_of_the_library_is_freed() {
    if !is_host() {
        return with_device(|instance, device| {
            assert_eq!(host::device_lose(device).unwrap_err().kind(), ErrorKind::Unsupported);
            assert_eq!(host::fail_step(instance, 1, false).unwrap_err().kind(), ErrorKind::Unsupported);
        });
    }
    let instance = Instance::open(backend()).unwrap();
    let device = instance.device(0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let memory = DeviceMemory::<u8>::new(&device, 64).unwrap();
    let gate = Pinned::<std::sync::atomic::AtomicU32>::zeroed(&device, 1).unwrap();
    stream.wait_value(&gate, 0, gpumem::WaitCondition::EQ, 1).unwrap();
    let pending = stream.copy(Pinned::<u8>::zeroed(&device, 64).unwrap(), &memory).unwrap();
    let (sender, receiver) = mpsc::channel::<()>();
    stream.launch_host_function(move || sender.send(()).unwrap()).unwrap();
    host::device_lose(&device).unwrap();
    let rejected = pending.wait().unwrap_err();
    assert_eq!(rejected.error.kind(), ErrorKind::DeviceLost);
    // The function will not run, and its captures are dropped.
    assert!(receiver.recv().is_err());
    drop(rejected);
    drop((gate, memory));
    assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 0);
    assert_eq!(instance.kind_stats(Kind::PINNED).unwrap().live_count, 0);
    stream.close().unwrap();
    drop(device);
    instance.close().unwrap();
}

#[test]
fn every_step_may_fail() {
    if !is_host() {
        return;
    }
    with_device(|instance, device| {
        for step in 1.. {
            host::fail_step(instance, step, false).unwrap();
            let result = (|| {
                let stream = Stream::new(device)?;
                let memory = DeviceMemory::<u8>::new(device, 64)?;
                let registered = Registered::new(device, vec![1u8; 64], &RegisterOptions::new())?;
                let (_, registered) = stream.copy(&memory, registered)?.wait()?;
                stream.copy(Pinned::<u8>::zeroed(device, 64)?, &memory)?.wait()?;
                let part = |len| {
                    Ok::<_, gpumem::Error>(Region::new(Pinned::<u8>::zeroed(device, len)?, &memory, len))
                };
                stream.copy_regions([part(64)?, part(32)?])?.wait()?;
                instance.copy_regions([Region::new(&memory, &*registered, 64)])?;
                stream.launch_host_function(|| {})?;
                Event::new(device)?.record(&stream)?;
                drop(registered);
                Ok::<(), gpumem::Error>(())
            })();
            host::fail_step(instance, 0, false).unwrap();
            assert_eq!(instance.stats().unwrap().live_objects(), 0, "step {step}");
            if result.is_ok() {
                assert!(step > 4);
                break;
            }
        }
    });
}

#[test]
fn memory_of_other_code() {
    if !is_host() {
        return;
    }
    with_device(|instance, device| {
        let pointer = host::foreign_alloc(device, Kind::DEVICE, 4096).unwrap();
        assert_eq!(instance.pointer_info(pointer).unwrap().kind, Kind::FOREIGN);
        // SAFETY: allocated just now, and not used.
        unsafe { host::foreign_free(device, pointer) }.unwrap();
        let peer = instance.device(1).unwrap();
        host::foreign_peer_access(device, &peer, true).unwrap();
        host::foreign_peer_access(device, &peer, false).unwrap();
        assert_eq!(host::set_current_device(Some(1)).unwrap(), None);
        assert_eq!(host::set_current_device(None).unwrap(), Some(1));
        assert!(host::set_current_device(Some(u32::MAX)).is_err());
    });
}

#[test]
fn kernels_reach_memory_through_views() {
    if !is_host() {
        return;
    }
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let numbers = Arc::new(DeviceMemory::from_slice(device, &[1u32, 2, 3]).unwrap());
        let shared = numbers.clone();
        host::launch(&stream, move |kernel| {
            let address = shared.device_address().unwrap();
            // SAFETY: the kernel holds the memory, and nothing else uses it now.
            unsafe {
                assert!(kernel.view::<u32>(address, 0).unwrap().is_empty());
                assert_eq!(
                    kernel.view::<u32>(address + 1, 1).unwrap_err().kind(),
                    ErrorKind::InvalidArgument
                );
                kernel.view_mut::<u32>(address, shared.len()).unwrap()[2] = 9;
            }
        })
        .unwrap();
        host::launch(&stream, |_| std::panic::resume_unwind(Box::new("on purpose"))).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(stream.panicked_functions(), 1);
        assert_eq!(numbers.to_vec().unwrap(), [1, 2, 9]);
        drop(numbers);
        // The kernel's share could not be freed there; the next allocation tries again.
        drop(DeviceMemory::<u8>::new(device, 1).unwrap());
    });
}

#[test]
fn a_captured_stream_leaves_its_memory_alone() {
    if !is_host() {
        return;
    }
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        drop(stream.fill(&DeviceMemory::<u8>::new(device, 64).unwrap(), 1u8).unwrap());
        host::stream_set_capturing(&stream, true).unwrap();
        assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::InvalidState);
        let Rejected { given: stream, error, .. } = stream.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        let region = Region::new(&memory, Arc::new(Pinned::<u8>::zeroed(device, 64).unwrap()), 64);
        drop(stream.copy_regions([region]).unwrap()); // a node, which nobody launches
        let refused = stream.launch_host_function(|| panic!("it ran")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidState);
        assert!(refused.to_string().contains("at each launch"), "{refused}");
        drop(memory);
        // The memory of the fill and of the batch.
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 2);
        host::stream_set_capturing(&stream, false).unwrap();
        stream.close().unwrap();
    });
}

/// Runs code in a forked child. True if it returned true there.
fn in_child(code: impl FnOnce() -> bool) -> bool {
    let mut status = -1;
    // SAFETY: the child only runs the code and ends.
    unsafe {
        let child = fork();
        if child == 0 {
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(code));
            _exit(i32::from(!matches!(good, Ok(true))));
        }
        assert!(child > 0);
        assert_eq!(waitpid(child, &mut status, 0), child);
    }
    status == 0
}

#[test]
fn a_forked_child_cannot_use_what_its_parent_has() {
    with_device(|instance, device| {
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        let stream = Stream::new(device).unwrap();
        let registered = Registered::new(device, vec![5u8; 64], &RegisterOptions::new()).unwrap();
        assert!(in_child(|| {
            let forked = [
                instance.info().unwrap_err().kind(),
                memory.to_vec().unwrap_err().kind(),
                stream.synchronize().unwrap_err().kind(),
                Event::new(device).unwrap_err().kind(),
            ];
            // Registered memory exists in the child, like ordinary memory.
            let own = Instance::open(Backend::HOST).unwrap().device(0).unwrap();
            forked == [ErrorKind::Forked; 4]
                && registered[63] == 5
                && DeviceMemory::<u8>::new(&own, 1).is_ok()
        }));
        let (first, second) = (DeviceMemory::<u8>::new(device, 1).unwrap(), Stream::new(device).unwrap());
        // Dropping them in the child changes nothing in the parent, and does not crash.
        assert!(in_child(move || {
            drop((first, second));
            true
        }));
        memory.to_vec().unwrap();
        // The closure owns them, so they are dropped in the parent too.
    });
}

/// What borrows memory for the CPU says that it is gone, instead of touching it.
#[test]
fn a_forked_child_cannot_borrow_what_its_parent_has() {
    with_device(|instance, device| {
        let pools = [Kind::PINNED, Kind::PAGEABLE]
            .map(|kind| Pool::with_options(device, &PoolOptions::new().kind(kind)).unwrap());
        let stream = Stream::new(device).unwrap();
        let mut blocks = Vec::new();
        for pool in &pools {
            blocks.push(pool.alloc::<u32>(64, None).unwrap());
            blocks.push(pool.alloc::<u32>(64, Some(&stream)).unwrap());
        }
        let mut used = pools[0].alloc::<u32>(64, None).unwrap();
        let memory = DeviceMemory::<u32>::new(device, 64).unwrap();
        drop(stream.copy(&used, &memory).unwrap());
        let mut combined = WriteCombined::<u32>::new(device, 64).unwrap();
        let mut managed = Managed::<u32>::zeroed(device, 64).unwrap();
        let mut buffer = Buffer::<u32>::with_options(device, 64, &BufferOptions::new().host()).ok();
        assert!(in_child(|| {
            let mut refused = vec![
                combined.write_slice(0, &[7, 7]),
                managed.host().map(drop),
                managed.host_mut().map(drop),
                used.host().map(drop),
            ];
            for block in &mut blocks {
                refused.push(block.host().map(drop));
                refused.push(block.host_mut().map(drop));
            }
            if let Some(buffer) = &mut buffer {
                refused.push(buffer.host().map(drop));
                refused.push(buffer.host_mut().map(drop));
            }
            refused.into_iter().all(|result| result.unwrap_err().kind() == ErrorKind::Forked)
        }));
        // The parent has all of it.
        stream.synchronize().unwrap();
        blocks.push(used);
        for block in &mut blocks {
            block.host_mut().unwrap()[63] = 7;
            assert_eq!(block.host().unwrap()[63], 7);
        }
        combined.write(63, 7).unwrap();
        instance.copy(&memory, &combined).unwrap();
        assert_eq!(memory.to_vec().unwrap()[63], 7);
    });
}

#[test]
fn a_process_may_end_with_everything_alive() {
    if std::env::var_os("GPUMEM_TEST_EXIT").is_some() {
        let instance = Instance::open(backend()).unwrap();
        let device = instance.device(0).unwrap();
        let memory = DeviceMemory::<u8>::new(&device, 1 << 20).unwrap();
        let stream = Stream::new(&device).unwrap();
        mem::forget(stream.copy(Pinned::<u8>::zeroed(&device, 1 << 20).unwrap(), &memory).unwrap());
        std::process::exit(42);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_may_end_with_everything_alive", "--nocapture"])
        .env("GPUMEM_TEST_EXIT", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
