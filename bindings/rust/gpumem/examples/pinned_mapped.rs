// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Pinned memory with its flags, existing memory that is pinned in place, and a copy between the two in a stream.

use gpumem::{
    Error, Event, Instance, MemoryFlags, MemoryInfo, MemoryOptions, Pinned, RegisterOptions, Registered,
    Stream, WriteCombined,
};

const COUNT: usize = 16384;

fn print_flags(name: &str, info: Option<MemoryInfo>) {
    let flags = info.map_or(MemoryFlags::NONE, |info| info.granted_flags);
    let has = |flag| if flags.contains(flag) { "yes" } else { "no" };
    println!(
        "{name}: portable {}, mapped {}, write_combined {}",
        has(MemoryFlags::PORTABLE),
        has(MemoryFlags::MAPPED),
        has(MemoryFlags::WRITE_COMBINED)
    );
}

fn main() -> Result<(), Error> {
    let instance = Instance::default_instance()?;
    let device = instance.device(0)?;
    {
        let options = MemoryOptions::new().require(MemoryFlags::PORTABLE | MemoryFlags::MAPPED);
        let pinned = Pinned::<i32>::zeroed_with_options(&device, COUNT, &options)?;
        let combined = WriteCombined::<i32>::new(&device, COUNT)?;
        print_flags("pinned", pinned.info()?);
        print_flags("write-combined", combined.info()?);
        println!("device pointer: {}", if pinned.device_address()? != 0 { "yes" } else { "no" });

        let mine: Vec<i32> = (0..COUNT as i32).map(|number| number * number).collect();
        let registered = Registered::new(&device, mine, &RegisterOptions::new())?;
        println!("registered: {} bytes", std::mem::size_of_val(&*registered));

        let stream = Stream::new(&device)?;
        let event = Event::new(&device)?;
        // Both arrays are returned when the copy is complete.
        let pending = stream.copy(pinned, registered)?;
        event.record(&stream)?;
        event.synchronize()?;
        let (pinned, registered) = pending.wait()?;
        let content = if *pinned == *registered { "equal" } else { "different" };
        println!("pinned_mapped: {} bytes on a stream, content {content}", std::mem::size_of_val(&*pinned));
    }
    println!("live objects: {}", instance.stats()?.live_objects());
    Ok(())
}
