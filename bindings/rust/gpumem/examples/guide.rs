// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The code on the Rust page of the guide.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use gpumem::{
    log, Access, AddressRange, Advice, Backend, Buffer, BufferCallbacks, BufferFlags, BufferOptions, Content,
    DeviceMemory, Error, ErrorKind, Event, Group, HandleTypes, HostOptions, Instance, InstanceOptions, Kind,
    LogLevel, Managed, MemoryFlags, MemoryOptions, Physical, PhysicalOptions, Pinned, Place, Pool,
    PoolOptions, PrepareOptions, Processor, Region, RegisterOptions, Registered, SleepOptions, Stream,
    WaitCondition, WakeOptions, WriteCombined,
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kinds() -> Result<(), Error> {
    let options = InstanceOptions::new().backend(Backend::HOST).host(HostOptions::new().device_count(1));
    let instance = Instance::open(&options)?;
    let device = instance.device(0)?;

    // Device memory: the CPU cannot access it.
    let memory = DeviceMemory::from_slice(&device, &[1.0f32, 2.0, 3.0])?;
    let last = memory.slice(2..)?.len();
    instance.fill(&memory, 0.5f32)?;
    let values: Vec<f32> = memory.to_vec()?;

    // Pinned memory: a slice for the CPU, and accessed in place by devices through its address.
    let options = MemoryOptions::new().prefer(MemoryFlags::PAGE_LOCKED).name("staging");
    let mut pinned = Pinned::<f32>::zeroed_with_options(&device, 3, &options)?;
    pinned[0] = 7.0;
    instance.copy(&memory, &pinned)?;
    println!("a kernel finds it at {:#x}", pinned.device_address()?);

    // Write-combined memory: written, never read.
    let mut combined = WriteCombined::<f32>::new(&device, 3)?;
    combined.write_slice(0, &[4.0, 5.0, 6.0])?;
    instance.copy(&memory, &combined)?;

    // Registered memory: an existing array, pinned in place until into_vec() returns it.
    let registered = Registered::new(&device, values, &RegisterOptions::new())?;
    instance.copy(&memory, &registered)?;
    let values: Vec<f32> = registered.into_vec()?;

    // An array that is only borrowed is registered while a function runs.
    let mut borrowed = [0.0f32; 3];
    device.with_registered(&mut borrowed, &RegisterOptions::new(), |borrowed, _| {
        instance.copy(&mut *borrowed, &memory)
    })??;
    assert_eq!((last, &*values, &borrowed[..]), (1, &[0.5; 3][..], &[0.5; 3][..]));
    Ok(())
}

fn streams() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;

    let stream = Stream::new(&device)?;
    let memory = DeviceMemory::<u32>::new(&device, 1000)?;
    let array = Pinned::from_slice(&device, &[7u32; 1000])?;

    // The copy takes the array, so that nothing can access it while the copy runs.
    let pending = stream.copy(&memory, array)?;
    // A slice that is read before the call returns may be borrowed.
    drop(stream.copy_from_slice(memory.slice(..2)?, &[8, 9])?);
    // When the copy is complete, the array is returned.
    let (_, array) = pending.wait()?;

    let event = Event::new(&device)?;
    event.record(&stream)?;
    event.synchronize()?;
    println!("{:?} {:?}", &memory.to_vec()?[..3], &array[..3]);

    // Words that the CPU and a device share are atomics.
    let flag = Pinned::<AtomicU32>::zeroed(&device, 1)?;
    stream.wait_value(&flag, 0, WaitCondition::GEQ, 1)?;
    stream.launch_host_function(|| println!("the flag was set"))?;
    flag[0].store(1, Ordering::Release);
    stream.synchronize()
}

fn sharing_with_threads() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;
    let stream = Stream::new(&device)?;
    let memory = DeviceMemory::from_slice(&device, &[7u32; 1000])?;

    // Other threads may read an array of atomics while work writes it.
    let results = Pinned::<AtomicU32>::zeroed(&device, 1000)?;
    let arrived = Pinned::<AtomicU32>::zeroed(&device, 1)?;
    drop(stream.copy(&results, &memory)?);
    drop(stream.fill(results.slice(999..)?, 9u32)?);
    stream.write_value(&arrived, 0, 1)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            // This thread does not wait for the stream, but for the word that is written behind the copy.
            while arrived[0].load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            let sum: u32 = results.iter().map(|result| result.load(Ordering::Relaxed)).sum();
            println!("the sum of the results is {sum}");
        });
    });

    stream.synchronize()?;
    assert_eq!((results[998].load(Ordering::Relaxed), results[999].load(Ordering::Relaxed)), (7, 9));
    Ok(())
}

/// A task that is the whole of a thread. Any runtime does as well.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    let mut future = Box::pin(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A future with a limit on its time.
struct Timeout<F> {
    future: F,
    end: Instant,
}

impl<F: Future + Unpin> Future for Timeout<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = Pin::new(&mut self.future).poll(context) {
            return Poll::Ready(Some(output));
        }
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Poll::Ready(None);
        }
        let waker = context.waker().clone();
        thread::spawn(move || {
            thread::sleep(left);
            waker.wake();
        });
        Poll::Pending
    }
}

fn timeout<F: Future + Unpin>(limit: Duration, future: F) -> Timeout<F> {
    Timeout { future, end: Instant::now() + limit }
}

fn awaiting() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;
    let stream = Stream::new(&device)?;
    let memory = DeviceMemory::from_slice(&device, &[7u32; 1000])?;

    let received = block_on(async {
        let array = Pinned::<u32>::zeroed(&device, 1000)?;
        let (array, _) = stream.copy(array, &memory)?.await?;
        Ok::<_, Error>(array)
    })?;
    assert_eq!(*received, [7; 1000]);

    // The device may be lost while the task waits, and then nothing wakes it before a call finds that out.
    let received = block_on(async {
        let array = Pinned::<u32>::zeroed(&device, 1000)?;
        let mut pending = stream.copy(array, &memory)?;
        loop {
            match timeout(Duration::from_secs(1), &mut pending).await {
                Some(arrived) => break Ok::<_, Error>(arrived?.0),
                None => stream.is_complete()?,
            };
        }
    })?;
    assert_eq!(*received, [7; 1000]);
    Ok(())
}

fn timing() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;
    let stream = Stream::new(&device)?;
    let memory = DeviceMemory::<u32>::new(&device, 1 << 20)?;

    let (start, end) = (Event::new(&device)?, Event::new(&device)?);
    start.record(&stream)?;
    drop(stream.fill(&memory, 1u32)?);
    end.record(&stream)?;
    end.synchronize()?;
    // None while one of the two is not complete.
    if let Some(nanoseconds) = end.nanoseconds_since(&start)? {
        println!("the fill took {nanoseconds} ns");
    }
    Ok(())
}

fn regions() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;

    let image = vec![7u8; 640 * 480];
    let tile = DeviceMemory::<u8>::new(&device, 64 * 64)?;
    let row = DeviceMemory::<u8>::new(&device, 640)?;
    instance.copy_regions([
        // The tile at column 100 of row 50. In the memory its rows are packed.
        Region::new(&tile, &image[50 * 640 + 100..], 64).height(64).source_row_pitch(640),
        // The last row.
        Region::new(&row, &image[479 * 640..], 640),
    ])?;
    assert_eq!((tile.to_vec()?, row.to_vec()?), (vec![7; 64 * 64], vec![7; 640]));
    Ok(())
}

fn managed() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;
    let stream = Stream::new(&device)?;

    let mut table = Managed::<u32>::zeroed(&device, 1 << 20)?;
    {
        // The CPU has access while the guard lives.
        let mut values = table.host_mut()?;
        values[0] = 7;
    }
    // Hints say whether they had an effect here.
    instance.advise(&table, Advice::SET_READ_MOSTLY, None)?;
    let moved = stream.prefetch(table.range(..1000)?, Place::device(0))?;
    println!("prefetched: {moved}, {:?}", instance.managed_info(&table)?);

    // A stream takes the array, as any other that the CPU can access.
    let memory = DeviceMemory::<u32>::new(&device, table.len())?;
    let (_, table) = stream.copy(&memory, table)?.wait()?;
    println!("the first value is {}", table.host()?[0]);

    // The values are no longer needed, so their pages need not be moved.
    let tables = stream.discard([table.into_uninit()])?.wait()?;
    assert_eq!(tables.len(), 1);
    Ok(())
}

fn ranges() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;

    // Addresses for 1000 blocks, and memory for one.
    let options = PhysicalOptions::new().handle_types(HandleTypes::POSIX_FD);
    let block = Physical::granularity(&device, &options)?.recommended;
    let mut range = AddressRange::reserve(&instance, 1000 * block)?;
    let first = Physical::with_options(&device, block, &options)?;
    range.map(0, [&first])?;
    let device_0 = (Processor::Device(0), Access::READ_WRITE);
    range.set_access(0, block, &[device_0])?;
    instance.fill(range.slice(..block as usize)?, 1u8)?;

    // To grow, map one more behind it. The mapping keeps the memory alive.
    range.map(block, [&Physical::new(&device, block)?])?;
    range.set_access(block, block, &[device_0])?;
    let end = block as usize;
    instance.copy(range.slice(end - 2..end + 2)?, &[2u8, 3, 4, 5])?;

    // Another process imports the descriptor, with the same size and options.
    let descriptor = first.export_fd()?;
    let same = Physical::import_fd(&device, block, &options, &descriptor)?;
    let mut other = AddressRange::reserve(&instance, block)?;
    other.map(0, [&same])?;
    other.set_access(0, block, &[device_0])?;
    let mut seen = [0u8; 3];
    instance.copy(&mut seen, other.slice(end - 3..)?)?;
    assert_eq!(seen, [1, 2, 3]);

    range.unmap(block, block)?;
    println!("{} of {} bytes are mapped", range.info()?.mapped_size, range.bytes());
    range.close()?;
    Ok(())
}

fn buffers() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;
    let stream = Stream::new(&device)?;

    let options = BufferOptions::new().reserve(64 << 20).name("cache");
    let mut cache = Buffer::<f32>::with_options(&device, 1000, &options)?;
    let address = cache.device_address();
    let pending = stream.fill(&cache, 0.5f32)?;

    // It grows at its address, also while work uses it.
    cache.reserve_exact(1_000_000)?;
    cache.resize(3000)?;
    instance.fill(cache.slice(1000..)?, 0.25f32)?;
    cache.extend_from_slice(&[1.0, 2.0])?;
    pending.wait()?;

    // The memory is free while it sleeps.
    cache.sleep(Content::PINNED)?;
    println!("{} bytes are kept on the host", cache.info()?.stored_size);
    cache.wake()?;
    assert_eq!(cache.device_address(), address);

    // The CPU borrows what lies on the host. This one moves when its addresses are used up.
    let options = BufferOptions::new().host().reserve(1 << 20).flags(BufferFlags::MOVABLE);
    let mut table = Buffer::<f32>::with_options(&device, 1000, &options)?;
    table.host_mut()?[999] = 1.5;
    table.resize(1_000_000)?;
    assert_eq!(table.host()?[999], 1.5);
    Ok(())
}

fn sleep() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;

    let model = Group::new(&instance)?;
    let options = BufferOptions::new().group(&model);
    let weights = Buffer::<f32>::with_options(&device, 1_000_000, &options.clone().tag("weights"))?;
    let mut cache = Buffer::<f32>::with_options(&device, 1_000_000, &options.tag("cache"))?;
    instance.fill(&weights, 0.5f32)?;

    // The stores are made ahead, on a thread of the library, so that the sleep only copies.
    model.prepare(PrepareOptions::from(Content::PINNED).tag("weights").bytes_per_second(1 << 30))?;

    // The weights are kept, the cache is not.
    let report = |done, total| {
        println!("{done} of {total} bytes");
        ControlFlow::Continue(())
    };
    model.sleep(SleepOptions::from(Content::PINNED).tag("weights").progress(report))?;
    model.sleep(SleepOptions::from(Content::DROP).tag("cache"))?;
    println!("{} buffers sleep", model.info()?.asleep_count);

    // The next sleep needs no new store.
    model.wake_with_options(WakeOptions::new().keep(u64::MAX))?;
    let mut value = [0.0];
    instance.copy(&mut value, weights.slice(999_999..)?)?;
    assert_eq!((value, model.info()?.awake_count), ([0.5], 2));

    // A network card has the memory registered, except while it sleeps.
    let card = Arc::new(Mutex::new(Some(cache.note_registration("nic")?)));
    let again = card.clone();
    let callbacks = BufferCallbacks::new()
        .before_sleep(move |_| {
            // Here the program takes the memory away from the card.
            lock(&card).take();
            true
        })
        .after_wake(move |cache, _generation| *lock(&again) = cache.note_registration("nic").ok());
    cache.set_callbacks(callbacks)?;
    model.sleep(Content::PINNED)?;
    model.wake()?;
    assert_eq!(cache.info()?.registrations, 1);
    Ok(())
}

fn pools() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;
    let stream = Stream::new(&device)?;

    let pool = Pool::with_options(&device, &PoolOptions::new().limit(1 << 30).name("steps"))?;
    let staging = Pool::with_options(&device, &PoolOptions::new().kind(Kind::PINNED))?;
    for step in 0..10u32 {
        // The CPU writes it, so it is freed when the copy was observed complete.
        let mut sent = staging.alloc::<u32>(1000, None)?;
        sent.host_mut()?.fill(step);
        // Freed at once, while the copy may run: the next step gets the same memory behind it.
        let block = pool.alloc::<u32>(1000, Some(&stream))?;
        drop(stream.copy(&block, &sent)?);
    }
    println!("{} blocks from {} bytes", pool.info()?.total_count, pool.info()?.reserved_bytes);

    // Called when the pool lacks memory: free what can be made again.
    let cache = Arc::new(Mutex::new(vec![pool.alloc::<u8>(1 << 20, None)?]));
    let shared = Arc::downgrade(&cache);
    pool.set_callback(move |_| shared.upgrade().map_or(false, |cache| lock(&cache).pop().is_some()))?;

    assert!(pool.alloc::<u8>(1 << 31, None).is_err());
    assert!(lock(&cache).is_empty());
    Ok(())
}

fn queries() -> Result<(), Error> {
    let instance = Instance::open(Backend::ANY)?;
    let device = instance.device(0)?;

    // Backend::ANY opens the host backend where cuda cannot be opened.
    if let Some(fallback) = instance.info()?.fallback {
        println!("no GPU: {}", fallback.reason);
    }
    let pinned = Pinned::<u8>::zeroed(&device, 4096)?;
    let access = instance.pointer_access(pinned.as_ptr().cast(), Processor::Device(0))?;
    println!("device 0 may do {access:?} in place");
    let stats = instance.kind_stats(Kind::PINNED)?;
    println!("{} bytes of pinned memory, at most {}", stats.live_bytes, stats.peak_bytes);
    Ok(())
}

fn errors() -> Result<(), Error> {
    let device = Instance::open(Backend::HOST)?.device(0)?;

    match DeviceMemory::<u8>::new(&device, 1 << 40) {
        Ok(_) => println!("that is a large device"),
        Err(error) if error.kind() == ErrorKind::OutOfMemory => {
            println!("{}: {}", error.status().name(), error.message());
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn logging() -> Result<(), Error> {
    log::set(LogLevel::WARNING, |level, message| eprintln!("gpumem: {level:?}: {message}"))?;
    log::clear()
}

fn closing() -> Result<(), Error> {
    let instance = Instance::open(Backend::HOST)?;
    let device = instance.device(0)?;
    let memory = DeviceMemory::<u8>::new(&device, 4096)?;

    // Refused, with a list of live objects; the instance is returned.
    let instance = match instance.close() {
        Ok(()) => return Ok(()),
        Err(rejected) => {
            println!("{}", rejected.error);
            rejected.given
        }
    };
    drop(memory);
    instance.close()?;
    Ok(())
}

fn main() -> Result<(), Error> {
    kinds()?;
    streams()?;
    sharing_with_threads()?;
    awaiting()?;
    timing()?;
    regions()?;
    managed()?;
    ranges()?;
    buffers()?;
    pools()?;
    sleep()?;
    queries()?;
    errors()?;
    logging()?;
    closing()
}
