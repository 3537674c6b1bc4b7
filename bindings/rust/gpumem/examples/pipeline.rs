// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! A pipeline: while some chunks are on their way to the device, the CPU prepares the next.

use std::collections::VecDeque;
use std::error::Error;

use gpumem::{DeviceMemory, Instance, Pinned, Stream};

const CHUNK: usize = 1 << 16;
const LANES: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let instance = Instance::default_instance()?;
    let device = instance.device(0)?;
    let data: Vec<u8> = (0..CHUNK * 10 + CHUNK / 2).map(|index| (index / 3) as u8).collect();
    let memory = DeviceMemory::<u8>::new(&device, data.len())?;

    // A stream and a staging buffer for each chunk that can be on its way.
    let mut free = Vec::new();
    for _ in 0..LANES {
        free.push((Stream::new(&device)?, Pinned::<u8>::zeroed(&device, CHUNK)?));
    }
    let mut running = VecDeque::new();
    for (index, chunk) in data.chunks(CHUNK).enumerate() {
        let (stream, mut staging) = free.pop().ok_or("no lane is free")?;
        staging[..chunk.len()].copy_from_slice(chunk);
        let start = index * CHUNK;
        let part = memory.slice(start..start + chunk.len())?;
        // The last chunk may be shorter than the buffer, which comes back whole.
        let pending = stream.copy(part, staging.into_part(..chunk.len())?)?;
        running.push_back((stream, pending));
        if free.is_empty() {
            // All are on their way: wait for the oldest, which returns its staging buffer.
            if let Some((stream, pending)) = running.pop_front() {
                let (_, staging) = pending.wait()?;
                free.push((stream, staging));
            }
        }
    }
    for (_, pending) in running {
        pending.wait()?;
    }

    let content = if memory.to_vec()? == data { "equal" } else { "different" };
    println!("pipeline: {} bytes to the device, content {content}", data.len());
    Ok(())
}
