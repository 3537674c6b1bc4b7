// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Memory that was dropped while work used it, and an allocation that needs it.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{backend, with_host};
use gpumem::{
    Backend, Buffer, BufferOptions, Content, DeviceMemory, Error, ErrorKind, Group, HostOptions, Instance,
    InstanceOptions, Kind, Physical, Pinned, Pool, PoolOptions, RegisterOptions, Registered, RingOptions,
    RingProducer, Stream, WaitCondition,
};

/// Calls until the work that was enqueued before is complete, which only the call itself may find out.
fn in_time<R>(mut call: impl FnMut() -> Result<R, Error>) -> R {
    let lacks = |error: &Error| matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::LimitExceeded);
    let watchdog = Instant::now() + Duration::from_secs(20);
    loop {
        match call() {
            Err(error) if lacks(&error) && Instant::now() < watchdog => {}
            result => return result.unwrap(),
        }
    }
}

#[test]
fn what_complete_work_used_makes_room_for_an_allocation() {
    const LEN: usize = 10 << 20;
    with_host(HostOptions::new().device_bytes(16 << 20), |instance, device| {
        let stream = Stream::new(device).unwrap();
        let other = Instance::open(Backend::HOST).unwrap();
        let elsewhere = Stream::new(&other.device(0).unwrap()).unwrap();
        let waste = || {
            let memory = in_time(|| DeviceMemory::<u8>::new(device, LEN));
            drop(stream.fill(&memory, 1u8).unwrap());
        };
        waste();
        drop(in_time(|| DeviceMemory::<u8>::new(device, LEN)));
        waste();
        drop(in_time(|| Physical::new(device, LEN as u64)));
        waste();
        let mut buffer = in_time(|| Buffer::<u8>::new(device, LEN));
        buffer.resize(0).unwrap();
        buffer.shrink_to_fit().unwrap();
        waste();
        in_time(|| buffer.resize(LEN));
        buffer.resize(0).unwrap();
        buffer.shrink_to_fit().unwrap();
        waste();
        in_time(|| buffer.reserve_exact(LEN));
        buffer.sleep(Content::DROP).unwrap();
        waste();
        in_time(|| buffer.wake());
        drop(buffer);
        let group = Group::new(instance).unwrap();
        let options = BufferOptions::new().group(&group);
        let buffer = Buffer::<u8>::with_options(device, LEN, &options).unwrap();
        group.sleep(Content::DROP).unwrap();
        waste();
        in_time(|| group.wake());
        drop(buffer);
        // Another buffer of the group may be what is dropped.
        let buffer = Buffer::<u8>::with_options(device, LEN, &options).unwrap();
        drop(stream.fill(&buffer, 1u8).unwrap());
        drop(buffer);
        drop(in_time(|| Buffer::<u8>::with_options(device, LEN, &options)));
        waste();
        let options = RingOptions::new().slot_count(4);
        drop(in_time(|| RingProducer::new(device, LEN as u64 / 4, &options)));
        waste();
        drop(in_time(|| Pool::with_options(device, &PoolOptions::new().initial_size(LEN as u64))));
        waste();
        let pool = Pool::new(device).unwrap();
        drop(in_time(|| pool.alloc::<u8>(LEN, None)));
        assert!(pool.trim(0).unwrap() >= LEN as u64);
        waste();
        drop(in_time(|| pool.alloc_batch::<u8>(&[LEN, 1], None)));
        pool.trim(0).unwrap();

        // What is in use stays, and work of another instance is none of its business.
        let gate = Pinned::<AtomicU32>::zeroed(device, 1).unwrap();
        waste();
        stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
        drop(elsewhere.fill(&DeviceMemory::<u8>::new(&other.device(0).unwrap(), 1).unwrap(), 1u8).unwrap());
        let mut errors = vec![(DeviceMemory::<u8>::new(device, LEN).err(), ErrorKind::OutOfMemory, LEN)];
        // What lives waits for nothing.
        let [living, dropped] = [0; 2].map(|_| DeviceMemory::<u8>::new(device, 1 << 20).unwrap());
        for memory in [&living, &dropped, &dropped] {
            drop(stream.fill(memory, 1u8).unwrap());
        }
        drop(dropped);
        let buffer = Buffer::<u8>::new(device, 2 << 20).unwrap();
        drop(stream.fill(&buffer, 1u8).unwrap());
        drop(buffer);
        let error = DeviceMemory::<u8>::new(device, LEN).err();
        errors.push((error, ErrorKind::OutOfMemory, LEN + (3 << 20)));
        let options = PoolOptions::new().kind(Kind::PINNED).limit(4 << 20);
        let pool = Pool::with_options(device, &options).unwrap();
        drop(stream.fill(&pool.alloc::<u8>(3 << 20, None).unwrap(), 1u8).unwrap());
        let error = pool.alloc::<u8>(3 << 20, None).err();
        errors.push((error, ErrorKind::LimitExceeded, LEN + (6 << 20)));
        gate[0].store(1, Ordering::Release);
        for (error, kind, bytes) in errors {
            let error = error.unwrap();
            assert_eq!(error.kind(), kind);
            let note =
                format!("; {bytes} bytes that were dropped wait for work in streams: synchronize them");
            assert!(error.message().ends_with(&note), "{error}");
        }
        drop(living);
        in_time(|| DeviceMemory::<u8>::new(device, LEN));
    });
}

#[test]
fn what_complete_work_used_makes_room_within_limits() {
    const LEN: usize = 1 << 20;
    let options = InstanceOptions::from(backend()).pin_budget(LEN as u64 * 3 / 2);
    let instance = Instance::open(options).unwrap();
    let device = instance.device(0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let waste = || drop(stream.fill(Pinned::<u8>::zeroed(&device, LEN).unwrap(), 1u8).unwrap());
    waste();
    in_time(|| Pinned::<u8>::zeroed(&device, LEN).map(drop));
    waste();
    let options = RegisterOptions::new();
    in_time(|| {
        let registered = Registered::new(&device, vec![1u8; LEN], &options);
        registered.map(drop).map_err(Error::from)
    });

    // The callback of a pool is called once, whether there was room or not.
    let pool = Pool::with_options(&device, &PoolOptions::new().limit(32 << 20)).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let waste = || drop(stream.fill(&pool.alloc::<u8>(20 << 20, None).unwrap(), 1u8).unwrap());
    waste();
    in_time(|| pool.alloc::<u8>(20 << 20, None).map(drop));
    waste();
    let counted = calls.clone();
    let set = move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        false
    };
    pool.set_callback(set).unwrap();
    let mut attempts = 0;
    in_time(|| {
        attempts += 1;
        pool.alloc::<u8>(20 << 20, None).map(drop)
    });
    assert_eq!(calls.load(Ordering::Relaxed), attempts);
}

#[test]
fn threads_make_room_for_each_other() {
    const LEN: usize = 5 << 20;
    with_host(HostOptions::new().device_bytes(16 << 20), |instance, device| {
        let group = Group::new(instance).unwrap();
        let options = BufferOptions::new().group(&group);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let stream = Stream::new(device).unwrap();
                    for _ in 0..10 {
                        let memory = in_time(|| DeviceMemory::<u8>::new(device, LEN));
                        drop(stream.fill(&memory, 1u8).unwrap());
                        drop(memory);
                        let buffer = in_time(|| Buffer::<u8>::with_options(device, LEN, &options));
                        drop(stream.fill(&buffer, 1u8).unwrap());
                    }
                });
            }
        });
    });
}
