// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Use after close. In a process of its own: the library remembers the end of a handle only until its slot has been
//! used again by another instance.

mod common;

use std::sync::mpsc;

use common::backend;
use gpumem::{DeviceMemory, ErrorKind, Instance};

#[test]
fn use_after_close_is_refused() {
    let instance = Instance::open(backend()).unwrap();
    let (device, copy) = (instance.device(0).unwrap(), instance.clone());
    std::thread::spawn(move || instance.close().map_err(|(_, error)| error).unwrap()).join().unwrap();
    assert_eq!(copy.info().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(device.memory().unwrap_err().kind(), ErrorKind::Closed);
    let (message, sent) = mpsc::channel();
    std::thread::spawn(move || {
        message.send(DeviceMemory::<u8>::new(&device, 1).unwrap_err().kind()).unwrap()
    });
    assert_eq!(sent.recv().unwrap(), ErrorKind::Closed);
    // Closing again is no error.
    copy.clone().close().map_err(|(_, error)| error).unwrap();
    copy.close().map_err(|(_, error)| error).unwrap();
}
