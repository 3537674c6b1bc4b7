// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Memory of one process that another one uses: the code of the section "Sharing" of the guide.
//!
//! The program starts itself again as the other process.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use gpumem::{
    Access, Buffer, BufferOptions, DeviceMemory, ErrorKind, Event, EventFlags, ExportOptions, FetchOptions,
    HandleTypes, Hub, HubFlags, HubOptions, ImportOptions, Imported, Instance, Link, LinkOptions,
    MemoryFlags, MemoryOptions, PublishOptions, RingConsumer, RingOpenOptions, RingOptions, RingProducer,
    ShareHandle, SharePeer, ShareWay, Stream,
};

/// The process that has the memory.
fn publish(instance: &Instance, path: &str) -> Result<(), Box<dyn Error>> {
    let device = instance.device(0)?;

    // Others see nothing else of the device.
    let options = MemoryOptions::new().require(MemoryFlags::SHAREABLE);
    let batch = DeviceMemory::<f32>::with_options(&device, 1000, &options)?;
    instance.fill(&batch, 0.5f32)?;
    let handle = instance.export(&batch, &ExportOptions::new())?;

    // Under a name, for all processes of this user.
    let hub = Hub::open(instance, &HubOptions::new().path(path))?;
    let version = hub.publish("batch", &handle)?;

    println!("version {version} of the batch is published");
    let status = Command::new(std::env::current_exe()?).args(["attach", path]).status()?;
    assert!(status.success());
    Ok(())
}

/// Another process.
fn attach(instance: &Instance, path: &str) -> Result<(), Box<dyn Error>> {
    let link = Link::connect(instance, &LinkOptions::new().path(path))?;
    let entry = link.wait("batch", 0)?;
    // That very version: there may be a newer one by now.
    let fetch = FetchOptions::new().version(entry.version);
    let batch = Imported::new(instance, &link.fetch_with_options("batch", &fetch)?)?;

    // Its bytes may change at any time, so they are copied.
    let mut values = [0.0f32; 3];
    instance.copy(&mut values, batch.slice(1..4)?)?;
    println!("{values:?} of version {}, which is {:?}", entry.version, batch.info()?.state);
    assert_eq!(values, [0.5; 3]);
    Ok(())
}

/// A hub that is closed and opened again.
fn publish_and_restart(instance: &Instance, path: &str) -> Result<(), Box<dyn Error>> {
    let device = instance.device(0)?;
    let mut reader =
        Command::new(std::env::current_exe()?).args(["follow", path]).stdout(Stdio::piped()).spawn()?;
    let mut used = reader.stdout.take().expect("it is piped");
    for value in 1..=2u32 {
        let hub = Hub::open(instance, &HubOptions::new().path(path))?;
        let options = BufferOptions::new().handle_types(HandleTypes::POSIX_FD);
        let model = Buffer::<u32>::with_options(&device, 1000, &options)?;
        instance.fill(&model, value)?;
        hub.publish("model", &instance.export(&model, &ExportOptions::new())?)?;
        used.read_exact(&mut [0])?;
    }
    assert!(reader.wait()?.success());
    Ok(())
}

/// Uses each new version of a name, also when its hub was restarted.
fn follow(instance: &Instance, path: &str) -> Result<(), Box<dyn Error>> {
    let mut current = None;
    loop {
        let link = match Link::connect(instance, &LinkOptions::new().path(path)) {
            // No hub is there yet.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                sleep(Duration::from_millis(10));
                continue;
            }
            link => link?,
        };
        // Another hub counts anew.
        let mut seen = 0;
        loop {
            let (model, entry) = match link.import_next("model", seen, &ImportOptions::new()) {
                Err(error) if error.kind() == ErrorKind::PeerGone => break,
                next => next?,
            };
            seen = entry.version;
            // The new one is used from here on, and the old one is dropped.
            let model: &Imported = current.insert(model);
            if !used(instance, model)? {
                return Ok(());
            }
        }
    }
}

fn used(instance: &Instance, model: &Imported) -> Result<bool, Box<dyn Error>> {
    let mut value = [0u32];
    instance.copy(&mut value, model.slice(999..1000)?)?;
    std::io::stdout().write_all(b"!")?;
    std::io::stdout().flush()?;
    Ok(value != [2])
}

/// Runs of a program that finds again what its last run had.
fn restart(instance: &Instance, path: &str) -> Result<(), Box<dyn Error>> {
    // In place of `gpumem keep`.
    let keeper = Hub::open(instance, &HubOptions::new().path(path).flags(HubFlags::KEEPER))?;
    for value in ["1", "2"] {
        let status = Command::new(std::env::current_exe()?).args(["run", path, value]).status()?;
        assert!(status.success());
    }
    assert_eq!(keeper.info()?.name_count, 1);
    Ok(())
}

fn run(instance: &Instance, path: &str, value: u32) -> Result<(), Box<dyn Error>> {
    let device = instance.device(0)?;
    let mut found = [0u32];

    let link = Link::connect(instance, &LinkOptions::new().path(path))?;
    match link.fetch("state") {
        Ok(handle) => {
            // What the last run left.
            let state = Imported::new(instance, &handle)?;
            instance.copy(&mut found, state.slice(..1)?)?;
            instance.copy(state.slice(..1)?, &[value])?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // The first run. The next one may write too.
            let options = BufferOptions::new().handle_types(HandleTypes::POSIX_FD);
            let state = Buffer::<u32>::with_options(&device, 1000, &options)?;
            instance.fill(&state, value)?;
            let handle = instance.export(&state, &ExportOptions::new())?;
            let options = PublishOptions::new().access(Access::READ_WRITE);
            link.publish_with_options("state", &handle, &options)?;
        }
        Err(error) => return Err(error.into()),
    }

    assert_eq!(found, [value - 1]);
    Ok(())
}

/// Records here, and waits in another process.
fn record(instance: &Instance) -> Result<(), Box<dyn Error>> {
    let device = instance.device(0)?;
    let options = MemoryOptions::new().require(MemoryFlags::SHAREABLE);
    let batch = DeviceMemory::<u32>::with_options(&device, 1000, &options)?;
    let stream = Stream::new(&device)?;
    let mut other = Command::new(std::env::current_exe()?).arg("wait").stdin(Stdio::piped()).spawn()?;
    let mut channel = other.stdin.take().expect("it is piped");

    let filled = Event::with_options(&device, EventFlags::INTERPROCESS | EventFlags::DISABLE_TIMING, None)?;
    drop(stream.fill(&batch, 7u32)?);
    filled.record(&stream)?;
    // The record is made, so now the other process may wait for it.
    channel.write_all(filled.export()?.as_ref())?;
    channel.write_all(instance.export(&batch, &ExportOptions::new())?.as_ref())?;

    assert!(other.wait()?.success());
    stream.synchronize()?;
    Ok(())
}

fn wait(instance: &Instance) -> Result<(), Box<dyn Error>> {
    let device = instance.device(0)?;
    let stream = Stream::new(&device)?;
    let mut event = [0; ShareHandle::LEN];
    std::io::stdin().read_exact(&mut event)?;
    let mut memory = [0; ShareHandle::LEN];
    std::io::stdin().read_exact(&mut memory)?;

    let filled = Event::import(&device, &ShareHandle::from(event))?;
    let batch = Imported::new(instance, &ShareHandle::from(memory))?;
    // On the device: what comes behind it in the stream sees the values.
    stream.wait_event(&filled)?;
    stream.synchronize()?;

    let mut values = [0u32; 3];
    instance.copy(&mut values, batch.slice(..3)?)?;
    assert_eq!(values, [7; 3]);
    Ok(())
}

fn ways(instance: &Instance) -> Result<(), Box<dyn Error>> {
    let device = instance.device(0)?;
    let options = MemoryOptions::new().require(MemoryFlags::SHAREABLE);
    let memory = DeviceMemory::<u8>::with_options(&device, 4096, &options)?;

    let way = instance.share_way(&memory, ShareWay::POSIX_FD, SharePeer::CONTAINER)?;
    if !way.is_possible() {
        println!("{}", way.message);
    }

    // A handle is bytes.
    let handle = instance.export(&memory, &ExportOptions::new())?;
    let bytes: Vec<u8> = handle.as_ref().to_vec();
    let received = ShareHandle::try_from(&bytes[..])?;
    assert_eq!(received, handle);

    // With its descriptors and a connection, it also goes into another container.
    let (ours, theirs) = UnixStream::pair()?;
    instance.send(&handle, &ours)?;
    let received = instance.receive(&theirs)?;
    assert_eq!(received.info()?.buffer_id, handle.info()?.buffer_id);

    Ok(())
}

/// The process that fills slots.
fn produce(instance: &Instance) -> Result<(), Box<dyn Error>> {
    let device = instance.device(0)?;
    let mut worker = Command::new(std::env::current_exe()?).arg("worker").stdin(Stdio::piped()).spawn()?;

    let mut ring = RingProducer::new(&device, 1 << 20, &RingOptions::new().consumers_first(1))?;
    worker.stdin.take().ok_or("no pipe")?.write_all(ring.export()?.as_ref())?;
    let stream = Stream::new(&device)?;
    for number in 0..8u32 {
        let slot = ring.acquire(Some(&stream))?;
        drop(stream.fill(slot.slice::<u32>(..1000)?, number)?);
        slot.publish(4000, number.into())?;
    }
    ring.finish()?; // waits until all consumers have closed it

    assert!(worker.wait()?.success());
    stream.synchronize()?;
    Ok(())
}

/// A process that uses the messages.
fn consume(instance: &Instance) -> Result<(), Box<dyn Error>> {
    let mut bytes = [0; ShareHandle::LEN];
    std::io::stdin().read_exact(&mut bytes)?;

    let ring = RingConsumer::open(instance, &ShareHandle::from(bytes), &RingOpenOptions::new())?;
    for message in &ring {
        let message = message?;
        let mut values = [0u32; 1000];
        instance.copy(&mut values, message.slice(..1000)?)?;
        println!("message {}: {}", message.number(), values[999]);
        assert!(values.iter().all(|value| u64::from(*value) == message.tag()));
    } // each is released when it is dropped
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let instance = Instance::default_instance()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["attach", path] => attach(&instance, path),
        ["follow", path] => follow(&instance, path),
        ["run", path, value] => run(&instance, path, value.parse()?),
        ["wait"] => wait(&instance),
        ["worker"] => consume(&instance),
        _ => {
            let path = format!("@gpumem-example-{}", std::process::id());
            publish(&instance, &path)?;
            publish_and_restart(&instance, &path)?;
            restart(&instance, &path)?;
            record(&instance)?;
            ways(&instance)?;
            produce(&instance)
        }
    }
}
