// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Three mistakes and their messages.

use gpumem::{CopyOptions, DeviceMemory, Error, Instance, Kind, Memory, MemoryOptions, Status};

fn refused<T>(result: Result<T, Error>) {
    if let Err(error) = result {
        println!("{}: {}", error.status().name(), error.message());
    }
}

fn main() -> Result<(), Error> {
    let instance = Instance::default_instance()?;
    let device = instance.device(0)?;

    // An array of length 0 never reaches the library, so this requests 0 bytes.
    refused(Memory::create(&device, Kind::DEVICE, 0, &MemoryOptions::new()));
    refused(DeviceMemory::<u8>::new(&device, 1 << 62));

    let memory = DeviceMemory::<u8>::new(&device, 4096)?;
    let source = [0u8; 16];
    // Only 8 bytes are left there. `memory.slice(4088..4104)` would fail before the copy, so this uses the address.
    let destination = (memory.device_address()? + 4088) as *mut _;
    // SAFETY: the library checks the range, and refuses it.
    refused(unsafe { instance.copy_raw(destination, source.as_ptr().cast(), 16, &CopyOptions::new()) });
    memory.close()?;

    let info = Status::BUSY.info()?;
    println!("{}: {}; {}", info.name, info.cause, info.remedy);
    println!("live objects: {}", instance.stats()?.live_objects());
    Ok(())
}
