// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Managed memory: accesses of the CPU, attaching, hints.

mod common;

use std::mem::{self, MaybeUninit};
use std::os::raw::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use common::{is_host, with_device, with_host};
use gpumem::{
    host, sys, Access, Advice, Attach, Capability, Device, DeviceMemory, ErrorKind, HostOptions, Kind,
    Managed, MemoryFlags, MemoryOptions, Pinned, Place, Processor, Rectangle, Region, Rejected, Stream,
    WaitCondition,
};

/// A stream whose work waits until the word is set, so that its device is active.
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

/// Old GPUs: the CPU must not touch managed memory while the device is active.
fn not_concurrent() -> HostOptions {
    HostOptions::new().concurrent(false)
}

fn is(device: &Device, capability: Capability) -> bool {
    device.capability(capability, None).unwrap().is_supported()
}

/// Elements of an array of several pages.
const LEN: usize = 1 << 16;

#[test]
fn the_cpu_and_a_device_share_an_array() {
    with_device(|instance, device| {
        let options = MemoryOptions::new().name("shared");
        let mut array = Managed::<u32>::zeroed_with_options(device, LEN, &options).unwrap();
        assert!(array.host().unwrap().iter().all(|value| *value == 0));
        array.host_mut().unwrap()[LEN - 1] = 7;
        let info = array.info().unwrap().unwrap();
        assert_eq!((info.kind, info.size, info.name.as_str()), (Kind::MANAGED, 4 * LEN as u64, "shared"));
        assert_eq!(info.host_pointer as u64, array.device_address().unwrap());
        assert_eq!(array.as_ptr() as u64, array.device_address().unwrap());
        assert_eq!(instance.kind_stats(Kind::MANAGED).unwrap().live_bytes, 4 * LEN as u64);
        let known = instance.pointer_info(array.as_ptr().cast()).unwrap();
        assert_eq!((known.kind, known.size), (Kind::MANAGED, 4 * LEN as u64));
        let access = instance.pointer_access(array.as_ptr().cast(), Processor::Device(0)).unwrap();
        assert_eq!(access, Access::READ_WRITE);

        let memory = DeviceMemory::<u32>::new(device, LEN).unwrap();
        instance.copy(&memory, &array).unwrap();
        assert_eq!(memory.to_vec().unwrap()[LEN - 2..], [0, 7]);
        instance.fill(&mut array, 9u32).unwrap();
        assert_eq!(array.host().unwrap()[LEN - 1], 9);
        array.close().unwrap();
        assert_eq!(instance.kind_stats(Kind::MANAGED).unwrap().live_count, 0);
    });
}

#[test]
fn values_are_given_at_the_start_or_later() {
    with_device(|instance, device| {
        let mut array = Managed::from_slice(device, &[1.5f64, 2.5]).unwrap();
        assert_eq!(format!("{:?}", array.host().unwrap()), "[1.5, 2.5]");
        assert_eq!(format!("{:?}", array.host_mut().unwrap()), "[1.5, 2.5]");
        let mut later = Managed::<MaybeUninit<f64>>::uninit(device, 2).unwrap();
        instance.copy(&mut later, &array).unwrap();
        // SAFETY: the copy wrote all of it.
        let later = unsafe { later.assume_init() };
        assert_eq!(*later.host().unwrap(), [1.5, 2.5]);
    });
}

#[test]
fn streams_take_it_and_return_it() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 4).unwrap();
        let array = Managed::from_slice(device, &[1u8, 2, 3, 4]).unwrap();
        let (_, array) = stream.copy(&memory, array).unwrap().wait().unwrap();
        let array = stream.fill(array, 9u8).unwrap().wait().unwrap();
        assert_eq!(*array.host().unwrap(), [9; 4]);
        let (array, _) = stream.copy(array, &memory).unwrap().wait().unwrap();
        assert_eq!(*array.host().unwrap(), [1, 2, 3, 4]);
        let shared = Arc::new(array);
        drop(stream.copy(&memory, shared.clone()).unwrap());
        stream.synchronize().unwrap();
        assert!(Arc::try_unwrap(shared).is_ok());
    });
}

#[test]
fn a_guard_can_be_sent_to_another_thread() {
    with_device(|_, device| {
        let mut array = Managed::<u32>::zeroed(device, 2).unwrap();
        let mut guard = array.host_mut().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || guard[1] = 5);
        });
        let (first, second) = (array.host().unwrap(), array.host().unwrap());
        assert!(*first == [0, 5] && *second == [0, 5]);
    });
}

#[test]
fn arrays_without_bytes_never_reach_the_library() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let mut empty = Managed::<u64>::zeroed(device, 0).unwrap();
        assert!(empty.memory().is_none() && empty.host().unwrap().is_empty());
        assert!(empty.host_mut().unwrap().is_empty());
        assert!(instance.advise(&empty, Advice::SET_READ_MOSTLY, None).unwrap());
        assert!(stream.prefetch(&empty, Place::device(0)).unwrap());
        assert!(stream.prefetch_batch([(&empty, Place::device(0))]).unwrap());
        stream.attach(&empty, Attach::HOST).unwrap();
        assert_eq!(instance.managed_info(&empty).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(stream.discard([empty.into_uninit()]).unwrap().wait().unwrap()[0].len(), 0);
        assert_eq!(instance.kind_stats(Kind::MANAGED).unwrap().total_count, 0);
    });
}

#[test]
fn parts_outside_are_refused() {
    with_device(|_, device| {
        let array = Managed::<u16>::zeroed(device, 4).unwrap();
        assert!(array.range(..).is_ok() && array.range(4..).is_ok() && array.range(1..=2).is_ok());
        assert!(
            array.range(5..).is_err() && array.range(..5).is_err() && array.range(..=usize::MAX).is_err()
        );
        let error = Managed::<u64>::zeroed(device, usize::MAX / 8 + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().starts_with("Managed::zeroed: "), "{error}");
    });
}

#[test]
fn advice_is_read_back() {
    with_device(|instance, device| {
        if !is(device, Capability::MANAGED_CONCURRENT) {
            println!("the device is not concurrent, so advice has no effect");
            return;
        }
        let array = Managed::<u32>::zeroed(device, LEN).unwrap();
        let half = || array.range(..LEN / 2).unwrap();
        let advise = |advice, place| instance.advise(half(), advice, place).unwrap();
        let info = instance.managed_info(&array).unwrap();
        assert_eq!((info.read_mostly, info.preferred_location), (false, None));
        assert_eq!((info.last_prefetch_location, &info.accessed_by[..]), (None, &[][..]));

        assert!(advise(Advice::SET_READ_MOSTLY, None));
        assert!(advise(Advice::SET_PREFERRED_LOCATION, Some(Place::HOST)));
        assert!(advise(Advice::SET_ACCESSED_BY, Some(Place::device(0))));
        assert!(advise(Advice::SET_ACCESSED_BY, Some(Place::HOST)));
        let info = instance.managed_info(half()).unwrap();
        assert_eq!((info.read_mostly, info.preferred_location), (true, Some(Place::HOST)));
        assert_eq!(info.accessed_by, [Processor::Cpu, Processor::Device(0)]);
        // The pages of the whole array differ.
        assert_eq!(instance.managed_info(&array).unwrap().preferred_location, None);
        assert!(!instance.managed_info(&array).unwrap().read_mostly);

        assert!(advise(Advice::SET_PREFERRED_LOCATION, Some(Place::device(0))));
        assert!(advise(Advice::UNSET_ACCESSED_BY, Some(Place::HOST)));
        assert!(advise(Advice::UNSET_READ_MOSTLY, None));
        let info = instance.managed_info(half()).unwrap();
        assert_eq!((info.read_mostly, info.preferred_location), (false, Some(Place::device(0))));
        assert_eq!(info.accessed_by, [Processor::Device(0)]);
        assert!(advise(Advice::UNSET_PREFERRED_LOCATION, None));
        assert_eq!(instance.managed_info(half()).unwrap().preferred_location, None);
    });
}

#[test]
fn bad_hints_are_refused() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let array = Managed::<u32>::zeroed(device, LEN).unwrap();
        let advise = |advice, place| instance.advise(&array, advice, place).unwrap_err().kind();
        assert_eq!(advise(Advice(77), None), ErrorKind::InvalidArgument);
        assert_eq!(advise(Advice::SET_ACCESSED_BY, Some(Place::numa_node(0))), ErrorKind::InvalidArgument);
        assert_eq!(advise(Advice::SET_PREFERRED_LOCATION, None), ErrorKind::InvalidArgument);
        assert_eq!(
            advise(Advice::SET_PREFERRED_LOCATION, Some(Place::device(99))),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            stream.prefetch(&array, Place::device(u32::MAX)).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        // The one bad entry of a batch.
        let error = stream.prefetch_batch([(&array, Place::HOST), (&array, Place::device(99))]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(instance.managed_info(&array).unwrap().last_prefetch_location, None);
        // Beyond the allocation, and not managed.
        let pointer: *const c_void = array.as_ptr().cast();
        let error = instance.advise_raw(pointer, 1 << 40, Advice::SET_READ_MOSTLY, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().starts_with("Instance::advise_raw: "), "{error}");
        let pinned = Pinned::<u32>::zeroed(device, 4).unwrap();
        let error = instance.managed_info_raw(pinned.as_ptr().cast(), 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKind);
        let error = instance.begin_host_access_raw(pinned.as_ptr().cast()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKind);
        // SAFETY: it is refused.
        let error = unsafe { instance.end_host_access_raw(pinned.as_ptr().cast()) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKind);
    });
}

#[test]
fn pages_are_prefetched() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let array = Managed::<u32>::from_slice(device, &vec![5; LEN]).unwrap();
        let asked =
            |from, to| instance.managed_info(array.range(from..to).unwrap()).unwrap().last_prefetch_location;
        let concurrent = is(device, Capability::MANAGED_CONCURRENT);
        let expected = |place| if concurrent { Some(place) } else { None };
        let first = array.range(..LEN / 2).unwrap();
        assert_eq!(stream.prefetch(first, Place::device(0)).unwrap(), concurrent);
        assert_eq!(asked(0, LEN / 2), expected(Place::device(0)));
        assert_eq!(asked(0, LEN), None);
        let second = array.range(LEN / 2..).unwrap();
        let batch = [(first, Place::HOST), (second, Place::device(0))];
        assert_eq!(stream.prefetch_batch(batch).unwrap(), concurrent);
        assert_eq!(asked(0, LEN / 2), expected(Place::HOST));
        assert_eq!(asked(LEN / 2, LEN), expected(Place::device(0)));
        assert!(stream.prefetch_batch(Vec::<(&Managed<u8>, Place)>::new()).unwrap());
        // The CPU may use it meanwhile.
        assert!(array.host().unwrap().iter().all(|value| *value == 5));
        stream.synchronize().unwrap();
    });
}

#[test]
fn values_are_discarded() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let [first, second] =
            [1, 2].map(|value| Managed::<u32>::from_slice(device, &vec![value; LEN]).unwrap());
        let arrays = stream.discard([first.into_uninit(), second.into_uninit()]).unwrap().wait().unwrap();
        assert_eq!(arrays.len(), 2);
        let placed = arrays.into_iter().map(|array| (array, Place::device(0)));
        let mut arrays = stream.discard_and_prefetch(placed).unwrap().wait().unwrap();
        let array = arrays.pop().unwrap();
        if is(device, Capability::MANAGED_DISCARD) {
            let info = instance.managed_info(&array).unwrap();
            assert_eq!(info.last_prefetch_location, Some(Place::device(0)));
        }
        let array = stream.fill(array, 0x0707_0707u32).unwrap().wait().unwrap();
        // SAFETY: the fill wrote all of it.
        let array = unsafe { array.assume_init() };
        assert!(array.host().unwrap().iter().all(|value| *value == 0x0707_0707));

        // The default stream takes no batch.
        // SAFETY: the legacy default stream lives forever.
        let default = unsafe { Stream::wrap(device, std::ptr::null_mut()) }.unwrap();
        let Rejected { given, error, .. } = default.discard([array.into_uninit()]).unwrap_err();
        assert_eq!((error.kind(), given.len()), (ErrorKind::InvalidArgument, 1));
        let placed = given.into_iter().map(|array| (array, Place::device(0)));
        let rejected = default.discard_and_prefetch(placed).unwrap_err();
        assert_eq!(rejected.error.kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn hints_by_address_say_whether_they_were_used() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let array = Managed::<u32>::zeroed(device, LEN).unwrap();
        let range = sys::gpumem_managed_range {
            pointer: array.as_ptr().cast(),
            size: 4 * LEN as u64,
            ..Default::default()
        };
        let placed = sys::gpumem_managed_range { location: sys::GPUMEM_LOCATION_HOST, ..range };
        let discards = is(device, Capability::MANAGED_DISCARD);
        // SAFETY: nothing reads the array, and it lives until the stream was synchronized.
        unsafe {
            assert_eq!(stream.discard_batch_raw(&[range]).unwrap(), discards);
            assert_eq!(stream.discard_and_prefetch_batch_raw(&[placed]).unwrap(), discards);
            assert_eq!(stream.discard_batch_raw(&[placed]).unwrap_err().kind(), ErrorKind::InvalidArgument);
            let moved = stream.prefetch_raw(range.pointer, range.size, Place::HOST).unwrap();
            assert_eq!(moved, stream.prefetch_batch_raw(&[placed]).unwrap());
        }
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_stream_keeps_what_it_moves() {
    with_host(HostOptions::new(), |instance, device| {
        let held = Held::new(device);
        let array = Managed::<u32>::zeroed(device, LEN).unwrap();
        assert!(held.stream.prefetch(&array, Place::device(0)).unwrap());
        let Rejected { given: array, error, .. } = array.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        held.stream.attach(&array, Attach::HOST).unwrap();
        drop(array);
        assert_eq!(instance.kind_stats(Kind::MANAGED).unwrap().live_count, 1);
        held.release();
        held.stream.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::MANAGED).unwrap().live_count, 0);
    });
}

#[test]
fn a_guard_waits_for_nothing_where_devices_are_concurrent() {
    with_host(HostOptions::new(), |_, device| {
        let held = Held::new(device);
        let mut array = Managed::<u32>::zeroed(device, 4).unwrap();
        array.host_mut().unwrap()[0] = 1;
        assert!(!held.stream.is_complete().unwrap());
        assert_eq!(array.host().unwrap()[0], 1);
    });
}

#[test]
fn a_guard_waits_for_active_devices() {
    with_host(not_concurrent(), |_, device| {
        let array = Managed::<u32>::from_slice(device, &vec![7; LEN]).unwrap();
        let held = Held::new(device);
        let released = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                released.store(true, Ordering::Release);
                held.release();
            });
            let access = array.host().unwrap();
            assert!(released.load(Ordering::Acquire));
            assert!(access.iter().all(|value| *value == 7));
        });
    });
}

#[test]
fn a_new_array_waits_for_nothing() {
    with_host(not_concurrent(), |_, device| {
        let held = &Held::new(device);
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if is_done.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
                    held.release();
                }
            });
            let zeroed = Managed::<u32>::zeroed(device, LEN);
            let given = Managed::from_slice(device, &[7u32; 4]);
            drop(done);
            assert!(!held.stream.is_complete().unwrap());
            held.release();
            let (mut zeroed, given) = (zeroed.unwrap(), given.unwrap());
            assert!(zeroed.host().unwrap().iter().all(|value| *value == 0));
            assert_eq!(*given.host().unwrap(), [7; 4]);
            // Any stream may use it.
            assert!(
                used_by(&held.stream, &mut zeroed) && used_by(&Stream::new(device).unwrap(), &mut zeroed)
            );
        });
    });
}

#[test]
fn several_threads_begin_accesses() {
    with_host(not_concurrent(), |_, device| {
        let (own, other) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let mut array = Managed::<u32>::from_slice(device, &[7; 4]).unwrap();
        for attach in [Attach::GLOBAL, Attach::SINGLE, Attach::HOST] {
            own.attach(&array, attach).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            let guard = array.host().unwrap();
                            assert!(guard[0] == 7 && array.host().unwrap()[3] == 7);
                        }
                    });
                }
            });
            // It is attached as before.
            assert_eq!(used_by(&own, &mut array), attach != Attach::HOST);
            assert_eq!(used_by(&other, &mut array), attach == Attach::GLOBAL);
        }
    });
}

#[test]
fn nothing_that_an_access_waits_for_waits_for_it() {
    with_host(not_concurrent(), |_, device| {
        let (stream, other) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let array = Arc::new(Managed::<u32>::zeroed(device, 4).unwrap());
        let (go, told) = mpsc::channel();
        let shared = array.clone();
        let (sender, receiver) = mpsc::channel();
        stream
            .launch_host_function(move || {
                told.recv().unwrap();
                sender.send(shared.host().map(drop).unwrap_err().kind()).unwrap();
            })
            .unwrap();
        std::thread::scope(|scope| {
            // A failing test must not wait forever.
            let go = go;
            scope.spawn(|| assert_eq!(*array.host().unwrap(), [0; 4]));
            // Refused as soon as the access has begun, which waits for the function.
            while other.attach(&array, Attach::GLOBAL).is_ok() {
                other.synchronize().unwrap();
                std::thread::yield_now();
            }
            assert_eq!(other.attach(&array, Attach::GLOBAL).unwrap_err().kind(), ErrorKind::Busy);
            go.send(()).unwrap();
            assert_eq!(receiver.recv().unwrap(), ErrorKind::InvalidState);
        });
        stream.synchronize().unwrap();
        drop(Arc::try_unwrap(array).unwrap());
    });
}

#[test]
fn no_device_uses_what_the_cpu_accesses() {
    with_host(not_concurrent(), |_, device| {
        let stream = Stream::new(device).unwrap();
        let memory = DeviceMemory::<u32>::new(device, 4).unwrap();
        let array = Arc::new(Managed::from_slice(device, &[1u32, 2, 3, 4]).unwrap());
        let (one, another) = (array.host().unwrap(), array.host().unwrap());
        for guard in [one, another] {
            let rejected = stream.copy(&memory, array.clone()).unwrap_err();
            assert_eq!(rejected.error.kind(), ErrorKind::Busy);
            assert_eq!(stream.attach(&array, Attach::HOST).unwrap_err().kind(), ErrorKind::Busy);
            drop(guard);
        }
        drop(stream.copy(&memory, array.clone()).unwrap());
        stream.synchronize().unwrap();
        assert_eq!(memory.to_vec().unwrap(), [1, 2, 3, 4]);

        // A forgotten access never ends, so the memory stays.
        let array = Arc::try_unwrap(array).unwrap();
        mem::forget(array.host().unwrap());
        let Rejected { given: array, error, .. } = array.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let (instance, pointer) = (device.instance(), array.as_ptr().cast::<c_void>());
        // SAFETY: the guard was forgotten; nothing else has begun an access.
        unsafe {
            instance.end_host_access_raw(pointer).unwrap();
            let error = instance.end_host_access_raw(pointer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidState);
        }
        instance.begin_host_access_raw(pointer).unwrap();
        // SAFETY: it was just begun.
        unsafe { instance.end_host_access_raw(pointer) }.unwrap();
        array.close().unwrap();
    });
}

/// Whether a device can use it in a stream: fills it with 7 if so.
fn used_by(stream: &Stream, array: &mut Managed<u32>) -> bool {
    let whole = array.memory().unwrap();
    let pointer = whole.host_pointer();
    // SAFETY: the array lives and is borrowed until the fill is complete.
    match unsafe { stream.fill_raw(pointer, whole.bytes(), (7, 4)) } {
        Ok(()) => stream.synchronize().is_ok(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoAccess);
            false
        }
    }
}

/// Without the guard's attachment, the other work would make the pages inaccessible.
#[test]
fn other_work_takes_nothing_from_a_guard() {
    with_host(not_concurrent(), |_, device| {
        let (own, other) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let mut array = Managed::<u32>::from_slice(device, &vec![7; LEN]).unwrap();
        for attach in [Attach::GLOBAL, Attach::SINGLE, Attach::HOST] {
            own.attach(&array, attach).unwrap();
            let mut guard = array.host_mut().unwrap();
            let held = Held::new(device);
            guard.iter_mut().for_each(|value| *value += 1);
            held.release();
            held.stream.synchronize().unwrap();
            drop(guard);
            // It is attached as before.
            assert_eq!(used_by(&own, &mut array), attach != Attach::HOST);
            assert_eq!(used_by(&other, &mut array), attach == Attach::GLOBAL);
        }
        drop(own);
        assert_eq!(array.host().unwrap()[LEN - 1], 8);
        other.attach(&array, Attach::SINGLE).unwrap();
        drop(array.host().unwrap());
        // A stream that is gone has nothing.
        drop(other);
        let held = Held::new(device);
        drop(held);
        assert_eq!(array.host().unwrap()[0], 8);
    });
}

#[test]
fn memory_is_attached_to_a_stream_the_host_or_all() {
    with_host(not_concurrent(), |_, device| {
        let (own, other) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
        let mut array = Managed::from_slice(device, &[7u32, 7]).unwrap();
        assert!(used_by(&own, &mut array) && used_by(&other, &mut array));
        own.attach(&array, Attach::SINGLE).unwrap();
        own.synchronize().unwrap();
        assert!(used_by(&own, &mut array) && !used_by(&other, &mut array));
        {
            // Only the stream that has the memory counts.
            let held = Held::new(device);
            assert_eq!(*array.host().unwrap(), [7, 7]);
            assert!(!held.stream.is_complete().unwrap());
        }
        own.attach(&array, Attach::HOST).unwrap();
        own.synchronize().unwrap();
        assert!(!used_by(&own, &mut array) && !used_by(&other, &mut array));
        other.attach(&array, Attach::GLOBAL).unwrap();
        other.synchronize().unwrap();
        assert!(used_by(&own, &mut array) && used_by(&other, &mut array));

        assert_eq!(own.attach(&array, Attach(3)).unwrap_err().kind(), ErrorKind::InvalidArgument);
        // SAFETY: it is refused, because it is a part.
        let error = unsafe { own.attach_raw(array.as_ptr().cast(), 4, Attach::HOST) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn memory_is_created_for_the_host() {
    with_host(not_concurrent(), |_, device| {
        let held = Held::new(device);
        let options = MemoryOptions::new().require(MemoryFlags::ATTACH_HOST);
        // The device is active, and the CPU need not wait for it.
        let array = Managed::<u32>::zeroed_with_options(device, 4, &options).unwrap();
        assert!(array.info().unwrap().unwrap().granted_flags.contains(MemoryFlags::ATTACH_HOST));
        assert_eq!(*array.host().unwrap(), [0; 4]);
        assert!(!held.stream.is_complete().unwrap());
        let rejected = held.stream.fill(array, 1u32).unwrap_err();
        assert_eq!(rejected.error.kind(), ErrorKind::NoAccess);
    });
}

#[test]
fn hints_have_no_effect_where_devices_are_not_concurrent() {
    with_host(not_concurrent(), |instance, device| {
        let stream = Stream::new(device).unwrap();
        let array = Managed::<u32>::zeroed(device, LEN).unwrap();
        let place = Some(Place::device(0));
        assert!(!instance.advise(&array, Advice::SET_PREFERRED_LOCATION, place).unwrap());
        assert!(!stream.prefetch(&array, Place::device(0)).unwrap());
        assert!(!stream.prefetch_batch([(&array, Place::HOST)]).unwrap());
        assert_eq!(instance.managed_info(&array).unwrap().last_prefetch_location, None);
        // Nothing was enqueued, so nothing is kept.
        let arrays = stream.discard([array.into_uninit()]).unwrap().wait().unwrap();
        arrays.into_iter().next().unwrap().close().unwrap();
    });
}

#[test]
fn a_host_function_begins_no_access() {
    with_device(|_, device| {
        let stream = Stream::new(device).unwrap();
        let array = Arc::new(Managed::<u32>::zeroed(device, 4).unwrap());
        let (sender, receiver) = mpsc::channel();
        let shared = array.clone();
        stream
            .launch_host_function(move || sender.send(shared.host().map(drop).unwrap_err().kind()).unwrap())
            .unwrap();
        stream.synchronize().unwrap();
        assert_eq!(receiver.recv().unwrap(), ErrorKind::InvalidState);
        drop(Arc::try_unwrap(array).unwrap());
    });
}

#[test]
fn pageable_memory_takes_hints_where_devices_access_it() {
    let mut values = vec![1u8; 1 << 20];
    let (pointer, bytes): (*mut c_void, u64) = (values.as_mut_ptr().cast(), values.len() as u64);
    for pageable in [true, false] {
        with_host(HostOptions::new().pageable(pageable), |instance, device| {
            let stream = Stream::new(device).unwrap();
            let advised = instance.advise_raw(pointer, bytes, Advice::SET_READ_MOSTLY, None);
            // SAFETY: the vector outlives the stream.
            let (moved, attached) = unsafe {
                (
                    stream.prefetch_raw(pointer, bytes, Place::HOST),
                    stream.attach_raw(pointer, bytes, Attach::HOST),
                )
            };
            stream.synchronize().unwrap();
            if pageable {
                assert!(advised.unwrap() && moved.unwrap());
                attached.unwrap();
            } else {
                for error in [advised.unwrap_err(), moved.unwrap_err(), attached.unwrap_err()] {
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                }
            }
        });
    }
}

#[test]
fn every_step_may_fail() {
    if !is_host() {
        println!("only the host backend fails steps");
        return;
    }
    with_device(|instance, device| {
        for step in 1..=1000 {
            assert!(step < 1000, "it never succeeds");
            host::fail_step(instance, step, false).unwrap();
            let result = (|| {
                let stream = Stream::new(device)?;
                let array = Managed::<u32>::zeroed(device, 4096)?;
                instance.advise(&array, Advice::SET_READ_MOSTLY, None)?;
                stream.attach(&array, Attach::SINGLE)?;
                stream.prefetch(&array, Place::device(0))?;
                stream.prefetch_batch([(&array, Place::HOST)])?;
                stream.synchronize()?;
                drop(array.host()?);
                stream.discard([array.into_uninit()])?.wait()?;
                Ok::<(), gpumem::Error>(())
            })();
            host::fail_step(instance, 0, false).unwrap();
            assert_eq!(instance.stats().unwrap().live_objects(), 0, "step {step}");
            if result.is_ok() {
                assert!(step > 2);
                break;
            }
        }
    });
}

/// On another instance, which would take it for ordinary memory or for that of other code.
#[test]
fn an_array_of_another_instance_is_named() {
    with_device(|_, device| {
        let mut array = Managed::<u32>::zeroed(device, 64).unwrap();
        with_device(|other, device| {
            let stream = Stream::new(device).unwrap();
            let memory = DeviceMemory::<u32>::new(device, 64).unwrap();
            let rows = Rectangle { width: 2, height: 2, destination_pitch: 2, source_pitch: 2 };
            let device = Place::device(0);
            let mut failures = vec![
                other.copy(&memory, &array).unwrap_err(),
                other.copy_2d(&mut array, &memory, &rows).unwrap_err(),
                other.copy_regions([Region::new(&memory, &array, 64)]).unwrap_err(),
                other.fill(&mut array, 1u32).unwrap_err(),
                other.fill_bytes(&mut array, 1).unwrap_err(),
                other.fill_2d(&mut array, &rows, 1u32).unwrap_err(),
                other.advise(&array, Advice::SET_READ_MOSTLY, None).unwrap_err(),
                other.managed_info(&array).unwrap_err(),
                stream.attach(&array, Attach::SINGLE).unwrap_err(),
                stream.prefetch(&array, device).unwrap_err(),
                stream.prefetch_batch([(&array, device)]).unwrap_err(),
            ];
            let Rejected { given: (_, array), error, .. } = stream.copy(&memory, array).unwrap_err();
            failures.push(error);
            let Rejected { given: array, error, .. } = stream.fill(array, 1u32).unwrap_err();
            failures.push(error);
            let discarded = stream.discard([array.into_uninit()]).unwrap_err();
            failures.push(discarded.error);
            let discarded =
                stream.discard_and_prefetch(discarded.given.into_iter().map(|array| (array, device)));
            failures.push(discarded.unwrap_err().error);
            for error in failures {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                assert!(error.message().contains("memory of another instance of this process"), "{error}");
            }
        });
    });
}
