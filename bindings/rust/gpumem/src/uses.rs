// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The parts of an object that work in streams uses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, ErrorKind, Status};
use crate::instance::lock;

/// Offsets of the first byte and behind the last one of each part that work in a stream uses.
#[derive(Default)]
pub struct Uses {
    parts: Mutex<Vec<(u64, u64)>>,
    abandoned: AtomicBool,
}

impl Uses {
    fn overlap(&self, offset: u64, bytes: u64) -> bool {
        let end = offset.saturating_add(bytes);
        lock(&self.parts).iter().any(|(first, behind)| *first < end && offset < *behind)
    }

    /// Whether work used the object whose end nobody can observe any more.
    pub(crate) fn are_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Fails if work uses a byte of this part of an object, such as a `range`.
    pub(crate) fn refuse(
        &self,
        (offset, bytes): (u64, u64),
        object: &str,
        function: &'static str,
    ) -> Result<(), Error> {
        if self.overlap(offset, bytes) {
            return Err(busy(object, function));
        }
        Ok(())
    }
}

pub(crate) fn busy(object: &str, function: &'static str) -> Error {
    let message = format!(
        "work that uses the {object} was not observed complete; synchronize the stream of that work first"
    );
    Error::own(ErrorKind::Busy, Status::BUSY, function, message)
}

/// Work was abandoned that uses the object.
pub(crate) fn lost(object: &str, function: &'static str) -> Error {
    let message = format!(
        "the device was lost while work used the {object}, and the work may go on; drop the {object}"
    );
    Error::own(ErrorKind::DeviceLost, Status::DEVICE_LOST, function, message)
}

/// An object of which work in streams uses parts.
pub trait Parts: Send + Sync {
    fn uses(&self) -> &Uses;
}

/// A part that work in a stream uses, and a share of its object.
pub struct Use {
    object: Arc<dyn Parts>,
    part: (u64, u64),
}

impl Use {
    /// `None` if there are no bytes.
    pub(crate) fn begin(object: Arc<dyn Parts>, offset: u64, bytes: u64) -> Option<Self> {
        if bytes == 0 {
            return None;
        }
        let part = (offset, offset.saturating_add(bytes));
        lock(&object.uses().parts).push(part);
        Some(Self { object, part })
    }

    /// Gives the share back although the work may go on: its device is lost.
    pub(crate) fn abandon(self) {
        self.object.uses().abandoned.store(true, Ordering::Release);
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut parts = lock(&self.object.uses().parts);
        if let Some(index) = parts.iter().position(|part| *part == self.part) {
            parts.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Object(Uses);

    impl Parts for Object {
        fn uses(&self) -> &Uses {
            &self.0
        }
    }

    #[test]
    fn uses_overlap_by_bytes_until_they_end() {
        let object = Arc::new(Object(Uses::default()));
        let used = |offset, bytes| object.0.overlap(offset, bytes);
        assert!(!used(0, u64::MAX));
        assert!(Use::begin(object.clone(), 5, 0).is_none());
        let first = Use::begin(object.clone(), 16, 16);
        let again = Use::begin(object.clone(), 16, 16);
        let second = Use::begin(object.clone(), 64, 16);
        assert!(used(0, 17) && used(31, 1) && used(20, 100) && used(0, 100));
        assert!(!used(0, 16) && !used(32, 32) && !used(80, u64::MAX));
        drop(first);
        assert!(used(16, 1));
        drop(again);
        assert!(!used(0, 64) && used(0, 65));
        assert!(!object.0.are_abandoned());
        second.unwrap().abandon();
        assert!(object.0.are_abandoned());
        assert!(!used(0, u64::MAX) && Arc::strong_count(&object) == 1);
    }
}
