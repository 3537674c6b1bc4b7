// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Work that runs later, and what is dropped or forgotten in the meantime.

mod common;

use std::mem::{self, MaybeUninit};
use std::os::raw::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::Arc;
use std::time::Duration;

use common::{is_host, with_device};
use gpumem::{
    host, Device, DeviceMemory, ErrorKind, Event, EventFlags, MemoryOptions, Pinned, Rectangle, Registered,
    Stream, StreamOptions, WaitCondition, WriteCombined,
};

/// A stream that stands still until the word is set.
struct Held {
    stream: Stream,
    gate: Pinned<AtomicU32>,
}

impl Held {
    fn new(device: &Device) -> Self {
        let stream = Stream::new(device).unwrap();
        let gate = Pinned::<AtomicU32>::zeroed(device, 1).unwrap();
        stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
        Self { stream, gate }
    }

    fn release(&self) {
        self.gate[0].store(1, Ordering::Release);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A test that fails shall not wait for ever.
        self.release();
    }
}

#[test]
fn copies_hand_back_what_they_used() {
    with_device(|_, device| {
        let stream = Stream::with_options(device, &StreamOptions::new().priority(0).name("copies")).unwrap();
        assert_eq!(stream.info().unwrap().name, "copies");
        let memory = DeviceMemory::<u32>::new(device, 1000).unwrap();
        let sent = Pinned::from_slice(device, &(0..1000).collect::<Vec<u32>>()).unwrap();
        let received = Pinned::<u32>::zeroed(device, 1000).unwrap();
        let up = stream.copy(&memory, sent).unwrap();
        let down = stream.copy(received, &memory).unwrap();
        let (received, _) = down.wait().unwrap();
        let (_, sent) = up.wait().unwrap();
        assert_eq!(*sent, *received);
        assert!(stream.is_complete().unwrap());
        sent.close().map_err(|(_, error)| error).unwrap();
        stream.close().map_err(|(_, error)| error).unwrap();
    });
}

#[test]
fn each_kind_can_be_enqueued() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 16).unwrap();
        let mut combined = WriteCombined::<u8>::new(device, 8).unwrap();
        combined.write_all(3);
        let registered = Registered::new(device, vec![1u8; 16], &MemoryOptions::new()).unwrap();
        let (_, registered) = stream.copy(&memory, registered).unwrap().wait().unwrap();
        stream.copy(memory.slice(8..).unwrap(), combined).unwrap();
        stream.copy_from_slice(memory.slice(..2).unwrap(), &[9u8, 8]).unwrap();
        stream.fill_bytes(memory.slice(2..3).unwrap(), 7).unwrap();
        let rectangle = Rectangle { width: 1, height: 2, destination_pitch: 2, source_pitch: 1 };
        stream.fill_2d(memory.slice(3..6).unwrap(), &rectangle, 5u8).unwrap();
        let shared = Arc::new(Pinned::from_slice(device, &[40u8, 41]).unwrap());
        stream.copy_2d(memory.slice(12..15).unwrap(), shared.clone(), &rectangle).unwrap();
        let back = Pinned::<MaybeUninit<u8>>::uninit(device, 16).unwrap();
        let (back, _) = stream.copy(back, &memory).unwrap().wait().unwrap();
        // SAFETY: the copy wrote all of it.
        let back = unsafe { back.assume_init() };
        assert_eq!(*back, [9, 8, 7, 5, 1, 5, 1, 1, 3, 3, 3, 3, 40, 3, 41, 3]);
        assert_eq!(registered.len(), 16);
        assert!(Arc::try_unwrap(shared).is_ok());
    });
}

#[test]
fn what_is_dropped_lives_until_the_work_is_done() {
    with_device(|instance, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 4096).unwrap();
        {
            let pending = held.stream.copy(Pinned::<u8>::zeroed(device, 4096).unwrap(), &memory).unwrap();
            assert!(!pending.is_complete().unwrap());
        }
        drop(memory);
        // The pinned array, the gate and the device memory.
        assert_eq!(instance.stats().unwrap().pinned.live_count, 2);
        assert_eq!(instance.stats().unwrap().device.live_count, 1);
        held.release();
        held.stream.synchronize().unwrap();
        assert_eq!(instance.stats().unwrap().pinned.live_count, 1);
        assert_eq!(instance.stats().unwrap().device.live_count, 0);
    });
}

#[test]
fn a_forgotten_result_keeps_its_memory_for_ever() {
    let instance = gpumem::Instance::open(common::backend()).unwrap();
    let device = instance.device(0).unwrap();
    {
        let stream = Stream::new(&device).unwrap();
        let memory = DeviceMemory::<u8>::new(&device, 64).unwrap();
        mem::forget(stream.copy(Pinned::<u8>::zeroed(&device, 64).unwrap(), &memory).unwrap());
        let registered = Registered::new(&device, vec![0u8; 64], &MemoryOptions::new()).unwrap();
        mem::forget(stream.copy(registered, &memory).unwrap());
        stream.synchronize().unwrap();
    }
    let stats = instance.stats().unwrap();
    assert_eq!((stats.pinned.live_count, stats.registered.live_count, stats.device.live_count), (1, 1, 0));
    // And with it the instance stays open, so that nothing dangles.
    let (instance, error) = instance.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    // SAFETY: nothing uses what was forgotten.
    let destroyed = unsafe { instance.close_by_force() }.map_err(|(_, error)| error).unwrap();
    assert_eq!(destroyed, 3); // The stream was kept by what was forgotten.
}

#[test]
fn closing_memory_that_work_uses_is_refused() {
    with_device(|_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        held.stream.fill(&memory, 1u8).unwrap();
        let (memory, error) = memory.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        held.release();
        held.stream.synchronize().unwrap();
        memory.close().map_err(|(_, error)| error).unwrap();
    });
}

#[test]
fn a_shared_source_stays_shared_while_it_is_read() {
    with_device(|_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        let mut source = Arc::new(Pinned::from_slice(device, &[1u8, 2, 3, 4]).unwrap());
        drop(held.stream.copy(&memory, source.clone()).unwrap());
        assert!(Arc::get_mut(&mut source).is_none());
        held.release();
        held.stream.synchronize().unwrap();
        assert!(Arc::get_mut(&mut source).is_some());
        assert_eq!(memory.to_vec().unwrap(), [1, 2, 3, 4]);
    });
}

#[test]
fn operands_that_do_not_fit_are_handed_back() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        let rejected = stream.copy(Pinned::<u8>::zeroed(device, 5).unwrap(), &memory).unwrap_err();
        assert_eq!(rejected.error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(rejected.given.0.len(), 5);
    });
}

#[test]
fn empty_work_is_complete() {
    with_device(|_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 0).unwrap();
        let pending = held.stream.copy(Pinned::<u8>::zeroed(device, 0).unwrap(), &memory).unwrap();
        assert!(pending.is_complete().unwrap());
        pending.wait().unwrap();
    });
}

#[test]
fn an_event_observes_the_work_before_it() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let (first, second) = (Event::new(device).unwrap(), Event::new(device).unwrap());
        assert!(first.is_complete().unwrap());
        stream.fill(&DeviceMemory::<u8>::new(device, 64).unwrap(), 1u8).unwrap();
        first.record(&stream).unwrap();
        second.record(&stream).unwrap();
        second.synchronize().unwrap();
        assert_eq!(instance.stats().unwrap().device.live_count, 0);
        assert!(first.is_complete().unwrap());
        assert!(second.elapsed_since(&first).unwrap().unwrap() >= 0.0);
        assert_eq!(first.info().unwrap().device_ordinal, 0);
        first.close().map_err(|(_, error)| error).unwrap();
    });
}

#[test]
fn an_event_lets_go_only_of_what_it_captured() {
    with_device(|instance, device| {
        let event = Event::with_options(device, EventFlags::DISABLE_TIMING, Some("early")).unwrap();
        assert_eq!(event.info().unwrap().name, "early");
        let held = Held::new(device);
        let other = Stream::new(device).unwrap();
        event.record(&other).unwrap();
        held.stream.fill(&DeviceMemory::<u8>::new(device, 64).unwrap(), 1u8).unwrap();
        event.synchronize().unwrap();
        assert_eq!(instance.stats().unwrap().device.live_count, 1);
        event.record(&held.stream).unwrap();
        assert!(!event.is_complete().unwrap());
        assert!(!event.synchronize_for(Duration::from_millis(1)).unwrap());
        assert_eq!(instance.stats().unwrap().device.live_count, 1);
        held.release();
        event.synchronize().unwrap();
        assert_eq!(instance.stats().unwrap().device.live_count, 0);
    });
}

#[test]
fn a_time_limit_runs_out() {
    with_device(|_, device| {
        let held = Held::new(device);
        assert!(!held.stream.is_complete().unwrap());
        assert!(!held.stream.synchronize_for(Duration::from_millis(1)).unwrap());
        held.release();
        assert!(held.stream.synchronize_for(Duration::MAX).unwrap());
    });
}

#[test]
fn streams_wait_for_each_other() {
    with_device(|_, device| {
        let (first, second) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let event = Event::new(device).unwrap();
        let memory = DeviceMemory::<u32>::new(device, 1).unwrap();
        first.fill(&memory, 1u32).unwrap();
        event.record(&first).unwrap();
        second.wait_event(&event).unwrap();
        second.fill(&memory, 2u32).unwrap();
        second.synchronize().unwrap();
        assert_eq!(memory.to_vec().unwrap(), [2]);
    });
}

#[test]
fn values_are_written_and_waited_for() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let words = Pinned::<AtomicU64>::zeroed(device, 2).unwrap();
        stream.write_value(&words, 1, u64::MAX).unwrap();
        stream.wait_value(&words, 1, WaitCondition::EQ, u64::MAX).unwrap();
        let numbers = DeviceMemory::<u32>::from_slice(device, &[0, 0]).unwrap();
        stream.write_value(&numbers, 1, 7).unwrap();
        assert_eq!(stream.write_value(&words, 2, 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
        stream.synchronize().unwrap();
        assert_eq!(words[1].load(Ordering::Acquire), u64::MAX);
        assert_eq!(numbers.to_vec().unwrap(), [0, 7]);
    });
}

#[test]
fn a_stream_that_waited_for_another_observes_its_work() {
    with_device(|instance, device| {
        let (stream, other) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let event = Event::new(device).unwrap();
        stream.fill(&DeviceMemory::<u8>::new(device, 64).unwrap(), 1u8).unwrap();
        event.record(&stream).unwrap();
        other.wait_event(&event).unwrap();
        assert_eq!(instance.stats().unwrap().device.live_count, 1);
        other.synchronize().unwrap();
        assert_eq!(instance.stats().unwrap().device.live_count, 0);
    });
}

#[test]
fn much_work_that_is_observed_elsewhere_lets_go_of_memory() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        // SAFETY: the stream outlives it.
        let twin = unsafe { Stream::wrap(device, stream.info().unwrap().native_stream) }.unwrap();
        for _ in 0..1000 {
            stream.fill(Pinned::<u8>::zeroed(device, 64).unwrap(), 1u8).unwrap();
            // Nothing tells the first about it.
            twin.synchronize().unwrap();
        }
        let live = instance.stats().unwrap().pinned.live_count;
        assert!(live <= 64, "{live}");
        drop(twin);
    });
}

#[test]
fn host_functions_run_in_order_and_may_panic() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let (sender, receiver) = mpsc::channel();
        let asked = instance.clone();
        let again = sender.clone();
        stream
            .launch_host_function(move || {
                again.send(asked.info().is_ok()).unwrap();
                again.send(asked.device(0).unwrap().memory().is_ok()).unwrap();
            })
            .unwrap();
        stream.launch_host_function(|| std::panic::resume_unwind(Box::new("on purpose"))).unwrap();
        stream.launch_host_function(move || sender.send(true).unwrap()).unwrap();
        stream.synchronize().unwrap();
        let said: Vec<bool> = receiver.iter().collect();
        assert_eq!((said[0], said[2], said.len()), (true, true, 3));
        assert_eq!(stream.panicked_functions(), 1);
    });
}

#[test]
fn memory_dropped_in_a_host_function_is_freed_later() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        stream.launch_host_function(move || drop(memory)).unwrap();
        stream.synchronize().unwrap();
        // The library refuses to free anything there; the next allocation tries again.
        drop(DeviceMemory::<u8>::new(device, 64).unwrap());
        assert_eq!(instance.stats().unwrap().device.live_count, 0);
    });
}

#[test]
fn streams_of_other_code_are_adopted() {
    if !is_host() {
        return with_device(|_, device| {
            let maker = Stream::new(device).unwrap();
            // SAFETY: the maker outlives the other.
            let stream = unsafe { Stream::wrap(device, maker.info().unwrap().native_stream) }.unwrap();
            assert!(stream.info().unwrap().wrapped);
            stream.synchronize().unwrap();
        });
    }
    with_device(|_, device| {
        let native = host::native_stream_create(device).unwrap();
        // SAFETY: made just now, and destroyed after the handle.
        let stream = unsafe { Stream::wrap(device, native) }.unwrap();
        assert!(stream.info().unwrap().wrapped);
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        stream.fill(&memory, 3u8).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(memory.to_vec().unwrap(), [3; 4]);
        drop(stream);
        // SAFETY: its handle is gone.
        unsafe { host::native_stream_destroy(device, native) }.unwrap();
    });
}

extern "C" {
    fn mmap(at: *mut c_void, size: usize, access: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn mprotect(at: *mut c_void, size: usize, access: i32) -> i32;
}

/// Work that fails when it runs, because the CPU's right to ordinary memory, which only unsafe code can give to it, is gone.
#[test]
fn a_failure_is_heard_by_all_who_wait() {
    if !is_host() {
        return; // It would be a mistake that the fake driver rightly reports.
    }
    with_device(|_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        let first = held.stream.copy(Pinned::<u8>::zeroed(device, 64).unwrap(), &memory).unwrap();
        // SAFETY: that the page goes is what is tested; nothing else uses it.
        unsafe {
            let page = mmap(std::ptr::null_mut(), 4096, 3, 0x22, -1, 0);
            let from = memory.device_address().unwrap() as *const c_void;
            device
                .instance()
                .copy_raw(Some(&held.stream), page, from, 64, &gpumem::CopyOptions::new())
                .unwrap();
            assert_eq!(mprotect(page, 4096, 0), 0);
        }
        let second = held.stream.copy(Pinned::<u8>::zeroed(device, 64).unwrap(), &memory).unwrap();
        held.release();
        let error = held.stream.synchronize().unwrap_err();
        for pending in [first, second] {
            let rejected = pending.wait().unwrap_err();
            assert_eq!(rejected.error.message(), error.message());
            // Having heard it, who waits gets back what the work used.
            rejected.given.wait().unwrap();
        }
        held.stream.synchronize().unwrap();
        held.stream.fill(&memory, 1u8).unwrap().wait().unwrap();
    });
}

#[test]
fn a_call_at_the_wrong_moment_is_no_failure_of_work() {
    if !is_host() {
        return;
    }
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        let pending = stream.copy(Pinned::<u8>::zeroed(device, 64).unwrap(), &memory).unwrap();
        host::stream_set_capturing(&stream, true).unwrap();
        assert_eq!(stream.synchronize().unwrap_err().kind(), ErrorKind::InvalidState);
        host::stream_set_capturing(&stream, false).unwrap();
        pending.wait().unwrap();
    });
}

#[test]
fn many_threads_share_one_device() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8u32 {
                let (stream, device) = (&stream, &device);
                scope.spawn(move || {
                    let own = Stream::new(device).unwrap();
                    for round in 0..50 {
                        let value = thread * 1000 + round;
                        let memory = DeviceMemory::<u32>::new(device, 64).unwrap();
                        let on = if round % 2 == 0 { stream } else { &own };
                        on.fill(&memory, value).unwrap();
                        let back = on.copy(Pinned::<u32>::zeroed(device, 64).unwrap(), &memory).unwrap();
                        let (back, _) = back.wait().unwrap();
                        assert!(back.iter().all(|found| *found == value));
                    }
                });
            }
        });
    });
}
