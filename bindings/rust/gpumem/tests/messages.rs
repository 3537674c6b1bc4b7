// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The log function. A process has only one, so there is only one test.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex};

use common::with_device;
use gpumem::{log, DeviceMemory, ErrorKind, LogLevel};

#[test]
fn messages_are_delivered() {
    with_device(|_, device| {
        let fail = || DeviceMemory::<u8>::new(device, 1 << 60).unwrap_err();
        assert_eq!(log::set(LogLevel(99), |_, _| {}).unwrap_err().kind(), ErrorKind::InvalidArgument);

        let (sender, receiver) = mpsc::channel();
        let sender = Mutex::new(sender);
        log::set(LogLevel::DEBUG, move |level, text| {
            sender.lock().unwrap().send((level, text.to_owned())).unwrap();
        })
        .unwrap();
        let error = fail();
        let (level, text) = receiver.try_recv().unwrap();
        assert_eq!(level, LogLevel::DEBUG);
        assert!(text.contains(error.message()), "{text}");

        // A function that tries to replace itself is refused, and may panic.
        let refused = Arc::new(AtomicBool::new(false));
        let seen = refused.clone();
        log::set(LogLevel::DEBUG, move |_, _| {
            seen.store(log::clear().unwrap_err().kind() == ErrorKind::InvalidState, Ordering::Release);
            std::panic::resume_unwind(Box::new("on purpose"));
        })
        .unwrap();
        // The previous function is dropped, with its end of the channel.
        assert!(receiver.recv().is_err());
        fail();
        assert!(refused.load(Ordering::Acquire));

        log::clear().unwrap();
        assert_eq!(Arc::strong_count(&refused), 1);
        fail();
    });
}
