// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Sleep with options, groups, registrations and callbacks.

mod common;

use std::fs;
use std::mem;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{backend, is_host, with_device, with_host};
use gpumem::{
    host, Buffer, BufferCallbacks, BufferFlags, BufferOptions, BufferRegistration, BufferState, Capability,
    Content, Device, DeviceMemory, Error, ErrorKind, Event, ExportOptions, FabricHandle, Group, GroupOptions,
    HandleTypes, HostOptions, Instance, Physical, PhysicalOptions, Pinned, PrepareOptions, Rectangle, Region,
    Rejected, SleepFlags, SleepOptions, Status, Stream, WaitCondition, WakeOptions,
};

const LEN: usize = 5000;
const BYTES: u64 = LEN as u64 * 4;

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

/// A buffer in a group, filled with a number.
fn member(instance: &Instance, device: &Device, group: &Group, tag: &str, value: u32) -> Buffer<u32> {
    let options = BufferOptions::new().reserve(64 << 20).group(group).tag(tag);
    let buffer = Buffer::with_options(device, LEN, &options).unwrap();
    instance.fill(&buffer, value).unwrap();
    buffer
}

fn has_only(instance: &Instance, buffer: &Buffer<u32>, value: u32) -> bool {
    let mut seen = vec![!value; buffer.len()];
    instance.copy(&mut seen, buffer).unwrap();
    seen.iter().all(|found| *found == value)
}

fn state(buffer: &Buffer<u32>) -> BufferState {
    buffer.info().unwrap().state
}

/// A stream whose work waits until the word is 1.
fn gated(device: &Device) -> (Stream, Pinned<AtomicU32>) {
    let (stream, gate) = (Stream::new(device).unwrap(), Pinned::<AtomicU32>::zeroed(device, 1).unwrap());
    stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
    (stream, gate)
}

/// Waits for what a thread of the library does.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test of this program with other variables for the fake driver. Returns whether this is that run.
fn with_fake_cuda(test: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os("GPUMEM_TEST_AGAIN").is_some() {
        return true;
    }
    if is_host() || std::env::var_os("FAKE_CUDA_DEVICES").is_none() {
        println!("only the fake driver can be told");
        return false;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("GPUMEM_TEST_AGAIN", "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    false
}

#[test]
fn a_group_sleeps_and_wakes_as_one() {
    with_device(|instance, device| {
        let group = Group::with_options(instance, &GroupOptions::new().name("model")).unwrap();
        assert_eq!((group.info().unwrap().buffer_count, group.info().unwrap().name.as_str()), (0, "model"));
        group.sleep(Content::PINNED).unwrap();
        group.wake().unwrap();
        let weights: Vec<_> =
            (1..=2).map(|value| member(instance, device, &group, "weights", value)).collect();
        let cache = member(instance, device, &group, "cache", 3);
        let info = cache.info().unwrap();
        assert_eq!((info.group, info.tag.as_str()), (group.handle(), "cache"));

        group.sleep(Content::PAGEABLE).unwrap();
        let info = group.info().unwrap();
        assert_eq!((info.buffer_count, info.awake_count, info.asleep_count, info.failed_count), (3, 0, 3, 0));
        assert_eq!((info.size, info.stored_size), (3 * BYTES, 3 * BYTES));
        assert!(info.store_capacity >= 3 * BYTES, "{info:?}");
        assert_eq!(kind(instance.copy(&mut vec![0; LEN], &cache)), ErrorKind::InvalidState);
        // Those that sleep already stay as they are.
        group.sleep(Content::DROP).unwrap();

        group.wake_with_options(WakeOptions::new().tag("weights")).unwrap();
        assert_eq!((state(&weights[0]), state(&cache)), (BufferState::AWAKE, BufferState::ASLEEP));
        let (awake, all) = (group.info_of("weights").unwrap(), group.info().unwrap());
        assert_eq!((awake.buffer_count, awake.awake_count, awake.size), (2, 2, 2 * BYTES));
        assert_eq!((all.awake_count, all.asleep_count, all.stored_size), (2, 1, BYTES));
        assert!(has_only(instance, &weights[0], 1) && has_only(instance, &weights[1], 2));
        group.wake().unwrap();
        assert!(has_only(instance, &cache, 3));

        // An empty tag is none.
        group.sleep(SleepOptions::from(Content::ZERO).tag("cache")).unwrap();
        group.wake_with_options(WakeOptions::new().tag("")).unwrap();
        assert!(has_only(instance, &cache, 0) && has_only(instance, &weights[1], 2));
        assert_eq!(group.info_of("nothing").unwrap().buffer_count, 0);
        assert_eq!(kind(group.info_of("a\0b")), ErrorKind::InvalidArgument);
        assert_eq!(kind(group.info_of(&"a".repeat(64))), ErrorKind::InvalidArgument);
        assert_eq!(kind(group.sleep(SleepOptions::new().tag("a\nb"))), ErrorKind::InvalidArgument);

        // It lives as long as it has buffers.
        let Rejected { given: group, error, .. } = group.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().starts_with("Group::close: "), "{error}");
        let text = format!("{group:?}");
        assert!(text.starts_with("Group("), "{text}");
        drop((weights, cache));
        assert_eq!(group.info().unwrap().buffer_count, 0);
        group.close().unwrap();
        let other = Group::new(instance).unwrap();
        let kept = member(instance, device, &other, "", 7);
        drop(other);
        assert!(has_only(instance, &kept, 7));
    });
}

#[test]
fn options_are_checked() {
    with_device(|instance, device| {
        let other = Instance::open(backend()).unwrap();
        let foreign = Group::new(&other).unwrap();
        let options = BufferOptions::new().group(&foreign);
        assert_eq!(kind(Buffer::<u32>::with_options(device, 1, &options)), ErrorKind::InvalidArgument);
        let options = BufferOptions::new().tag("weights");
        assert_eq!(kind(Buffer::<u32>::with_options(device, 1, &options)), ErrorKind::InvalidArgument);
        let name = GroupOptions::new().name("a\0b");
        assert_eq!(kind(Group::with_options(instance, &name)), ErrorKind::InvalidArgument);

        let mut buffer = Buffer::<u32>::new(device, LEN).unwrap();
        instance.fill(&buffer, 7u32).unwrap();
        let stream = Stream::new(device).unwrap();
        let missing = std::env::temp_dir().join("gpumem-no-such-directory");
        let file = std::env::current_exe().unwrap();
        for (options, expected) in [
            (SleepOptions::from(Content::FILE), ErrorKind::InvalidArgument),
            (SleepOptions::new().directory(&missing), ErrorKind::NotFound),
            (SleepOptions::new().directory(&file), ErrorKind::InvalidArgument),
            (SleepOptions::new().directory("/tmp").content(Content::PINNED), ErrorKind::InvalidArgument),
            (SleepOptions::new().tag("weights"), ErrorKind::InvalidArgument),
            (SleepOptions::new().flags(SleepFlags(2)), ErrorKind::InvalidArgument),
            (SleepOptions::new().flags(SleepFlags::IDLE).after(&stream), ErrorKind::InvalidArgument),
        ] {
            let text = format!("{options:?}");
            assert_eq!(kind(buffer.sleep(options)), expected, "{text}");
        }
        assert_eq!(kind(buffer.prepare(Content::FILE)), ErrorKind::InvalidArgument);
        assert_eq!(kind(buffer.prepare(PrepareOptions::new().tag("a"))), ErrorKind::InvalidArgument);
        assert_eq!(kind(buffer.prepare(PrepareOptions::new().directory(&missing))), ErrorKind::NotFound);
        let event = Event::new(device).unwrap();
        assert_eq!(kind(buffer.sleep(SleepOptions::new().after_event(&event))), ErrorKind::InvalidState);
        assert_eq!(state(&buffer), BufferState::AWAKE);
        buffer.sleep(SleepOptions::new().flags(SleepFlags::IDLE)).unwrap();
        assert_eq!(kind(buffer.wake_with_options(WakeOptions::new().tag("a"))), ErrorKind::InvalidArgument);
        buffer.wake().unwrap();
        assert!(has_only(instance, &buffer, 7));
        drop((foreign, other));
    });
}

#[test]
fn a_sleep_waits_for_work() {
    with_device(|instance, device| {
        let group = Group::new(instance).unwrap();
        let mut buffer = member(instance, device, &group, "", 1);
        let later = |stream: Stream, gate: Pinned<AtomicU32>| {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                gate[0].store(1, Ordering::Release);
                (stream, gate)
            })
        };
        for (value, with) in (2..).zip(["nothing", "stream", "event"]) {
            let (stream, gate) = gated(device);
            drop(stream.fill(&buffer, value).unwrap());
            let (event, done) = (Event::new(device).unwrap(), Stream::new(device).unwrap());
            event.record(&stream).unwrap();
            done.wait_event(&event).unwrap();
            assert_eq!(kind(group.sleep(SleepOptions::new().flags(SleepFlags::IDLE))), ErrorKind::Busy);
            let opener = later(stream, gate);
            match with {
                "nothing" => group.sleep(Content::PINNED),
                "stream" => group.sleep(SleepOptions::new().after(&done)),
                _ => buffer.sleep(SleepOptions::new().after_event(&event)),
            }
            .unwrap();
            opener.join().unwrap();
            group.wake().unwrap();
            assert!(has_only(instance, &buffer, value), "{with}");
        }
        // Work that the call does not wait for.
        let (stream, gate) = gated(device);
        drop(stream.fill(&buffer, 9u32).unwrap());
        let other = Stream::new(device).unwrap();
        assert_eq!(kind(group.sleep(SleepOptions::new().after(&other))), ErrorKind::Busy);
        assert_eq!(state(&buffer), BufferState::AWAKE);
        gate[0].store(1, Ordering::Release);
        stream.synchronize().unwrap();
        assert!(has_only(instance, &buffer, 9));
    });
}

#[test]
fn progress_is_reported_and_may_cancel() {
    with_device(|instance, device| {
        let group = Group::new(instance).unwrap();
        let mut buffers: Vec<_> = (1..=3).map(|value| member(instance, device, &group, "", value)).collect();
        let intact = |buffers: &[Buffer<u32>]| {
            (1..).zip(buffers).all(|(value, buffer)| has_only(instance, buffer, value))
        };
        let mut seen = Vec::new();
        group
            .sleep(SleepOptions::new().progress(|done, total| {
                seen.push((done, total));
                ControlFlow::Continue(())
            }))
            .unwrap();
        assert_eq!((seen.first(), seen.last()), (Some(&(0, 3 * BYTES)), Some(&(3 * BYTES, 3 * BYTES))));
        assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0), "{seen:?}");
        let steps = seen.len();
        let after = |count: usize| {
            let mut left = count;
            move |_, _| {
                if left == 0 {
                    return ControlFlow::Break(());
                }
                left -= 1;
                ControlFlow::Continue(())
            }
        };
        // What a call did before it was cancelled is undone. Once all is done it cannot be cancelled.
        for count in 0..steps {
            let cancelled = group.wake_with_options(WakeOptions::new().progress(after(count)));
            if count + 1 == steps {
                cancelled.unwrap();
                break;
            }
            let error = cancelled.unwrap_err();
            assert_eq!((error.kind(), error.status()), (ErrorKind::Cancelled, Status::CANCELLED));
            assert_eq!(group.info().unwrap().asleep_count, 3);
        }
        assert!(intact(&buffers));
        for count in 0..steps - 1 {
            let cancelled = group.sleep(SleepOptions::new().progress(after(count)));
            assert_eq!(kind(cancelled), ErrorKind::Cancelled);
            assert_eq!(group.info().unwrap().awake_count, 3);
            assert!(intact(&buffers));
        }

        // A panic cancels, and goes on.
        let panics = |_, _| -> ControlFlow<()> { resume_unwind(Box::new("on purpose")) };
        let payload =
            catch_unwind(AssertUnwindSafe(|| group.sleep(SleepOptions::new().progress(panics)))).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
        assert_eq!(group.info().unwrap().awake_count, 3);
        let first = &mut buffers[0];
        catch_unwind(AssertUnwindSafe(|| first.sleep(SleepOptions::new().progress(panics)))).unwrap_err();
        first.sleep(Content::PINNED).unwrap();
        catch_unwind(AssertUnwindSafe(|| first.wake_with_options(WakeOptions::new().progress(panics))))
            .unwrap_err();
        assert_eq!(state(first), BufferState::ASLEEP);
        first.wake().unwrap();
        assert!(intact(&buffers));
    });
}

#[test]
fn nobody_else_uses_a_buffer_that_sleeps() {
    with_device(|instance, device| {
        let group = Group::new(instance).unwrap();
        let buffer = member(instance, device, &group, "", 1);
        let mut calls = 0;
        let mut refused = |expected: ErrorKind| {
            calls += 1;
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(kind(instance.fill(&buffer, 2)), expected);
                    assert_eq!(kind(instance.copy(&mut vec![0; buffer.len()], &buffer)), expected);
                });
            });
            ControlFlow::Continue(())
        };
        group.sleep(SleepOptions::new().progress(|_, _| refused(ErrorKind::Busy))).unwrap();
        let _ = refused(ErrorKind::InvalidState);
        group.wake_with_options(WakeOptions::new().progress(|_, _| refused(ErrorKind::Busy))).unwrap();
        assert!(calls >= 5);
        assert!(has_only(instance, &buffer, 1));
    });
}

#[test]
fn stores_are_prepared_and_kept() {
    with_device(|instance, device| {
        let group = Group::new(instance).unwrap();
        let mut buffer = member(instance, device, &group, "weights", 1);
        let capacity = |buffer: &Buffer<u32>| buffer.info().unwrap().store_capacity;
        assert_eq!(capacity(&buffer), 0);
        buffer.prepare(Content::PAGEABLE).unwrap();
        assert!(capacity(&buffer) >= BYTES);
        assert_eq!(group.info().unwrap().store_capacity, capacity(&buffer));
        // A store for nothing is none.
        group.prepare(PrepareOptions::from(Content::DROP).tag("cache")).unwrap();
        assert!(capacity(&buffer) >= BYTES);
        group.prepare(Content::DROP).unwrap();
        assert_eq!(capacity(&buffer), 0);
        group.prepare(PrepareOptions::new().directory(std::env::temp_dir())).unwrap();
        assert!(capacity(&buffer) >= BYTES);

        buffer.sleep(Content::PINNED).unwrap();
        assert_eq!(kind(buffer.prepare(Content::PINNED)), ErrorKind::InvalidState);
        group.prepare(Content::PINNED).unwrap();
        buffer.wake_with_options(WakeOptions::new().keep(u64::MAX)).unwrap();
        assert!(capacity(&buffer) >= BYTES && buffer.info().unwrap().stored_size == 0);
        buffer.sleep(Content::PINNED).unwrap();
        buffer.wake().unwrap();
        assert_eq!(capacity(&buffer), 0);
        assert!(has_only(instance, &buffer, 1));

        // By a thread of the library.
        group.prepare(PrepareOptions::from(Content::PAGEABLE).bytes_per_second(1 << 30)).unwrap();
        wait_until("the store is prepared", || capacity(&buffer) >= BYTES);
    });
}

#[test]
fn memory_is_made_ahead() {
    with_device(|instance, device| {
        let options = BufferOptions::new().reserve(64 << 20);
        let mut buffer = Buffer::<u32>::with_options(device, LEN, &options).unwrap();
        instance.fill(&buffer, 7u32).unwrap();
        buffer.set_ahead(2 << 20).unwrap();
        assert_eq!(buffer.info().unwrap().ahead, 8 << 20);
        wait_until("memory is ahead", || buffer.capacity() >= LEN + (2 << 20));
        let blocks = buffer.info().unwrap().block_count;
        buffer.resize(LEN + 1000).unwrap();
        buffer.reserve_exact(2 << 19).unwrap();
        assert_eq!(buffer.info().unwrap().block_count, blocks);
        buffer.set_ahead(0).unwrap();
        buffer.shrink_to_fit().unwrap();
        assert!(buffer.capacity() < LEN + (2 << 20));
        assert_eq!(kind(buffer.set_ahead(usize::MAX)), ErrorKind::InvalidArgument);
        let mut first = vec![0; LEN];
        instance.copy(&mut first, buffer.slice(..LEN).unwrap()).unwrap();
        assert!(first.iter().all(|value| *value == 7));
    });
}

#[test]
fn registrations_keep_a_buffer_awake() {
    with_device(|instance, device| {
        let group = Group::new(instance).unwrap();
        let mut buffer = member(instance, device, &group, "", 1);
        let card = buffer.note_registration("nic 0").unwrap();
        let ring = buffer.note_registration("communicator").unwrap();
        assert!(card.number() != 0 && card.number() != ring.number());
        assert_eq!(buffer.info().unwrap().registrations, 2);
        for error in [buffer.sleep(Content::PINNED).unwrap_err(), group.sleep(Content::PINNED).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Busy);
            let text = error.message();
            assert!(text.contains("nic 0") && text.contains("communicator"), "{text}");
            assert!(text.contains("BufferRegistration"), "{text}");
        }
        ring.close().unwrap();
        assert_eq!(kind(buffer.sleep(Content::PINNED)), ErrorKind::Busy);
        drop(card);
        buffer.sleep(Content::PINNED).unwrap();
        assert_eq!(kind(buffer.note_registration("nic 0")), ErrorKind::InvalidState);
        buffer.wake().unwrap();
        for name in ["", "a\0b", "a\nb", &"a".repeat(64)] {
            assert_eq!(kind(buffer.note_registration(name)), ErrorKind::InvalidArgument, "{name:?}");
        }
        // One that outlives the buffer has nothing to forget.
        let late = buffer.note_registration("late").unwrap();
        drop(buffer);
        let Rejected { given: late, error, .. } = late.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleHandle);
        drop(late);
    });
}

#[test]
fn callbacks_are_called_around_sleep() {
    with_device(|instance, device| {
        let mut buffer = Buffer::<u32>::new(device, LEN).unwrap();
        instance.fill(&buffer, 7u32).unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let may_sleep = Arc::new(AtomicBool::new(true));
        let card: Arc<Mutex<Option<BufferRegistration>>> = Arc::default();
        *card.lock().unwrap() = Some(buffer.note_registration("nic").unwrap());
        let (before, after) = (calls.clone(), calls.clone());
        let (dropped, renewed, asked) = (card.clone(), card.clone(), may_sleep.clone());
        let callbacks = BufferCallbacks::new()
            .before_sleep(move |buffer| {
                let info = buffer.info().unwrap();
                before.lock().unwrap().push(format!("sleep {:?} {}", info.state, info.registrations));
                dropped.lock().unwrap().take();
                asked.load(Ordering::Acquire)
            })
            .after_wake(move |buffer, generation| {
                let info = buffer.info().unwrap();
                assert_eq!(info.generation, generation);
                after.lock().unwrap().push(format!("wake {:?} {generation}", info.state));
                *renewed.lock().unwrap() = Some(buffer.note_registration("nic").unwrap());
                assert!(format!("{buffer:?}").starts_with("CalledBuffer("));
            });
        assert!(format!("{callbacks:?}").contains("before_sleep: true"));
        buffer.set_callbacks(callbacks).unwrap();
        let first = buffer.info().unwrap().generation;
        buffer.sleep(Content::PINNED).unwrap();
        buffer.wake().unwrap();
        let seen = mem::take(&mut *calls.lock().unwrap());
        assert_eq!(seen, ["sleep AWAKE 1".to_owned(), format!("wake AWAKE {}", first + 1)]);
        assert_eq!(buffer.info().unwrap().registrations, 1);

        // After a sleep that did not happen: it was told, and another reason came later.
        let error = buffer.sleep(SleepOptions::new().progress(|_, _| ControlFlow::Break(()))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert_eq!(mem::take(&mut *calls.lock().unwrap()).last(), Some(&format!("wake AWAKE {}", first + 1)));
        may_sleep.store(false, Ordering::Release);
        let error = buffer.sleep(Content::PINNED).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(state(&buffer), BufferState::AWAKE);

        // Others replace them. What they own is dropped, in the end with the buffer.
        assert_eq!(Arc::strong_count(&calls), 3);
        let panics = BufferCallbacks::new()
            .before_sleep(|_| resume_unwind(Box::new(1)))
            .after_wake(|_, _| resume_unwind(Box::new(2)));
        buffer.set_callbacks(panics).unwrap();
        assert_eq!((Arc::strong_count(&calls), Arc::strong_count(&may_sleep)), (1, 1));
        card.lock().unwrap().take();
        let payload = catch_unwind(AssertUnwindSafe(|| buffer.sleep(Content::PINNED))).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&1));
        assert_eq!(state(&buffer), BufferState::AWAKE);
        let owned = may_sleep.clone();
        let panics = BufferCallbacks::new().after_wake(move |_, _| {
            owned.store(true, Ordering::Release);
            resume_unwind(Box::new(3))
        });
        buffer.set_callbacks(panics).unwrap();
        buffer.sleep(Content::PINNED).unwrap();
        let payload = catch_unwind(AssertUnwindSafe(|| buffer.wake())).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&3));
        assert!(state(&buffer) == BufferState::AWAKE && may_sleep.load(Ordering::Acquire));
        assert!(has_only(instance, &buffer, 7));
        assert_eq!(Arc::strong_count(&may_sleep), 2);
        drop(buffer);
        assert_eq!(Arc::strong_count(&may_sleep), 1);
    });
}

#[test]
fn a_buffer_that_could_not_be_dropped_keeps_its_callbacks() {
    with_device(|instance, device| {
        let mut buffer = Buffer::<u32>::new(device, LEN).unwrap();
        let owned = Arc::new(());
        let share = owned.clone();
        let callbacks = BufferCallbacks::new().before_sleep(move |_| Arc::strong_count(&share) > 0);
        buffer.set_callbacks(callbacks).unwrap();
        let stream = Stream::new(device).unwrap();
        // Nothing can be released in a host function, but information is given.
        let (sender, receiver) = mpsc::channel();
        stream
            .launch_host_function(move || {
                sender.send((buffer.info().unwrap().state, buffer.note_registration("nic").is_ok())).unwrap();
                drop(buffer);
            })
            .unwrap();
        stream.synchronize().unwrap();
        assert_eq!(receiver.recv().unwrap(), (BufferState::AWAKE, true));
        assert_eq!(Arc::strong_count(&owned), 2);
        drop(Pinned::<u8>::zeroed(device, 1).unwrap());
        assert_eq!(Arc::strong_count(&owned), 1);
        assert_eq!(instance.stats().unwrap().live_count, 0);
    });
}

#[test]
fn errors_of_what_is_asleep_name_the_call() {
    with_device(|instance, device| {
        let stream = Stream::new(device).unwrap();
        let group = Group::new(instance).unwrap();
        let asleep = member(instance, device, &group, "", 7);
        group.sleep(Content::DROP).unwrap();
        let path = std::env::temp_dir().join(format!("gpumem-rust-asleep-{}", std::process::id()));
        fs::write(&path, [0; 4 * LEN]).unwrap();
        let file = fs::File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let values = [0u32; LEN];
        let mut back = values;
        let rectangle = Rectangle { width: 1, height: 1, destination_pitch: 1, source_pitch: 1 };
        let regions = || [Region::new(&asleep, &values[..], 1)];
        let results = [
            ("Instance::copy", instance.copy(&asleep, &values)),
            ("Instance::copy", instance.copy(&mut back, &asleep)),
            ("Instance::copy_2d", instance.copy_2d(&asleep, &values, &rectangle)),
            ("Instance::copy_regions", instance.copy_regions(regions())),
            ("Instance::fill", instance.fill(&asleep, 1u32)),
            ("Instance::fill_bytes", instance.fill_bytes(&asleep, 1)),
            ("Instance::fill_2d", instance.fill_2d(&asleep, &rectangle, 1u32)),
            ("Instance::export", instance.export(&asleep, &ExportOptions::new()).map(drop)),
            ("Instance::read_file", instance.read_file(&asleep, &file, 0).map(drop)),
            ("Instance::write_file", instance.write_file(&file, 0, &asleep).map(drop)),
            ("Stream::fill", stream.fill(&asleep, 1u32).map(drop).map_err(Error::from)),
            (
                "Stream::copy_from_slice",
                stream.copy_from_slice(&asleep, &values).map(drop).map_err(Error::from),
            ),
        ];
        for (name, result) in results {
            let error = result.unwrap_err();
            assert_eq!((error.kind(), error.function()), (ErrorKind::InvalidState, name));
            assert!(error
                .to_string()
                .ends_with("the buffer is asleep; call Buffer::wake or Group::wake first"));
        }
    });
}

#[test]
fn a_callback_cannot_use_what_falls_asleep() {
    with_device(|instance, device| {
        let group = Arc::new(Group::new(instance).unwrap());
        let mut first = member(instance, device, &group, "", 1);
        let second = Arc::new(Mutex::new(member(instance, device, &group, "", 2)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kinds, other, its_group) = (seen.clone(), second.clone(), group.clone());
        let (instance_2, device_2) = (instance.clone(), device.clone());
        first
            .set_callbacks(BufferCallbacks::new().before_sleep(move |_| {
                let mut other = other.lock().unwrap();
                let stream = Stream::new(&device_2).unwrap();
                let options = BufferOptions::new().group(&its_group);
                *kinds.lock().unwrap() = vec![
                    kind(instance_2.fill(&*other, 9u32)),
                    kind(instance_2.copy(&mut [0], other.slice(..1).unwrap())),
                    stream.fill(&*other, 9u32).unwrap_err().error.kind(),
                    kind(other.resize(LEN + 1)),
                    kind(other.sleep(Content::DROP)),
                    kind(its_group.sleep(Content::DROP)),
                    kind(its_group.wake()),
                    kind(Buffer::<u32>::with_options(&device_2, 1, &options)),
                ];
                // Nothing is used by these.
                instance_2.fill(other.slice(3..3).unwrap(), 9u32).unwrap();
                other.info().unwrap().state == BufferState::AWAKE
            }))
            .unwrap();
        group.sleep(Content::PINNED).unwrap();
        assert_eq!(*seen.lock().unwrap(), [ErrorKind::Busy; 8]);
        group.wake().unwrap();
        assert!(has_only(instance, &first, 1) && has_only(instance, &second.lock().unwrap(), 2));
        // The callback owns shares of these.
        first.set_callbacks(BufferCallbacks::new()).unwrap();
    });
}

#[test]
fn what_the_cpu_borrows_stays_awake() {
    with_device(|instance, device| {
        if !device.capability(Capability::VMM_HOST, None).unwrap().is_supported() {
            println!("no physical memory of the host here");
            return;
        }
        let group = Group::new(instance).unwrap();
        let options = BufferOptions::new().host().reserve(1 << 20).group(&group).tag("table");
        let mut table = Buffer::<u32>::with_options(device, LEN, &options).unwrap();
        let beside = member(instance, device, &group, "beside", 5);
        {
            let mut values = table.host_mut().unwrap();
            values[0] = 1;
            let error = group.sleep(Content::PINNED).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(
                error.to_string().starts_with("Group::sleep: a buffer of the group is borrowed"),
                "{error}"
            );
            assert_eq!(group.info().unwrap().awake_count, 2);
            // The others can, and wake while it is borrowed.
            group.sleep(SleepOptions::new().tag("beside")).unwrap();
            group.wake().unwrap();
            values[1] = 2;
        }
        assert!(has_only(instance, &beside, 5));
        group.sleep(Content::PINNED).unwrap();
        assert_eq!(kind(table.host()), ErrorKind::InvalidState);
        group.wake().unwrap();
        assert_eq!(table.host().unwrap()[..2], [1, 2]);

        // A guard that is forgotten keeps it awake until the next one.
        mem::forget(table.host().unwrap());
        assert_eq!(kind(group.sleep(Content::PINNED)), ErrorKind::Busy);
        let text = format!("{:?}", table.host_mut().unwrap());
        assert!(text.starts_with("[1, 2, "), "{text}");
        group.sleep(Content::PINNED).unwrap();
    });
}

#[test]
fn a_group_may_sleep_while_others_use_its_buffers() {
    with_device(|instance, device| {
        let group = Group::new(instance).unwrap();
        let buffer = member(instance, device, &group, "", 7);
        let stop = AtomicBool::new(false);
        let expected = |error: &Error| matches!(error.kind(), ErrorKind::Busy | ErrorKind::InvalidState);
        thread::scope(|scope| {
            let copies = scope.spawn(|| {
                let (mut seen, mut good) = (vec![0u32; LEN], 0);
                while !stop.load(Ordering::Acquire) || good == 0 {
                    match instance.copy(&mut seen, &buffer) {
                        Ok(()) => good += usize::from(seen.iter().all(|value| *value == 7)),
                        Err(error) => assert!(expected(&error), "{error:?}"),
                    }
                }
                good
            });
            let fills = scope.spawn(|| {
                let stream = Stream::new(device).unwrap();
                let mut good = 0;
                while !stop.load(Ordering::Acquire) || good == 0 {
                    match stream.fill(&buffer, 7u32) {
                        Ok(pending) => good += usize::from(pending.wait().is_ok()),
                        Err(rejected) => assert!(expected(&rejected.error), "{rejected:?}"),
                    }
                }
                good
            });
            let (mut slept, mut refused) = (0, None);
            let begin = Instant::now();
            while slept < 150 && begin.elapsed() < Duration::from_secs(10) {
                match group.sleep(Content::PAGEABLE) {
                    Ok(()) => slept += 1,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}"),
                }
                while let Err(error) = group.wake() {
                    refused = Some(error);
                }
            }
            stop.store(true, Ordering::Release);
            assert!(refused.is_none(), "nobody uses what is asleep: {refused:?}");
            assert!(copies.join().unwrap() > 0 && fills.join().unwrap() > 0 && slept > 0);
        });
        assert!(has_only(instance, &buffer, 7));
    });
}

#[test]
fn a_buffer_without_room_to_wake_keeps_its_content() {
    with_host(HostOptions::new().device_bytes(16 << 20), |instance, device| {
        let group = Group::new(instance).unwrap();
        let first = member(instance, device, &group, "", 1);
        let second = member(instance, device, &group, "", 2);
        // Once the first has given its memory back, something else takes it all.
        let mut taken = None;
        let cancelled = group.sleep(SleepOptions::from(Content::PAGEABLE).progress(|done, _| {
            if done == 0 {
                return ControlFlow::Continue(());
            }
            let free = device.memory().unwrap().free as usize;
            taken = Some(DeviceMemory::<u8>::new(device, free).unwrap());
            ControlFlow::Break(())
        }));
        let error = cancelled.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(error.message().contains("1 of 2 buffers could not be woken again"), "{error}");
        assert_eq!((state(&first), state(&second)), (BufferState::FAILED, BufferState::AWAKE));
        assert_eq!((group.info().unwrap().failed_count, first.info().unwrap().stored_size), (1, BYTES));
        assert_eq!(kind(instance.fill(&first, 9u32)), ErrorKind::InvalidState);
        assert_eq!(kind(group.wake()), ErrorKind::OutOfMemory);
        drop(taken);
        group.wake().unwrap();
        assert!(has_only(instance, &first, 1) && has_only(instance, &second, 2));
    });
}

#[test]
fn content_in_a_file_may_be_lost() {
    with_device(|instance, device| {
        let folder = std::env::temp_dir().join(format!("gpumem-lost-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut buffer = Buffer::<u32>::new(device, LEN).unwrap();
        instance.fill(&buffer, 7u32).unwrap();
        buffer.sleep(SleepOptions::new().directory(&folder)).unwrap();
        // Another program cuts the file short. It has no name, but this process has it open.
        let mut cut = 0;
        for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
            if fs::read_link(entry.path()).map_or(false, |target| target.starts_with(&folder)) {
                fs::OpenOptions::new().write(true).open(entry.path()).unwrap().set_len(100).unwrap();
                cut += 1;
            }
        }
        assert_eq!(cut, 1);
        let error = buffer.wake().unwrap_err();
        assert_eq!((error.kind(), error.status()), (ErrorKind::ContentLost, Status::CONTENT_LOST));
        assert_ne!(state(&buffer), BufferState::AWAKE);
        buffer.close().unwrap();
        fs::remove_dir(&folder).unwrap();
    });
}

#[test]
fn after_a_lost_device_a_group_is_released() {
    with_host(HostOptions::new(), |instance, device| {
        let group = Group::new(instance).unwrap();
        let awake = member(instance, device, &group, "awake", 1);
        let asleep = member(instance, device, &group, "asleep", 2);
        group.sleep(SleepOptions::new().tag("asleep")).unwrap();
        host::device_lose(device).unwrap();
        assert_eq!(kind(group.sleep(Content::PINNED)), ErrorKind::DeviceLost);
        assert_eq!(kind(group.wake()), ErrorKind::DeviceLost);
        assert_eq!((state(&awake), state(&asleep)), (BufferState::AWAKE, BufferState::ASLEEP));
        drop((awake, asleep));
        group.close().unwrap();
        assert_eq!(instance.stats().unwrap().live_objects(), 0);
    });
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
                let group = Group::new(instance)?;
                let options = BufferOptions::new().reserve(1 << 20).group(&group);
                let mut first = Buffer::<u32>::with_options(device, LEN, &options)?;
                let second = Buffer::<u32>::with_options(device, LEN, &options)?;
                first.set_callbacks(BufferCallbacks::new().before_sleep(|_| true))?;
                instance.fill(&first, 1u32)?;
                instance.fill(&second, 2u32)?;
                group.prepare(Content::PAGEABLE)?;
                group.sleep(Content::PAGEABLE)?;
                group.wake()?;
                let mut seen = [0; 2];
                instance.copy(&mut seen[..1], first.slice(LEN - 1..).unwrap())?;
                instance.copy(&mut seen[1..], second.slice(..1).unwrap())?;
                assert_eq!(seen, [1, 2]);
                first.close()?;
                second.close()?;
                group.close()?;
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

#[test]
fn a_buffer_may_be_an_ordinary_allocation() {
    // The attribute says whether a device has virtual memory management.
    if !with_fake_cuda("a_buffer_may_be_an_ordinary_allocation", &[("FAKE_CUDA_ATTRIBUTE_102", "0")]) {
        return;
    }
    with_device(|instance, device| {
        assert_eq!(kind(Buffer::<u32>::new(device, LEN)), ErrorKind::Unsupported);
        let group = Group::new(instance).unwrap();
        let options = BufferOptions::new().flags(BufferFlags::COPYABLE).group(&group);
        let mut buffer = Buffer::<u32>::with_options(device, LEN, &options).unwrap();
        assert!(buffer.info().unwrap().range.is_null());
        assert_eq!(kind(buffer.set_ahead(1)), ErrorKind::Unsupported);
        instance.fill(&buffer, 7u32).unwrap();
        let values = |buffer: &Buffer<u32>| {
            let mut seen = vec![0; LEN];
            instance.copy(&mut seen, buffer.slice(..LEN).unwrap()).unwrap();
            seen.iter().all(|value| *value == 7)
        };

        // It moves when it grows or shrinks, which work in a stream forbids.
        let (stream, gate) = gated(device);
        drop(stream.fill(buffer.slice(..1).unwrap(), 7u32).unwrap());
        for len in [LEN - 1, 1 << 20] {
            assert_eq!(kind(buffer.resize(len)), ErrorKind::Busy, "{len}");
        }
        assert_eq!(kind(buffer.reserve_exact(1 << 20)), ErrorKind::Busy);
        assert_eq!(kind(buffer.shrink_to_fit()), ErrorKind::Busy);
        gate[0].store(1, Ordering::Release);
        stream.synchronize().unwrap();
        let before = buffer.device_address();
        buffer.resize(1 << 20).unwrap();
        assert_ne!(buffer.device_address(), before);
        assert_eq!(buffer.info().unwrap().base as u64, buffer.device_address());
        assert!(values(&buffer));

        // Asleep it has no address, and afterwards another one, also through its group.
        group.sleep(Content::PAGEABLE).unwrap();
        // Its old addresses are those of other memory now.
        let others: Vec<_> = (0..4).map(|_| DeviceMemory::<u32>::new(device, 1 << 20).unwrap()).collect();
        let error = instance.fill(&buffer, 9u32).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        assert!(error.message().contains("asleep"), "{error}");
        assert_eq!(stream.fill(&buffer, 9u32).unwrap_err().error.kind(), ErrorKind::InvalidState);
        assert_eq!(buffer.device_address(), 0);
        group.wake().unwrap();
        assert_eq!(buffer.info().unwrap().base as u64, buffer.device_address());
        assert!(values(&buffer));
        // Woken again by a sleep that was cancelled.
        let end = |done, total| if done < total { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let _ = group.sleep(SleepOptions::new().progress(end));
        group.wake().unwrap();
        buffer.sleep(Content::PINNED).unwrap();
        buffer.wake().unwrap();
        assert!(values(&buffer));
        drop(others);

        // The CPU borrows one on the host.
        let options = BufferOptions::new().flags(BufferFlags::COPYABLE).host().group(&group);
        let mut table = Buffer::<u32>::with_options(device, 10, &options).unwrap();
        table.host_mut().unwrap()[9] = 3;
        table.resize(100_000).unwrap();
        group.sleep(Content::PAGEABLE).unwrap();
        assert_eq!(kind(table.host()), ErrorKind::InvalidState);
        group.wake().unwrap();
        assert_eq!(table.host().unwrap()[9], 3);
        table.resize(0).unwrap();
        assert!(table.host().unwrap().is_empty());
    });
}

#[test]
fn memory_is_shared_over_the_fabric() {
    with_device(|_, device| {
        let options = PhysicalOptions::new();
        let unit = Physical::granularity(device, &options).unwrap().recommended;
        // It was made for no sharing.
        let block = Physical::new(device, unit).unwrap();
        assert_eq!(kind(block.export_fabric()), ErrorKind::Unsupported);
        if is_host() {
            let fabric = options.handle_types(HandleTypes::FABRIC);
            let error = Physical::import_fabric(device, unit, &fabric, &FabricHandle([0; 64])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().starts_with("Physical::import_fabric: "), "{error}");
        }
    });
    if with_fake_cuda("memory_is_shared_over_the_fabric", &[("FAKE_CUDA_IMEX", "1")]) {
        with_device(|_, device| {
            let options = PhysicalOptions::new().handle_types(HandleTypes::FABRIC);
            let unit = Physical::granularity(device, &options).unwrap().recommended;
            let block = Physical::with_options(device, unit, &options).unwrap();
            let fabric = block.export_fabric().unwrap();
            assert_ne!(fabric, FabricHandle([0; 64]));
            let same = Physical::import_fabric(device, unit, &options, &fabric).unwrap();
            let info = same.info().unwrap();
            assert!(info.imported && info.size == unit);
            let nothing = FabricHandle([0x5a; 64]);
            let error = Physical::import_fabric(device, unit, &options, &nothing).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        });
    }
}
