// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Shared by the tests: an instance of the backend under test, and a check that no object is live at the end.
#![allow(dead_code)] // Each test uses a part.

use gpumem::{Backend, Device, HostOptions, Instance, InstanceOptions};

/// `host`, or `cuda` with the driver that is present.
pub fn backend() -> Backend {
    match std::env::var("GPUMEM_TEST_BACKEND").as_deref() {
        Ok("cuda") => Backend::CUDA,
        _ => Backend::HOST,
    }
}

pub fn is_host() -> bool {
    backend() == Backend::HOST
}

/// Runs a test with a new instance and its first device. At the end no object may be live.
pub fn with_device(test: impl FnOnce(&Instance, &Device)) {
    with_instance(Instance::open(backend()).unwrap(), test);
}

/// As [`with_device`], on the host backend with options; nothing on another backend.
pub fn with_host(options: HostOptions, test: impl FnOnce(&Instance, &Device)) {
    if is_host() {
        with_instance(Instance::open(InstanceOptions::from(Backend::HOST).host(options)).unwrap(), test);
    } else {
        println!("only the host backend has these options");
    }
}

fn with_instance(instance: Instance, test: impl FnOnce(&Instance, &Device)) {
    let device = instance.device(0).unwrap();
    test(&instance, &device);
    let stats = instance.stats().unwrap();
    assert_eq!(stats.live_objects(), 0, "{stats:?}\n{}", instance.report().unwrap());
    drop(device);
    instance.close().unwrap();
}
