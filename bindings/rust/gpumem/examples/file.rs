// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Weights in a file behind a header, read into memory of a device.

use std::error::Error;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use gpumem::{DeviceMemory, FileOptions, Instance};

const HEADER: u64 = 100;
const SIZE: usize = 12 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let instance = Instance::default_instance()?;
    let device = instance.device(0)?;
    let path = std::env::temp_dir().join(format!("gpumem-file-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let content: Vec<u8> = (0..SIZE).map(|i| (i * 7 + i / 1000) as u8).collect();
    file.write_all_at(&content, HEADER)?;

    let weights = DeviceMemory::<u8>::new(&device, SIZE)?;
    let mut last = 0;
    let options = FileOptions::new().progress(|done, total| {
        last = 100 * done / total;
        ControlFlow::Continue(()) // a break ends the call
    });
    instance.read_file_with(&weights, &file, HEADER, options)?;
    let same = if weights.to_vec()? == content { "equal" } else { "different" };
    println!("{last} % are there, content {same}");

    // More than the file has.
    if let Err(error) = instance.read_file(&weights, &file, HEADER + 1) {
        println!("{}: {}", error.status().name(), error.message());
    }
    weights.close()?;
    println!("live objects: {}", instance.stats()?.live_objects());
    Ok(())
}
