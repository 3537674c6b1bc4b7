// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! A megabyte from pinned memory to the device and back.

use gpumem::{DeviceMemory, Error, Instance, Pinned};

const SIZE: usize = 1 << 20;

fn main() -> Result<(), Error> {
    let instance = Instance::default_instance()?;
    let device = instance.device(0)?;
    {
        let mut sent = Pinned::<u8>::zeroed(&device, SIZE)?;
        let mut received = Pinned::<u8>::zeroed(&device, SIZE)?;
        let there = DeviceMemory::<u8>::new(&device, SIZE)?;

        for (index, byte) in sent.iter_mut().enumerate() {
            *byte = (index * 7) as u8;
        }
        instance.copy(&there, &sent)?;
        instance.copy(&mut received, &there)?;
        let content = if *sent == *received { "equal" } else { "different" };
        println!("basic: {SIZE} bytes to the device and back, content {content}");
    }
    println!("live objects: {}", instance.stats()?.live_objects());
    Ok(())
}
