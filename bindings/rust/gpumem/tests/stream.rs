// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Work that runs later, and objects that are dropped or forgotten meanwhile.

mod common;

use std::future::Future;
use std::mem::{self, MaybeUninit};
use std::os::raw::c_void;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{backend, is_host, with_device, with_host};
use gpumem::{
    host, Backend, Buffer, BufferOptions, Device, DeviceMemory, ErrorKind, Event, EventFlags, HostOptions,
    Instance, Kind, Managed, Pinned, Pool, PoolOptions, Rectangle, Region, RegisterOptions, Registered,
    Rejected, Stream, StreamOptions, WaitCondition, WriteCombined,
};

/// A stream that waits until the word is set.
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
        // A failing test must not wait forever.
        self.release();
    }
}

/// A task that is told of each wake.
struct Task(Mutex<mpsc::Sender<()>>);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().send(()).unwrap();
    }
}

impl Task {
    fn waker() -> (Waker, mpsc::Receiver<()>) {
        let (sender, wakes) = mpsc::channel();
        (Waker::from(Arc::new(Self(Mutex::new(sender)))), wakes)
    }
}

/// Held by tests with tasks, and by those that lose a device: every task in the process wakes when a device is lost.
static TASKS: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    TASKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_task_awaits_its_work() {
    let _one = one_at_a_time();
    with_device(|_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::from_slice(device, &[7u32; 4]).unwrap();
        let mut pending = held.stream.copy(Pinned::<u32>::zeroed(device, 4).unwrap(), &memory).unwrap();
        let (first, no_wakes) = Task::waker();
        let (second, wakes) = Task::waker();
        assert!(poll(&mut pending, &first).is_pending());
        // The last waker counts, and a poll without news enqueues nothing more.
        assert!(poll(&mut pending, &second).is_pending());
        held.release();
        wakes.recv().unwrap();
        // What is enqueued later is not waited for.
        let gate = Pinned::<AtomicU32>::zeroed(device, 1).unwrap();
        held.stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
        let done = poll(&mut pending, &second);
        gate[0].store(1, Ordering::Release);
        held.stream.synchronize().unwrap();
        match done {
            Poll::Ready(Ok((received, _))) => assert_eq!(*received, [7; 4]),
            other => panic!("{other:?}"),
        }
        drop((first, second));
        assert!(wakes.recv().is_err() && no_wakes.recv().is_err());

        // Complete work is ready at once.
        let mut ready = held.stream.fill(&memory, 1u32).unwrap();
        held.stream.synchronize().unwrap();
        let (waker, _) = Task::waker();
        assert!(matches!(poll(&mut ready, &waker), Poll::Ready(Ok(_))));
        // It has nothing to return again.
        match poll(&mut ready, &waker) {
            Poll::Ready(Err(rejected)) => assert_eq!(rejected.error.kind(), ErrorKind::InvalidState),
            other => panic!("{other:?}"),
        }
        let rejected = ready.wait().unwrap_err();
        assert_eq!(
            (rejected.error.kind(), rejected.error.function()),
            (ErrorKind::InvalidState, "Pending::wait")
        );
        assert!(rejected.given.wait().is_err());
    });
}

/// A task that waits for its stream when it is dropped.
struct Owner {
    held: Arc<Held>,
    over: Mutex<mpsc::Sender<bool>>,
}

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.held.release();
        let watchdog = Duration::from_secs(60);
        let over = self.held.stream.synchronize_for(watchdog).unwrap();
        self.over.lock().unwrap().send(over).unwrap();
    }
}

#[test]
fn a_waker_that_another_one_replaces_may_wait_for_the_stream() {
    let _one = one_at_a_time();
    with_device(|_, device| {
        let held = Arc::new(Held::new(device));
        let memory = DeviceMemory::<u32>::new(device, 4).unwrap();
        let mut pending = held.stream.fill(&memory, 1u32).unwrap();
        let (over, told) = mpsc::channel();
        let first = Waker::from(Arc::new(Owner { held: held.clone(), over: Mutex::new(over) }));
        assert!(poll(&mut pending, &first).is_pending());
        drop(first);
        let (second, wakes) = Task::waker();
        assert!(poll(&mut pending, &second).is_pending());
        assert!(told.recv().unwrap(), "the stream waits for the lock that the poll holds");
        wakes.recv().unwrap();
        assert!(matches!(poll(&mut pending, &second), Poll::Ready(Ok(_))));
    });
}

#[test]
fn a_task_wakes_when_its_device_is_lost() {
    let _one = one_at_a_time();
    with_device(|_, device| {
        if !is_host() {
            return;
        }
        let held = Held::new(device);
        let memory = DeviceMemory::<u32>::new(device, 4).unwrap();
        let mut pending = held.stream.fill(&memory, 1u32).unwrap();
        let (waker, wakes) = Task::waker();
        assert!(poll(&mut pending, &waker).is_pending());
        host::device_lose(device).unwrap();
        assert_eq!(held.stream.is_complete().unwrap_err().kind(), ErrorKind::DeviceLost);
        wakes.recv().unwrap();
        match poll(&mut pending, &waker) {
            Poll::Ready(Err(rejected)) => assert_eq!(rejected.error.kind(), ErrorKind::DeviceLost),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn any_call_that_finds_the_device_lost_wakes_its_tasks() {
    let _one = one_at_a_time();
    with_device(|_, device| {
        if !is_host() {
            return;
        }
        let (held, other) = (Held::new(device), Stream::new(device).unwrap());
        let memory = DeviceMemory::<u32>::new(device, 4).unwrap();
        let mut pending = held.stream.fill(&memory, 1u32).unwrap();
        let (waker, wakes) = Task::waker();
        assert!(poll(&mut pending, &waker).is_pending());
        // A task of another device is woken too, and goes on waiting.
        let instance = Instance::open(Backend::HOST).unwrap();
        let whole = instance.device(0).unwrap();
        let whole_held = Held::new(&whole);
        let whole_memory = DeviceMemory::<u32>::new(&whole, 4).unwrap();
        let mut whole_pending = whole_held.stream.fill(&whole_memory, 1u32).unwrap();
        let (whole_waker, whole_wakes) = Task::waker();
        assert!(poll(&mut whole_pending, &whole_waker).is_pending());

        host::device_lose(device).unwrap();
        assert_eq!(other.synchronize().unwrap_err().kind(), ErrorKind::DeviceLost);
        wakes.recv().unwrap();
        match poll(&mut pending, &waker) {
            Poll::Ready(Err(rejected)) => assert_eq!(rejected.error.kind(), ErrorKind::DeviceLost),
            answer => panic!("{answer:?}"),
        }
        whole_wakes.recv().unwrap();
        assert!(poll(&mut whole_pending, &whole_waker).is_pending());
        whole_held.release();
        whole_wakes.recv().unwrap();
        assert!(matches!(poll(&mut whole_pending, &whole_waker), Poll::Ready(Ok(_))));
    });
}

#[test]
fn copies_return_their_operands() {
    with_device(|_, device| {
        let stream = Stream::with_options(device, &StreamOptions::new().priority(0).name("copies")).unwrap();
        let info = stream.info().unwrap();
        assert_eq!((info.name.as_str(), info.wrapped), ("copies", false));
        assert_ne!(info.id, Stream::new(device).unwrap().info().unwrap().id);
        assert_eq!(info.id, stream.info().unwrap().id);
        let memory = DeviceMemory::<u32>::new(device, 1000).unwrap();
        let sent = Pinned::from_slice(device, &(0..1000).collect::<Vec<u32>>()).unwrap();
        let received = Pinned::<u32>::zeroed(device, 1000).unwrap();
        let up = stream.copy(&memory, sent).unwrap();
        let down = stream.copy(received, &memory).unwrap();
        let (received, _) = down.wait().unwrap();
        let (_, sent) = up.wait().unwrap();
        assert_eq!(*sent, *received);
        assert!(stream.is_complete().unwrap());
        sent.close().unwrap();
        stream.close().unwrap();
    });
}

#[test]
fn each_kind_can_be_enqueued() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 16).unwrap();
        let mut combined = WriteCombined::<u8>::new(device, 8).unwrap();
        combined.write_all(3);
        let registered = Registered::new(device, vec![1u8; 16], &RegisterOptions::new()).unwrap();
        let (_, registered) = stream.copy(&memory, registered).unwrap().wait().unwrap();
        drop(stream.copy(memory.slice(8..).unwrap(), combined).unwrap());
        drop(stream.copy_from_slice(memory.slice(..2).unwrap(), &[9u8, 8]).unwrap());
        drop(stream.fill_bytes(memory.slice(2..3).unwrap(), 7).unwrap());
        let rectangle = Rectangle { width: 1, height: 2, destination_pitch: 2, source_pitch: 1 };
        drop(stream.fill_2d(memory.slice(3..6).unwrap(), &rectangle, 5u8).unwrap());
        let shared = Arc::new(Pinned::from_slice(device, &[40u8, 41]).unwrap());
        drop(stream.copy_2d(memory.slice(12..15).unwrap(), shared.clone(), &rectangle).unwrap());
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
fn a_part_of_an_array_is_enqueued_and_the_whole_returned() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::from_slice(device, &[1u8, 2, 3, 4]).unwrap();
        let array = Pinned::from_slice(device, &[5u8, 6, 7, 8]).unwrap();
        let Rejected { given: array, error, .. } = array.into_part(2..5).unwrap_err();
        assert_eq!((error.kind(), error.function()), (ErrorKind::InvalidArgument, "Pinned::into_part"));
        let part = array.into_part(1..3).unwrap();
        assert!(part.len() == 2 && !part.is_empty());
        let rejected = stream.copy(&memory, part).unwrap_err();
        let (_, array) = rejected.given;
        let part = array.into_part(1..3).unwrap();
        let (_, array) = stream.copy(memory.slice(2..).unwrap(), part).unwrap().wait().unwrap();
        assert_eq!((&*array, &*memory.to_vec().unwrap()), (&[5, 6, 7, 8][..], &[1, 2, 6, 7][..]));
        let part = array.into_part(..1).unwrap();
        let (array, _) = stream.copy(part, memory.slice(..1).unwrap()).unwrap().wait().unwrap();
        let array = stream.fill(array.into_part(3..).unwrap(), 9u8).unwrap().wait().unwrap();
        assert_eq!(*array.into_part(..0).unwrap().into_array(), [1, 6, 7, 9]);

        let mut combined = WriteCombined::<u8>::new(device, 4).unwrap();
        combined.write_all(3);
        let registered = Registered::new(device, vec![4u8; 4], &RegisterOptions::new()).unwrap();
        let managed = Managed::from_slice(device, &[5u8; 4]).unwrap();
        drop(stream.copy(memory.slice(..1).unwrap(), combined.into_part(3..).unwrap()).unwrap());
        drop(stream.copy(memory.slice(1..2).unwrap(), registered.into_part(3..).unwrap()).unwrap());
        drop(stream.copy(memory.slice(2..3).unwrap(), managed.into_part(3..).unwrap()).unwrap());
        stream.synchronize().unwrap();
        assert_eq!(memory.to_vec().unwrap(), [3, 4, 5, 7]);
    });
}

#[test]
fn dropped_memory_lives_until_the_work_is_done() {
    with_device(|instance, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 4096).unwrap();
        {
            let pending = held.stream.copy(Pinned::<u8>::zeroed(device, 4096).unwrap(), &memory).unwrap();
            assert!(!pending.is_complete().unwrap());
        }
        drop(memory);
        // The pinned array, the gate and the device memory.
        assert_eq!(instance.kind_stats(Kind::PINNED).unwrap().live_count, 2);
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 1);
        held.release();
        held.stream.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::PINNED).unwrap().live_count, 1);
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 0);
    });
}

#[test]
fn a_stream_returns_operands_after_its_close() {
    with_device(|_, device| {
        let memory = DeviceMemory::<u32>::new(device, 64).unwrap();
        let (first, second) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let pending = first.copy(&memory, Pinned::<u32>::zeroed(device, 64).unwrap()).unwrap();
        let event = Event::new(device).unwrap();
        event.record(&first).unwrap();
        second.wait_event(&event).unwrap();
        drop(second.fill(&memory, 1u32).unwrap());
        // Another stream observes the work.
        second.synchronize().unwrap();
        first.close().unwrap();
        assert!(pending.is_complete().unwrap());
        let (_, array) = pending.wait().unwrap();
        assert_eq!(array.len(), 64);
    });
}

#[test]
fn a_forgotten_result_keeps_its_memory_forever() {
    let instance = gpumem::Instance::open(common::backend()).unwrap();
    let device = instance.device(0).unwrap();
    {
        let stream = Stream::new(&device).unwrap();
        let memory = DeviceMemory::<u8>::new(&device, 64).unwrap();
        mem::forget(stream.copy(Pinned::<u8>::zeroed(&device, 64).unwrap(), &memory).unwrap());
        let registered = Registered::new(&device, vec![0u8; 64], &RegisterOptions::new()).unwrap();
        mem::forget(stream.copy(registered, &memory).unwrap());
        stream.synchronize().unwrap();
    }
    let live = |kind| instance.kind_stats(kind).unwrap().live_count;
    assert_eq!((live(Kind::PINNED), live(Kind::REGISTERED), live(Kind::DEVICE)), (1, 1, 0));
    // The instance stays open with it, so that nothing dangles.
    let Rejected { given: instance, error, .. } = instance.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    // SAFETY: nothing uses the forgotten memory.
    let destroyed = unsafe { instance.close_by_force() }.unwrap();
    assert_eq!(destroyed, 3); // What was forgotten keeps the stream alive.
}

#[test]
fn closing_memory_that_work_uses_is_refused() {
    with_device(|_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        drop(held.stream.fill(&memory, 1u8).unwrap());
        let Rejected { given: memory, error, .. } = memory.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().starts_with("DeviceMemory::close: work that uses"), "{error}");
        assert_eq!(error.function(), "gpumem_memory_destroy");
        held.release();
        held.stream.synchronize().unwrap();
        memory.close().unwrap();
    });
}

#[test]
fn atomics_are_shared_while_work_writes_them() {
    let values = |atomics: &[AtomicU32]| -> Vec<u32> {
        atomics.iter().map(|atomic| atomic.load(Ordering::Relaxed)).collect()
    };
    with_device(|instance, device| {
        let memory = DeviceMemory::from_slice(device, &[1u32, 2, 3, 4]).unwrap();
        let pinned = Arc::new(Pinned::<AtomicU32>::zeroed(device, 4).unwrap());
        let held = Held::new(device);
        drop(held.stream.copy(pinned.slice(..3).unwrap(), memory.slice(1..).unwrap()).unwrap());
        drop(held.stream.fill(pinned.slice(3..).unwrap(), 9u32).unwrap());
        // Another thread sees what arrives, and shares the array.
        let reader = std::thread::spawn({
            let pinned = pinned.clone();
            move || {
                while pinned[3].load(Ordering::Acquire) != 9 {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(values(&pinned), [0; 4]);
        held.release();
        reader.join().unwrap();
        held.stream.synchronize().unwrap();
        assert_eq!(values(&pinned), [2, 3, 4, 9]);

        // Work that was not observed still uses what it was given.
        let registered: Vec<AtomicU32> = (5..9).map(AtomicU32::new).collect();
        let registered = Registered::new(device, registered, &RegisterOptions::new()).unwrap();
        let stream = Stream::new(device).unwrap();
        drop(stream.copy(registered.slice(2..).unwrap(), memory.slice(..2).unwrap()).unwrap());
        let registered = registered.into_vec().unwrap_err();
        assert_eq!(registered.error.kind(), ErrorKind::Busy);
        stream.synchronize().unwrap();
        assert_eq!(values(&registered.given.into_vec().unwrap()), [5, 6, 1, 2]);

        // An array that is dropped lives until the work is done.
        let held = Held::new(device);
        drop(held.stream.copy(&memory, &*pinned).unwrap());
        drop(held.stream.fill_bytes(&*pinned, 0).unwrap());
        let others = instance.kind_stats(Kind::PINNED).unwrap().live_count;
        drop(pinned);
        assert_eq!(instance.kind_stats(Kind::PINNED).unwrap().live_count, others);
        held.release();
        held.stream.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::PINNED).unwrap().live_count, others - 1);
        assert_eq!(memory.to_vec().unwrap(), [2, 3, 4, 9]);
    });
}

#[test]
fn atomics_are_operands_as_their_numbers() {
    with_device(|instance, device| {
        let memory = DeviceMemory::<u64>::new(device, 3).unwrap();
        let atomics = [1, 2, 3].map(AtomicU64::new);
        instance.copy(&memory, &atomics[..]).unwrap();
        let pinned = Pinned::<AtomicU64>::zeroed(device, 4).unwrap();
        instance.copy(pinned.slice(1..).unwrap(), &memory).unwrap();
        instance.copy(&memory, &pinned[..3]).unwrap();
        assert_eq!(memory.to_vec().unwrap(), [0, 1, 2]);
        instance.copy(&atomics[1..], memory.slice(1..).unwrap()).unwrap();
        assert_eq!(atomics.map(AtomicU64::into_inner), [1, 1, 2]);
        let registered = vec![AtomicU64::new(7), AtomicU64::new(8)];
        let registered = Registered::new(device, registered, &RegisterOptions::new()).unwrap();
        instance.copy(pinned.slice(2..).unwrap(), &registered).unwrap();
        instance.copy_regions([Region::new(&registered, pinned.slice(3..).unwrap(), 1)]).unwrap();
        assert_eq!((registered[0].load(Ordering::Relaxed), pinned[2].load(Ordering::Relaxed)), (8, 7));

        let error = instance.copy(&pinned, &registered).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = registered.slice(1..3).unwrap_err();
        assert_eq!((error.kind(), error.function()), (ErrorKind::InvalidArgument, "Registered::slice"));
        let stream = Stream::new(device).unwrap();
        let empty = Pinned::<AtomicU64>::zeroed(device, 0).unwrap();
        stream.copy(&empty, pinned.slice(4..).unwrap()).unwrap().wait().unwrap();
        let rejected = stream.copy(&pinned, &memory).unwrap_err();
        assert_eq!(rejected.error.kind(), ErrorKind::InvalidArgument);
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
fn operands_that_do_not_fit_are_returned() {
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
        let region = Region::new(Pinned::<u8>::zeroed(device, 0).unwrap(), &memory, 0);
        let pending = held.stream.copy_regions([region]).unwrap();
        assert!(pending.is_complete().unwrap());
        assert_eq!(pending.wait().unwrap().len(), 1);
    });
}

#[test]
fn an_event_observes_the_work_before_it() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let (first, second) = (Event::new(device).unwrap(), Event::new(device).unwrap());
        assert!(first.is_complete().unwrap());
        drop(stream.fill(&DeviceMemory::<u8>::new(device, 64).unwrap(), 1u8).unwrap());
        first.record(&stream).unwrap();
        second.record(&stream).unwrap();
        second.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 0);
        assert!(first.is_complete().unwrap());
        assert!(second.nanoseconds_since(&first).unwrap().unwrap() >= 0);
        assert_eq!(first.info().unwrap().device_ordinal, 0);
        first.close().unwrap();
    });
}

#[test]
fn an_event_releases_only_what_was_recorded() {
    with_device(|instance, device| {
        let event = Event::with_options(device, EventFlags::DISABLE_TIMING, Some("early")).unwrap();
        assert_eq!(event.info().unwrap().name, "early");
        let held = Held::new(device);
        let other = Stream::new(device).unwrap();
        event.record(&other).unwrap();
        drop(held.stream.fill(&DeviceMemory::<u8>::new(device, 64).unwrap(), 1u8).unwrap());
        event.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 1);
        event.record(&held.stream).unwrap();
        assert!(!event.is_complete().unwrap());
        assert!(!event.synchronize_for(Duration::from_millis(1)).unwrap());
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 1);
        held.release();
        event.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 0);
    });
}

#[test]
fn a_timeout_expires() {
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
        drop(first.fill(&memory, 1u32).unwrap());
        event.record(&first).unwrap();
        second.wait_event(&event).unwrap();
        drop(second.fill(&memory, 2u32).unwrap());
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
        let wide = stream.write_value(&numbers, 1, 1 << 32).unwrap_err();
        assert_eq!(
            wide.message(),
            "the value 0x100000000 does not fit in a word of 32 bits; use words of 64 bits"
        );
        let wide = stream.wait_value(&numbers, 1, WaitCondition::EQ, 7 + (1 << 32)).unwrap_err();
        assert_eq!((wide.kind(), wide.function()), (ErrorKind::InvalidArgument, "Stream::wait_value"));
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
        drop(stream.fill(&DeviceMemory::<u8>::new(device, 64).unwrap(), 1u8).unwrap());
        event.record(&stream).unwrap();
        other.wait_event(&event).unwrap();
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 1);
        other.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 0);
    });
}

#[test]
fn memory_of_much_work_that_is_observed_elsewhere_is_released() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        // SAFETY: the stream outlives it.
        let twin = unsafe { Stream::wrap(device, stream.info().unwrap().native_stream) }.unwrap();
        for _ in 0..1000 {
            drop(stream.fill(Pinned::<u8>::zeroed(device, 64).unwrap(), 1u8).unwrap());
            // The first stream does not see it.
            twin.synchronize().unwrap();
        }
        let live = instance.kind_stats(Kind::PINNED).unwrap().live_count;
        assert!(live <= 64, "{live}");
        drop(twin);
    });
}

#[test]
fn host_functions_run_in_order_and_may_panic() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let (sender, receiver) = mpsc::channel();
        let queried = instance.clone();
        let again = sender.clone();
        stream
            .launch_host_function(move || {
                again.send(queried.info().is_ok()).unwrap();
                again.send(queried.device(0).unwrap().memory().is_ok()).unwrap();
            })
            .unwrap();
        stream.launch_host_function(|| std::panic::resume_unwind(Box::new("on purpose"))).unwrap();
        stream.launch_host_function(move || sender.send(true).unwrap()).unwrap();
        stream.synchronize().unwrap();
        let sent: Vec<bool> = receiver.iter().collect();
        assert_eq!((sent[0], sent[2], sent.len()), (true, true, 3));
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
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 0);
    });
}

/// As an executor does that drops a task which waits for a `Pending`.
#[test]
fn a_stream_dropped_in_a_host_function_frees_what_its_work_used() {
    with_device(|instance, device| {
        let stream = Arc::new(Stream::new(device).unwrap());
        let memory = DeviceMemory::<u32>::new(device, 64).unwrap();
        drop(stream.fill(&memory, 1).unwrap());
        let (go_on, told) = mpsc::channel::<()>();
        let last_owner = Arc::clone(&stream);
        stream
            .launch_host_function(move || {
                let _ = told.recv();
                drop(last_owner);
            })
            .unwrap();
        drop((stream, memory));
        go_on.send(()).unwrap();
        // The library refuses to end it there; an allocation after that tries again.
        let begin = Instant::now();
        while instance.stats().unwrap().live_count != 0 {
            drop(DeviceMemory::<u8>::new(device, 64).unwrap());
            assert!(begin.elapsed() < Duration::from_secs(120), "it is never freed");
        }
    });
}

#[test]
fn streams_of_other_code_are_wrapped() {
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
        // SAFETY: created just now, and destroyed after the handle.
        let stream = unsafe { Stream::wrap(device, native) }.unwrap();
        assert!(stream.info().unwrap().wrapped);
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        drop(stream.fill(&memory, 3u8).unwrap());
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

/// Work that fails when it runs, because its ordinary memory is not accessible any more. Only unsafe code can enqueue
/// such work.
#[test]
fn every_wait_reports_a_failure_of_work() {
    if !is_host() {
        return; // The fake driver would report the mistake.
    }
    with_device(|_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        let first = held.stream.copy(Pinned::<u8>::zeroed(device, 64).unwrap(), &memory).unwrap();
        // SAFETY: the access that fails is what is tested; nothing else uses the page.
        unsafe {
            let page = mmap(std::ptr::null_mut(), 4096, 3, 0x22, -1, 0);
            let from = memory.device_address().unwrap() as *const c_void;
            held.stream.copy_raw(page, from, 64, &gpumem::CopyOptions::new()).unwrap();
            assert_eq!(mprotect(page, 4096, 0), 0);
        }
        let second = held.stream.copy(Pinned::<u8>::zeroed(device, 64).unwrap(), &memory).unwrap();
        held.release();
        let error = held.stream.synchronize().unwrap_err();
        for pending in [first, second] {
            let rejected = pending.wait().unwrap_err();
            assert_eq!(rejected.error.message(), error.message());
            // Another wait returns the operands.
            rejected.given.wait().unwrap();
        }
        held.stream.synchronize().unwrap();
        held.stream.fill(&memory, 1u8).unwrap().wait().unwrap();
    });
}

#[test]
fn a_call_at_the_wrong_moment_is_not_a_failure_of_work() {
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
fn regions_are_returned_and_kept_alive() {
    with_device(|instance, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 16).unwrap();
        instance.fill(&memory, 0u8).unwrap();
        let shared = Arc::new(Pinned::from_slice(device, &[1u8, 2, 3, 4, 5, 6, 7, 8]).unwrap());
        let regions = [
            Region::new(memory.slice(..8).unwrap(), shared.clone(), 2).height(2).source_row_pitch(4),
            Region::new(memory.slice(8..).unwrap(), shared.clone(), 3),
        ];
        let pending = held.stream.copy_regions(regions).unwrap();
        assert!(!pending.is_complete().unwrap());
        drop(pending);
        // The gate and the shared array.
        drop(shared);
        assert_eq!(instance.kind_stats(Kind::PINNED).unwrap().live_count, 2);
        held.release();
        held.stream.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::PINNED).unwrap().live_count, 1);
        assert_eq!(memory.to_vec().unwrap(), [1, 2, 5, 6, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0]);

        let back = |len| Pinned::<u8>::zeroed(device, len).unwrap();
        let regions =
            vec![Region::new(back(4), memory.as_slice(), 4), Region::new(back(2), memory.as_slice(), 1)];
        let regions = held.stream.copy_regions(regions).unwrap().wait().unwrap();
        assert_eq!((&*regions[0].destination, &*regions[1].destination), (&[1, 2, 5, 6][..], &[1, 0][..]));
        let none = Vec::<Region<Pinned<u8>, &DeviceMemory<u8>>>::new();
        assert!(held.stream.copy_regions(none).unwrap().wait().unwrap().is_empty());
    });
}

#[test]
fn a_batch_that_fails_returns_its_regions_when_nothing_uses_them() {
    with_device(|_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u8>::new(device, 16).unwrap();
        let pinned = || Pinned::<u8>::zeroed(device, 8).unwrap();
        // The crate refuses it before anything is enqueued, so there is nothing to wait for.
        let regions = [Region::new(&memory, pinned(), 8), Region::new(&memory, pinned(), 9)];
        let rejected = held.stream.copy_regions(regions).unwrap_err();
        assert_eq!((rejected.error.kind(), rejected.error.region()), (ErrorKind::InvalidArgument, Some(1)));
        let returned = rejected.given.wait().unwrap();
        assert_eq!(returned.len(), 2);

        // The library refuses it; the crate does not know whether something was enqueued.
        let overlapping = DeviceMemory::<u8>::new(device, 16).unwrap();
        let regions = [(0, 8), (4, 0)].map(|(to, from)| {
            Region::new(overlapping.slice(to..).unwrap(), overlapping.slice(from..).unwrap(), 8)
        });
        let rejected = held.stream.copy_regions(regions).unwrap_err();
        assert_eq!((rejected.error.kind(), rejected.error.region()), (ErrorKind::InvalidArgument, Some(1)));
        assert_eq!(rejected.error.function(), "gpumem_copy_regions_async");
        assert!(!rejected.given.is_complete().unwrap());
        // Freeing pinned memory may wait for the device, so it happens after this.
        held.release();
        assert_eq!(rejected.given.wait().unwrap().len(), 2);
        drop(returned);
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
                        drop(on.fill(&memory, value).unwrap());
                        let back = on.copy(Pinned::<u32>::zeroed(device, 64).unwrap(), &memory).unwrap();
                        let (back, _) = back.wait().unwrap();
                        assert!(back.iter().all(|found| *found == value));
                    }
                });
            }
        });
    });
}

/// As everywhere: it may still be written, so it is never freed.
#[test]
fn what_a_stream_used_stays_if_the_device_is_lost_before_the_stream_ends() {
    let _one = one_at_a_time();
    if !is_host() {
        return;
    }
    let instance = Instance::open(Backend::HOST).unwrap();
    let device = instance.device(0).unwrap();
    let (stream, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let gate = Pinned::<AtomicU32>::zeroed(&device, 1).unwrap();
    stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
    let memory = DeviceMemory::<u32>::new(&device, 1000).unwrap();
    let shared = Arc::new(Pinned::<u32>::zeroed(&device, 1000).unwrap());
    let owners = Arc::downgrade(&shared);
    drop(stream.copy(&memory, shared).unwrap());
    // The library refuses to end it there, so it waits for the next allocation.
    other.launch_host_function(move || drop(stream)).unwrap();
    other.synchronize().unwrap();
    host::device_lose(&device).unwrap();
    let _ = Stream::new(&device);
    assert!(owners.upgrade().is_some());
    // SAFETY: nothing of it is used any more.
    unsafe { instance.close_by_force() }.unwrap();
}

/// The work of a lost device may go on, whether its stream is still there or not.
#[test]
fn a_block_of_a_lost_device_is_not_lent_to_the_cpu_when_its_stream_is_gone() {
    let _one = one_at_a_time();
    if !is_host() {
        return;
    }
    let instance = Instance::open(Backend::HOST).unwrap();
    let device = instance.device(0).unwrap();
    let pool = Pool::with_options(&device, &PoolOptions::new().kind(Kind::PINNED)).unwrap();
    let gate = Pinned::<AtomicU32>::zeroed(&device, 1).unwrap();
    let stream = Stream::new(&device).unwrap();
    let mut block = pool.alloc::<u32>(1000, Some(&stream)).unwrap();
    stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
    drop(stream.fill(&block, 7u32).unwrap());
    host::device_lose(&device).unwrap();
    assert_eq!(block.host_mut().unwrap_err().kind(), ErrorKind::DeviceLost);
    drop(stream);
    assert_eq!(block.host_mut().unwrap_err().kind(), ErrorKind::DeviceLost);
    drop(block);
    // SAFETY: nothing of it is used any more.
    unsafe { instance.close_by_force() }.unwrap();
}

/// They are unregistered, but the work of a lost device may still write them, so they are neither returned nor freed.
#[test]
fn registered_arrays_of_a_lost_device_hold_up_no_close() {
    let _one = one_at_a_time();
    with_host(HostOptions::new(), |_, device| {
        let held = Held::new(device);
        let memory = DeviceMemory::<u32>::new(device, 1000).unwrap();
        let register = |values: Vec<u32>| Registered::new(device, values, &RegisterOptions::new()).unwrap();
        let pending = held.stream.copy(register(vec![1; 1000]), &memory).unwrap();
        let values: Vec<_> = (0..1000).map(AtomicU32::new).collect();
        let shared = Registered::new(device, values, &RegisterOptions::new()).unwrap();
        drop(held.stream.copy(&shared, &memory).unwrap());
        let mut buffer = Buffer::<u32>::with_options(device, 1000, &BufferOptions::new().host()).unwrap();
        drop(held.stream.fill(&buffer, 7u32).unwrap());

        host::device_lose(device).unwrap();
        let error = buffer.host_mut().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(held.stream.synchronize().unwrap_err().kind(), ErrorKind::DeviceLost);
        let error = buffer.host_mut().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost);
        assert!(error.message().ends_with("; drop the buffer"), "{error}");
        let Rejected { given: shared, error, .. } = shared.into_vec().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost);
        assert!(error.to_string().starts_with("Registered::into_vec: the device was lost"), "{error}");
        shared.close().unwrap();
        buffer.close().unwrap();
        let rejected = pending.wait().unwrap_err();
        assert_eq!(rejected.error.kind(), ErrorKind::DeviceLost);
    });
}

#[test]
fn a_close_says_what_still_uses_what_was_dropped() {
    let mut instance = Instance::open(backend()).unwrap();
    let device = instance.device(0).unwrap();
    let (stream, other) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let memory = DeviceMemory::<u32>::new(&device, 1000).unwrap();
    let (go_on, told) = mpsc::channel::<()>();
    stream
        .launch_host_function(move || {
            let _ = told.recv();
        })
        .unwrap();
    drop(stream.fill(&memory, 7u32).unwrap());
    // A stream that is dropped there cannot wait.
    other.launch_host_function(move || drop(stream)).unwrap();
    other.synchronize().unwrap();
    drop((memory, other, device));
    let rejected = instance.close().unwrap_err();
    drop(go_on);
    let error = rejected.error;
    assert!(error.message().contains("; some of it was dropped while in use: close again when"), "{error}");
    instance = rejected.given;
    let begin = Instant::now();
    while let Err(rejected) = instance.close() {
        instance = rejected.given;
        assert!(begin.elapsed() < Duration::from_secs(120), "it is never closed: {}", rejected.error);
    }
}
