// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Pools, their blocks, and the order of streams in which these are freed.

mod common;

use std::collections::HashSet;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{backend, is_host, with_device, with_host};
use gpumem::{
    host, Access, Device, DeviceMemory, ErrorKind, HostOptions, Instance, Kind, MemoryFlags, Pinned, Pool,
    PoolAnswer, PoolBlock, PoolFlags, PoolOptions, Processor, Region, Rejected, Stream, WaitCondition,
};

const MIB: u64 = 1 << 20;

/// Holds up work until it is opened or dropped, so that a test which fails does not wait for it.
struct Gate(Pinned<AtomicU32>);

impl Gate {
    fn open(&self) {
        self.0[0].store(1, Ordering::Release);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// A stream whose work waits until the gate is open.
fn gated(device: &Device) -> (Stream, Gate) {
    let (stream, gate) =
        (Stream::new(device).unwrap(), Gate(Pinned::<AtomicU32>::zeroed(device, 1).unwrap()));
    stream.wait_value(&gate.0, 0, WaitCondition::EQ, 1).unwrap();
    (stream, gate)
}

fn kind<T, E: Into<gpumem::Error>>(result: Result<T, E>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error.into().kind(),
    }
}

fn pool_of(device: &Device, kind: Kind) -> Pool {
    Pool::with_options(device, &PoolOptions::new().kind(kind)).unwrap()
}

/// The values of a block whose work is complete.
fn read(instance: &Instance, block: &PoolBlock<u32>) -> Vec<u32> {
    let mut seen = vec![0; block.len()];
    instance.copy(&mut seen, block).unwrap();
    seen
}

#[test]
fn blocks_are_counted() {
    with_device(|instance, device| {
        let options = PoolOptions::new()
            .flags(PoolFlags::ALLOW_INTERNAL_DEPENDENCIES)
            .limit(1 << 30)
            .release_threshold(1 << 29)
            .low_water(1 << 28)
            .initial_size(4 * MIB)
            .segment_size(8 * MIB)
            .name("steps");
        let pool = Pool::with_options(device, &options).unwrap();
        let info = pool.info().unwrap();
        assert_eq!((info.kind, info.device_ordinal, info.name.as_str()), (Kind::DEVICE, 0, "steps"));
        assert_eq!(info.flags, PoolFlags::ALLOW_INTERNAL_DEPENDENCIES);
        assert_eq!((info.limit, info.release_threshold, info.low_water), (1 << 30, 1 << 29, 1 << 28));
        assert_eq!((info.live_count, info.live_bytes, info.total_count), (0, 0, 0));
        assert!(info.reserved_bytes >= 4 * MIB && info.cached_bytes == info.reserved_bytes, "{info:?}");
        assert!(info.segment_count >= 1 && info.grow_count >= 1 && info.memory_flags == MemoryFlags::NONE);

        let small = pool.alloc::<u32>(100, None).unwrap();
        let large = pool.alloc::<u64>(3 << 20, None).unwrap();
        assert_eq!((small.len(), small.is_empty(), large.len()), (100, false, 3 << 20));
        assert_ne!(small.device_address().unwrap(), large.device_address().unwrap());
        assert_eq!(small.as_ptr() as u64 % 256, 0);
        let found = small.info().unwrap().unwrap();
        assert_eq!((found.pool, found.base), (pool.handle(), small.as_ptr().cast()));
        assert!(found.usable_size >= 400 && found.requested_size == 0);
        assert_eq!(instance.block_info(small.as_ptr().wrapping_add(99).cast()).unwrap(), found);
        let at = instance.pointer_info(small.as_ptr().cast()).unwrap();
        assert_eq!(at.kind, Kind::POOL);
        let info = pool.info().unwrap();
        assert_eq!((info.live_count, info.total_count), (2, 2));
        assert_eq!(info.live_bytes, found.usable_size + large.info().unwrap().unwrap().usable_size);

        let classes: Vec<_> = pool.classes().unwrap().map(Result::unwrap).collect();
        assert_eq!(classes.len() as u32, info.class_count);
        assert!(classes.windows(2).all(|two| two[0].block_size < two[1].block_size));
        let class = classes.iter().find(|class| class.block_size == found.usable_size).unwrap();
        assert_eq!((class.live_count, class.total_count), (1, 1));
        assert!(class.block_count >= 1);
        // The large block was cut too.
        assert_eq!((class.cut_count, info.cut_count), (class.block_count, class.block_count + 1));
        assert_eq!(kind(pool.class(info.class_count)), ErrorKind::InvalidArgument);

        small.close().unwrap();
        drop(large);
        let info = pool.info().unwrap();
        assert_eq!((info.live_count, info.live_bytes, info.total_count), (0, 0, 2));
        pool.reset_peaks().unwrap();
        // What this thread keeps of small blocks still counts.
        assert!(pool.info().unwrap().peak_live_bytes < info.peak_live_bytes);
        assert_eq!((pool.capacity_for(&[]).unwrap(), pool.capacity_for(&[4 << 20]).unwrap()), (0, 4 << 20));
        assert_eq!(kind(pool.capacity_for(&[1, 1 << 63])), ErrorKind::InvalidArgument);
        pool.set_limit(1 << 31).unwrap();
        pool.set_release_threshold(0).unwrap();
        assert_eq!((pool.info().unwrap().limit, pool.info().unwrap().release_threshold), (1 << 31, 0));
        let reserved = pool.info().unwrap().reserved_bytes;
        assert_eq!(pool.trim(0).unwrap(), reserved);
        let info = pool.info().unwrap();
        assert_eq!((info.reserved_bytes, info.segment_count), (0, 0));
        assert!(info.release_count >= 1 && format!("{pool:?}").starts_with("Pool("));
        pool.close().unwrap();
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
}

#[test]
fn blocks_without_bytes_need_no_memory() {
    with_device(|instance, device| {
        let (pool, stream) = (Pool::new(device).unwrap(), Stream::new(device).unwrap());
        let mut none = pool.alloc::<u32>(0, Some(&stream)).unwrap();
        assert!(none.is_empty() && none.info().unwrap().is_none() && none.as_slice().is_empty());
        assert_eq!(pool.info().unwrap().reserved_bytes, 0);
        drop(stream.fill(&none, 7).unwrap());
        instance.copy(&none, &[0u32; 0]).unwrap();
        none.record_use(&stream).unwrap();
        assert!(none.host().unwrap().is_empty());
        none.free_on(&stream).unwrap();
        assert_eq!(pool.alloc_raw(0, None).unwrap(), ptr::null_mut());
        assert_eq!(pool.alloc::<[u8; 0]>(5, None).unwrap().len(), 5);
        let error = pool.alloc::<u64>(usize::MAX / 8, None).unwrap_err();
        assert!(error.to_string().starts_with("Pool::alloc: "), "{error}");
        // SAFETY: NULL is no block.
        unsafe {
            pool.free_raw(ptr::null_mut(), None).unwrap();
            pool.free_batch_raw(&[ptr::null_mut(); 2], Some(&stream)).unwrap();
            instance.free_block(ptr::null_mut(), None).unwrap();
        }
        assert!(pool.alloc_batch::<u8>(&[], None).unwrap().is_empty());
    });
}

#[test]
fn a_block_is_reused_in_the_order_of_its_stream() {
    with_device(|instance, device| {
        let pool = Pool::new(device).unwrap();
        let (stream, gate) = gated(device);
        let other = Stream::new(device).unwrap();
        let first = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
        let address = first.as_ptr();
        drop(stream.fill(&first, 1).unwrap());
        first.close().unwrap();
        assert_eq!(pool.info().unwrap().live_count, 0);

        // The same stream may have it, another one and nobody's order may not.
        let second = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
        assert_eq!(second.as_ptr(), address);
        drop(stream.fill(&second, 2).unwrap());
        drop(second);
        let elsewhere = pool.alloc::<u32>(1000, Some(&other)).unwrap();
        let nowhere = pool.alloc::<u32>(1000, None).unwrap();
        assert!(elsewhere.as_ptr() != address && nowhere.as_ptr() != address);
        let third = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
        assert_eq!(third.as_ptr(), address);
        gate.open();
        stream.synchronize().unwrap();
        assert_eq!(read(instance, &third), vec![2; 1000]);
    });
}

#[test]
fn work_of_another_stream_is_waited_for() {
    with_device(|instance, device| {
        let pool = Pool::new(device).unwrap();
        let own = Stream::new(device).unwrap();
        let (other, gate) = gated(device);
        let free_while_used = |enqueue: &dyn Fn(&PoolBlock<u32>)| {
            let block = pool.alloc::<u32>(1000, Some(&own)).unwrap();
            let address = block.as_ptr();
            enqueue(&block);
            drop(block);
            let next: Vec<_> = (0..100).map(|_| pool.alloc::<u32>(1000, Some(&own)).unwrap()).collect();
            assert!(next.iter().all(|block| block.as_ptr() != address));
            // It is known to the pool, and held by nobody.
            assert_eq!(pool.info().unwrap().live_count, 100);
        };
        free_while_used(&|block| drop(other.fill(block, 3).unwrap()));
        free_while_used(&|block| {
            drop(other.copy(block.slice(..10).unwrap(), block.slice(10..20).unwrap()).unwrap())
        });
        free_while_used(&|block| {
            let parts = [Region::new(block.slice(..10).unwrap(), block.slice(10..20).unwrap(), 10)];
            drop(other.copy_regions(parts).unwrap());
        });
        free_while_used(&|block| block.record_use(&other).unwrap());
        gate.open();
        other.synchronize().unwrap();
        assert_eq!(instance.stats().unwrap().streams, 2);
    });
}

#[test]
fn a_block_without_a_stream_is_kept_for_its_work() {
    with_device(|_, device| {
        let pool = Pool::new(device).unwrap();
        let (stream, gate) = gated(device);
        let block = pool.alloc::<u32>(1000, None).unwrap();
        drop(stream.fill(&block, 3).unwrap());
        let Rejected { given: block, error, .. } = block.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        drop(block);
        assert_eq!(pool.info().unwrap().live_count, 1);
        gate.open();
        stream.synchronize().unwrap();
        assert_eq!(pool.info().unwrap().live_count, 0);

        // One that was used before, but is not now, is freed at once.
        let block = pool.alloc::<u32>(1000, None).unwrap();
        drop(stream.fill(&block, 3).unwrap());
        stream.synchronize().unwrap();
        block.close().unwrap();
        assert_eq!(pool.info().unwrap().live_count, 0);
    });
}

#[test]
fn a_block_is_freed_on_another_stream() {
    with_device(|_, device| {
        let pool = Pool::new(device).unwrap();
        let (own, gate) = gated(device);
        let other = Stream::new(device).unwrap();
        let block = pool.alloc::<u32>(1000, Some(&own)).unwrap();
        let address = block.as_ptr();
        drop(own.fill(&block, 1).unwrap());
        block.free_on(&other).unwrap();
        assert_eq!(pool.info().unwrap().live_count, 0);
        // The work of its own stream is not complete.
        let next = pool.alloc::<u32>(1000, Some(&other)).unwrap();
        assert_ne!(next.as_ptr(), address);
        next.free_on(&other).unwrap();
        gate.open();
        own.synchronize().unwrap();

        let block = pool.alloc::<u32>(1000, None).unwrap();
        block.free_on(&other).unwrap();
        let block = pool.alloc::<u32>(1000, Some(&own)).unwrap();
        own.close().unwrap();
        block.free_on(&other).unwrap();
        assert_eq!(pool.info().unwrap().live_count, 0);
    });
}

#[test]
fn blocks_outlive_their_stream() {
    with_device(|instance, device| {
        let pool = Pool::new(device).unwrap();
        for close in [false, true] {
            let stream = Stream::new(device).unwrap();
            let block = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
            drop(stream.fill(&block, 4).unwrap());
            if close {
                stream.close().unwrap();
            } else {
                drop(stream);
            }
            assert_eq!(instance.stats().unwrap().streams, 0);
            assert_eq!(read(instance, &block), vec![4; 1000]);
            block.close().unwrap();
        }
        assert_eq!(pool.info().unwrap().live_count, 0);
    });
}

#[test]
fn the_cpu_borrows_blocks_of_host_memory() {
    with_device(|instance, device| {
        for kind_of_pool in [Kind::PINNED, Kind::PAGEABLE] {
            let pool = pool_of(device, kind_of_pool);
            let mut plain = pool.alloc::<u32>(3, None).unwrap();
            plain.host_mut().unwrap().copy_from_slice(&[1, 2, 3]);
            let there = DeviceMemory::<u32>::new(device, 3).unwrap();
            instance.copy(&there, &plain).unwrap();
            assert_eq!(there.to_vec().unwrap(), plain.host().unwrap());
            assert_eq!(plain.device_address().is_ok(), kind_of_pool == Kind::PINNED);
        }
        let pool = pool_of(device, Kind::PINNED);
        let mut plain = pool.alloc::<u32>(3, None).unwrap();
        let (stream, gate) = gated(device);
        drop(stream.fill(&plain, 8).unwrap());
        let error = plain.host().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.message().ends_with("; synchronize the stream of that work first"), "{error}");
        let mut own = pool.alloc::<u32>(3, Some(&stream)).unwrap();
        drop(stream.fill(&own, 9).unwrap());
        let opening = thread::spawn(move || gate.open());
        // This waits for the stream.
        assert_eq!(own.host().unwrap(), [9, 9, 9]);
        opening.join().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(plain.host_mut().unwrap(), [8, 8, 8]);
        for kind_of_pool in [Kind::DEVICE, Kind::MANAGED] {
            let pool = pool_of(device, kind_of_pool);
            assert_eq!(kind(pool.alloc::<u32>(3, None).unwrap().host_mut()), ErrorKind::NoAccess);
        }
    });
}

#[test]
fn a_captured_stream_has_blocks_of_its_own() {
    with_host(HostOptions::new(), |_, device| {
        let (pool, stream) = (Pool::new(device).unwrap(), Stream::new(device).unwrap());
        let other = Stream::new(device).unwrap();
        assert_eq!(stream.capture_id().unwrap(), 0);
        let outside = pool.alloc_raw(1000, None).unwrap();
        host::stream_set_capturing(&stream, true).unwrap();
        let capture = stream.capture_id().unwrap();
        assert_ne!(capture, 0);
        let block = pool.alloc_raw(1000, Some(&stream)).unwrap();
        pool.record_use_raw(outside, &stream).unwrap();
        // SAFETY: nothing uses the blocks, nor will a graph.
        unsafe {
            pool.free_raw(block, Some(&stream)).unwrap();
            assert_eq!(pool.alloc_raw(1000, Some(&stream)).unwrap(), block);
            pool.free_raw(block, Some(&stream)).unwrap();
            pool.free_raw(outside, None).unwrap();
        }
        host::stream_set_capturing(&stream, false).unwrap();
        let info = pool.info().unwrap();
        assert_eq!((info.capture_count, info.live_count), (1, 0));
        assert_eq!(info.captured_bytes, 2048);
        let blocks: Vec<_> = (0..200).map(|_| pool.alloc::<u8>(1000, Some(&stream)).unwrap()).collect();
        let addresses: Vec<_> = blocks.iter().map(|block| block.as_ptr().cast()).collect();
        assert!(!addresses.contains(&block) && !addresses.contains(&outside));
        // SAFETY: there is no graph.
        unsafe {
            pool.release_capture(capture, Some(&other)).unwrap();
            other.synchronize().unwrap();
            pool.trim(0).unwrap();
            assert_eq!(kind(pool.release_capture(capture, None)), ErrorKind::NotFound);
        }
        let info = pool.info().unwrap();
        assert_eq!((info.capture_count, info.captured_bytes), (0, 0));
    });
}

#[test]
fn batches_are_all_or_none() {
    with_device(|instance, device| {
        let pool = Pool::with_options(device, &PoolOptions::new().limit(64 * MIB)).unwrap();
        let stream = Stream::new(device).unwrap();
        let blocks = pool.alloc_batch::<u32>(&[10, 0, 1000, 100_000], Some(&stream)).unwrap();
        assert_eq!(blocks.iter().map(PoolBlock::len).collect::<Vec<_>>(), [10, 0, 1000, 100_000]);
        assert_eq!(pool.info().unwrap().live_count, 3);
        for (value, block) in blocks.iter().enumerate() {
            drop(stream.fill(block, value as u32).unwrap());
        }
        stream.synchronize().unwrap();
        assert_eq!(read(instance, &blocks[2]), vec![2; 1000]);
        drop(blocks);
        let error = pool.alloc_batch::<u8>(&[10, 65 << 20], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert_eq!(kind(pool.alloc_batch::<u64>(&[1, usize::MAX], None)), ErrorKind::InvalidArgument);
        assert_eq!(pool.info().unwrap().live_count, 0);

        let raw = pool.alloc_batch_raw(&[100, 0, 200], None).unwrap();
        assert!(!raw[0].is_null() && raw[1].is_null() && !raw[2].is_null());
        // SAFETY: nothing uses them.
        unsafe {
            pool.free_batch_raw(&raw[..2], Some(&stream)).unwrap();
            let error = pool.free_batch_raw(&[raw[2], raw[0]], None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.message().contains('1'), "{error}");
        }
        assert_eq!(pool.info().unwrap().live_count, 0);
    });
}

#[test]
fn try_alloc_takes_only_what_is_free() {
    with_device(|_, device| {
        let pool = pool_of(device, Kind::DEVICE);
        assert_eq!(
            pool.try_alloc::<u32>(250, 0, None).unwrap().unwrap_err().answer,
            PoolAnswer::NEEDS_MEMORY
        );
        drop(pool.alloc::<u32>(250, None).unwrap());
        let block = pool.try_alloc::<u32>(250, 0, None).unwrap().unwrap();
        assert_eq!(block.len(), 250);
        assert_eq!(pool.try_alloc::<u8>(0, 0, None).unwrap().unwrap().len(), 0);
        let aligned = pool.try_alloc::<u8>(100, 4096, None).unwrap().unwrap();
        assert_eq!(aligned.as_ptr() as usize % 4096, 0);
        let reserved = pool.info().unwrap().reserved_bytes;
        pool.set_limit(reserved).unwrap();
        let attempt = pool.try_alloc::<u8>(reserved as usize + 1, 0, None).unwrap().unwrap_err();
        assert_eq!((attempt.answer, attempt.stream_id), (PoolAnswer::OVER_LIMIT, 0));
        assert_eq!(pool.info().unwrap().reserved_bytes, reserved);
        assert_eq!(kind(pool.try_alloc::<u8>(100, 3, None)), ErrorKind::InvalidArgument);
    });
}

#[test]
fn alignments_are_met() {
    with_device(|_, device| {
        #[derive(Clone, Copy)]
        #[repr(align(4096))]
        struct Page([u8; 4096]);
        // SAFETY: any bytes are a page.
        unsafe impl gpumem::Element for Page {}
        for kind_of_pool in [Kind::DEVICE, Kind::PAGEABLE] {
            let pool = pool_of(device, kind_of_pool);
            let page = pool.alloc::<Page>(1, None).unwrap();
            assert_eq!((page.as_ptr() as usize % 4096, page.len()), (0, 1));
            let block = pool.alloc_aligned::<u8>(100, 1 << 16, None).unwrap();
            assert_eq!(block.as_ptr() as usize % (1 << 16), 0);
            assert_eq!(kind(pool.alloc_aligned::<u8>(100, 3, None)), ErrorKind::InvalidArgument);
            assert_eq!(kind(pool.alloc_batch::<Page>(&[1], None)), ErrorKind::InvalidArgument);
            let raw = pool.alloc_aligned_raw(100, 1 << 16, None).unwrap();
            assert_eq!(raw as usize % (1 << 16), 0);
            // SAFETY: nothing uses it.
            unsafe { pool.free_sized_raw(raw, 100, None).unwrap() };
        }
        assert_eq!(Page([0; 4096]).0.len(), 4096);
    });
}

#[test]
fn the_callback_makes_room() {
    with_device(|_, device| {
        let pool = Arc::new(Pool::with_options(device, &PoolOptions::new().limit(32 * MIB)).unwrap());
        let kept = Arc::new(Mutex::new(vec![pool.alloc::<u8>(20 << 20, None).unwrap()]));
        let asked = Arc::new(AtomicUsize::new(0));
        let (shared, count, inner) = (kept.clone(), asked.clone(), Arc::downgrade(&pool));
        pool.set_callback(move |bytes| {
            assert!(bytes > 0);
            count.fetch_add(1, Ordering::Relaxed);
            if let Some(pool) = inner.upgrade() {
                assert_eq!(kind(pool.set_callback(|_| true)), ErrorKind::InvalidState);
                assert_eq!(kind(pool.trim(0)), ErrorKind::InvalidState);
            }
            shared.lock().unwrap().pop().is_some()
        })
        .unwrap();
        let block = pool.alloc::<u8>(20 << 20, None).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(kind(pool.alloc::<u8>(20 << 20, None)), ErrorKind::LimitExceeded);
        assert_eq!(kind(pool.alloc_raw(20 * MIB, None)), ErrorKind::LimitExceeded);
        assert_eq!(kind(pool.alloc_batch_raw(&[20 * MIB], None)), ErrorKind::LimitExceeded);
        assert_eq!(asked.load(Ordering::Relaxed), 4);
        // It is dropped when it is replaced.
        assert_eq!(Arc::strong_count(&kept), 2);
        pool.set_callback(|_| panic!("in the callback")).unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
        let panic = catch_unwind(AssertUnwindSafe(|| pool.alloc::<u8>(20 << 20, None))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"in the callback"));
        pool.clear_callback().unwrap();
        assert_eq!(kind(pool.alloc::<u8>(20 << 20, None)), ErrorKind::LimitExceeded);
        drop(block);

        // It goes with the pool.
        let shared = kept.clone();
        pool.set_callback(move |_| shared.lock().unwrap().is_empty()).unwrap();
        drop(pool);
        assert_eq!(Arc::strong_count(&kept), 1);
    });
}

#[test]
fn addresses_that_are_no_blocks_are_refused() {
    with_device(|instance, device| {
        let (pool, other) = (Pool::new(device).unwrap(), Pool::new(device).unwrap());
        let stranger = Instance::open(backend()).unwrap();
        let stream = Stream::new(&stranger.device(0).unwrap()).unwrap();
        assert_eq!(kind(pool.alloc::<u8>(1, Some(&stream))), ErrorKind::InvalidArgument);
        let raw = pool.alloc_raw(1000, None).unwrap();
        let inside = raw.cast::<u8>().wrapping_add(16).cast();
        let mut local = 0u64;
        let foreign = ptr::addr_of_mut!(local).cast();
        // SAFETY: nothing uses the block, and nothing else is freed.
        unsafe {
            assert_eq!(kind(pool.free_raw(inside, None)), ErrorKind::InvalidArgument);
            assert_eq!(kind(pool.free_raw(foreign, None)), ErrorKind::NotFound);
            assert_eq!(kind(pool.free_raw(raw, Some(&stream))), ErrorKind::InvalidArgument);
            assert!(other.free_raw(raw, None).is_err());
            assert_eq!(kind(instance.free_block(inside, None)), ErrorKind::InvalidArgument);
            assert_eq!(kind(instance.free_block(foreign, None)), ErrorKind::NotFound);
            assert_eq!(kind(pool.record_use_raw(raw, &stream)), ErrorKind::InvalidArgument);
            assert!(instance.block_info(raw).is_ok());
            pool.free_raw(raw, None).unwrap();
            assert_eq!(kind(pool.free_raw(raw, None)), ErrorKind::NotFound);
            assert_eq!(kind(instance.free_block(raw, None)), ErrorKind::NotFound);
        }
        assert_eq!(kind(instance.block_info(raw)), ErrorKind::NotFound);
        assert_eq!(kind(instance.block_info(ptr::null())), ErrorKind::InvalidArgument);
        let wrong = PoolOptions::new().kind(Kind::REGISTERED);
        assert_eq!(kind(Pool::with_options(device, &wrong)), ErrorKind::InvalidArgument);
        let wrong = PoolOptions::new().kind(Kind::PINNED).access(Processor::Device(1), Access::READ);
        assert_eq!(kind(Pool::with_options(device, &wrong)), ErrorKind::InvalidArgument);
        let wrong = PoolOptions::new().name("a\0b");
        assert_eq!(kind(Pool::with_options(device, &wrong)), ErrorKind::InvalidArgument);
    });
}

#[test]
fn blocks_outlive_their_pool() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let pool = Pool::new(device).unwrap();
        let block = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
        // The block keeps a pool that is dropped, but not one that is closed.
        drop(pool);
        assert!(!block.info().unwrap().unwrap().pool.is_null());
        drop(stream.fill(&block, 5).unwrap());
        drop(block);
        stream.synchronize().unwrap();
        assert_eq!(instance.stats().unwrap().live_objects(), 1);

        let pool = Pool::new(device).unwrap();
        let blocks = pool.alloc_batch::<u32>(&[1000, 10, 10], Some(&stream)).unwrap();
        let raw = pool.alloc_raw(100, None).unwrap();
        pool.close().unwrap();
        assert!(blocks[0].info().unwrap().unwrap().pool.is_null());
        drop(stream.fill(&blocks[0], 6).unwrap());
        stream.synchronize().unwrap();
        assert_eq!(read(instance, &blocks[0]), vec![6; 1000]);
        // A stream of others keeps the block, since the pool cannot be told any more.
        let other = Stream::new(device).unwrap();
        drop(other.fill(&blocks[1], 7).unwrap());
        other.synchronize().unwrap();
        for block in blocks {
            block.close().unwrap();
        }
        let report = instance.report().unwrap();
        let told = "of a dropped pool with live blocks; drop them, or use Instance::free_block for raw ones";
        assert!(report.contains(told), "{report}");
        // SAFETY: nothing uses it.
        unsafe { instance.free_block(raw, None).unwrap() };
    });
}

#[test]
fn a_pool_waits_for_the_work_of_its_blocks() {
    with_device(|instance, device| {
        let (stream, gate) = gated(device);
        let pool = Pool::new(device).unwrap();
        let block = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
        drop(stream.fill(&block, 5).unwrap());
        drop(block);
        // The stream keeps the pool meanwhile, so this does not wait.
        drop(pool);
        gate.open();
        stream.synchronize().unwrap();
        drop((stream, gate));
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
}

#[test]
fn what_a_drop_cannot_free_is_freed_later() {
    with_device(|instance, device| {
        let (pool, stream) = (Pool::new(device).unwrap(), Stream::new(device).unwrap());
        let block = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
        let refused = Arc::new(AtomicU32::new(0));
        let seen = refused.clone();
        stream
            .launch_host_function(move || {
                if let Err(rejected) = block.close() {
                    seen.store((rejected.error.kind() == ErrorKind::InvalidState).into(), Ordering::Release);
                }
            })
            .unwrap();
        stream.synchronize().unwrap();
        assert_eq!(refused.load(Ordering::Acquire), 1);
        assert_eq!(pool.info().unwrap().live_count, 1);
        drop(DeviceMemory::<u8>::new(device, 1).unwrap());
        assert_eq!(pool.info().unwrap().live_count, 0);
        drop((pool, stream));
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
}

#[test]
fn blocks_follow_native_streams() {
    with_device(|_, device| {
        let (pool, stream) = (Pool::new(device).unwrap(), Stream::new(device).unwrap());
        let native = stream.info().unwrap().native_stream;
        // SAFETY: the stream lives, and nothing uses the blocks.
        unsafe {
            let block = pool.alloc_native(1000, native).unwrap();
            assert_eq!(pool.info().unwrap().live_count, 1);
            pool.free_native(block, native).unwrap();
            // The same stream, in whichever form it is named.
            let again = pool.alloc_raw(1000, Some(&stream)).unwrap();
            assert_eq!(again, block);
            pool.free_sized_raw(again, 1000, Some(&stream)).unwrap();
            assert_eq!(kind(pool.free_native(again, native)), ErrorKind::NotFound);
            let default = pool.alloc_native(1000, ptr::null_mut()).unwrap();
            pool.free_native(default, ptr::null_mut()).unwrap();
        }
        assert_eq!(pool.info().unwrap().live_count, 0);
    });
}

#[test]
fn debug_pools_find_mistakes() {
    with_device(|_, device| {
        let options = PoolOptions::new().kind(Kind::PAGEABLE).flags(PoolFlags::DEBUG);
        let pool = Pool::with_options(device, &options).unwrap();
        let block = pool.alloc::<u8>(100, None).unwrap();
        assert_eq!(block.info().unwrap().unwrap().requested_size, 100);
        let raw = pool.alloc_raw(100, None).unwrap();
        // SAFETY: the byte behind the block belongs to the pool, which finds out.
        unsafe {
            assert_eq!(kind(pool.free_sized_raw(raw, 99, None)), ErrorKind::InvalidArgument);
            let behind = raw.cast::<u8>().add(100);
            let kept = behind.read();
            behind.write(!kept);
            assert_eq!(kind(pool.free_raw(raw, None)), ErrorKind::InvalidArgument);
            behind.write(kept);
            pool.free_raw(raw, None).ok();
        }
    });
}

#[test]
fn pools_are_for_other_devices_too() {
    with_device(|instance, device| {
        let peer = instance.device(1).unwrap();
        if !peer.can_access_peer(device).unwrap() {
            println!("the devices have no link");
            return;
        }
        let options = PoolOptions::new().access(Processor::Device(1), Access::READ_WRITE);
        let pool = match Pool::with_options(device, &options) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return,
            pool => pool.unwrap(),
        };
        let stream = Stream::new(&peer).unwrap();
        let block = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
        drop(stream.fill(&block, 3).unwrap());
        stream.synchronize().unwrap();
        assert_eq!(read(instance, &block), vec![3; 1000]);
        let access = instance.pointer_access(block.as_ptr().cast(), Processor::Device(1)).unwrap();
        assert_eq!(access, Access::READ_WRITE);
    });
}

#[test]
fn many_threads_use_a_pool() {
    with_device(|_, device| {
        let pool = Pool::new(device).unwrap();
        let (rounds, threads) = if is_host() { (300, 4) } else { (100, 4) };
        let passed: Mutex<Vec<(u32, PoolBlock<u32>)>> = Mutex::default();
        let live: Mutex<HashSet<usize>> = Mutex::default();
        thread::scope(|scope| {
            for number in 0..threads {
                let (pool, passed, live) = (&pool, &passed, &live);
                scope.spawn(move || {
                    let stream = Stream::new(device).unwrap();
                    for round in 0..rounds {
                        let len = 1 + (round * 37 + number * 11) % 3000;
                        let order = if round % 3 == 0 { None } else { Some(&stream) };
                        let block = pool.alloc::<u32>(len, order).unwrap();
                        assert!(live.lock().unwrap().insert(block.as_ptr() as usize));
                        let value = (number * rounds + round) as u32;
                        drop(stream.fill(&block, value).unwrap());
                        let mut given = passed.lock().unwrap();
                        given.push((value, block));
                        // Blocks are freed by whichever thread comes.
                        if given.len() > 8 {
                            let (_, block) = given.swap_remove(round % 8);
                            drop(given);
                            live.lock().unwrap().remove(&(block.as_ptr() as usize));
                            drop(block);
                        }
                    }
                    stream.synchronize().unwrap();
                });
            }
        });
        let rest = passed.into_inner().unwrap();
        assert_eq!(pool.info().unwrap().live_count, rest.len() as u64);
        drop(rest);
        let info = pool.info().unwrap();
        assert_eq!((info.live_count, info.total_count), (0, (rounds * threads) as u64));
    });
}

/// A block may come with work of another stream, for which its own stream waits.
#[test]
fn a_block_is_not_written_by_the_work_of_another_stream_that_the_pool_waits_for() {
    with_device(|_, device| {
        let options = PoolOptions::new().kind(Kind::PINNED).flags(PoolFlags::ALLOW_INTERNAL_DEPENDENCIES);
        let pool = Pool::with_options(device, &options).unwrap();
        let (first, second) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let (open, gate) = mpsc::channel::<()>();
        first
            .launch_host_function(move || {
                let _ = gate.recv();
            })
            .unwrap();
        let blocks: Vec<_> = (0..256).map(|_| pool.alloc::<u32>(1000, Some(&first)).unwrap()).collect();
        for block in &blocks {
            drop(first.fill(block, 7u32).unwrap());
        }
        drop(blocks);
        let mut held = Vec::new();
        while pool.info().unwrap().wait_count == 0 && held.len() < 10_000 {
            held.push(pool.alloc::<u32>(1000, Some(&second)).unwrap());
        }
        assert_ne!(pool.info().unwrap().wait_count, 0, "no block of the first stream was used again");
        // The gate opens while the drop waits, so that one that does not wait is found out.
        let opening = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(open);
        });
        let mut block = held.pop().unwrap();
        drop(second);
        let numbers = block.host_mut().unwrap();
        numbers.fill(0);
        first.synchronize().unwrap();
        assert!(numbers.iter().all(|number| *number == 0), "work wrote it under a &mut");
        opening.join().unwrap();
    });
}
