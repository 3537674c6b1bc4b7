// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Memory of one process that another one uses: the code of the section "Sharing" of the guide.
//!
//! The program starts itself again as the other process.

use std::error::Error;
use std::os::unix::net::UnixStream;
use std::process::Command;

use gpumem::{
    DeviceMemory, Event, EventFlags, ExportOptions, Hub, HubOptions, Imported, Instance, Link, LinkOptions,
    MemoryFlags, MemoryOptions, ShareHandle, SharePeer, ShareWay,
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
    let status = Command::new(std::env::current_exe()?).arg(path).status()?;
    assert!(status.success());
    Ok(())
}

/// Another process.
fn attach(instance: &Instance, path: &str) -> Result<(), Box<dyn Error>> {
    let link = Link::connect(instance, &LinkOptions::new().path(path))?;
    let entry = link.wait("batch", 0)?;
    let batch = Imported::new(instance, &link.fetch("batch")?)?;

    // Its bytes may change at any time, so they are copied.
    let mut values = [0.0f32; 3];
    instance.copy(&mut values, batch.slice(4, 3)?)?;
    println!("{values:?} of version {}, which is {:?}", entry.version, batch.info()?.state);
    assert_eq!(values, [0.5; 3]);
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
    assert_eq!(received, handle);

    let event = Event::with_options(&device, EventFlags::INTERPROCESS | EventFlags::DISABLE_TIMING, None)?
        .export()?;
    println!("{:?}", event.info()?);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let instance = Instance::default_instance()?;
    match std::env::args().nth(1) {
        Some(path) => attach(&instance, &path),
        None => {
            publish(&instance, &format!("@gpumem-example-{}", std::process::id()))?;
            ways(&instance)
        }
    }
}
