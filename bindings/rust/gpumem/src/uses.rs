// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The parts of an object that work in streams uses.

use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Status};
use crate::instance::lock;

/// The parts that work in streams uses.
#[derive(Default)]
pub struct Uses {
    /// The number of uses of each part, by the offsets behind its last byte and of its first one.
    parts: Mutex<BTreeMap<(u64, u64), usize>>,
    abandoned: AtomicBool,
}

impl Uses {
    fn overlap(&self, offset: u64, bytes: u64) -> bool {
        let end = offset.saturating_add(bytes);
        // Most calls ask for all from an offset on, which the first part that ends behind it answers.
        lock(&self.parts).range((offset.saturating_add(1), 0)..).any(|((_, first), _)| *first < end)
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
    Error::own(Status::BUSY, function, message)
}

/// Work was abandoned that uses the object.
pub(crate) fn lost(object: &str, function: &'static str) -> Error {
    let message = format!(
        "the device was lost while work used the {object}, and the work may go on; drop the {object}"
    );
    Error::own(Status::DEVICE_LOST, function, message)
}

/// An object of which work in streams uses parts.
pub trait Parts: Send + Sync {
    fn uses(&self) -> &Uses;
    /// Bytes of memory that are freed with the object.
    fn bytes(&self) -> u64 {
        0
    }
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
        let part = (offset.saturating_add(bytes), offset);
        *lock(&object.uses().parts).entry(part).or_default() += 1;
        Some(Self { object, part })
    }

    /// The object, the number of its owners, and its bytes.
    pub(crate) fn shares(&self) -> (*const (), usize, u64) {
        (Arc::as_ptr(&self.object).cast(), Arc::strong_count(&self.object), self.object.bytes())
    }

    /// Gives the share back although the work may go on: its device is lost.
    pub(crate) fn abandon(self) {
        self.object.uses().abandoned.store(true, Ordering::Release);
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Entry::Occupied(mut uses) = lock(&self.object.uses().parts).entry(self.part) {
            *uses.get_mut() -= 1;
            if *uses.get() == 0 {
                uses.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem;
    use std::time::{Duration, Instant};

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

    #[test]
    fn many_uses_end_without_a_search_through_all() {
        let object = Arc::new(Object(Uses::default()));
        let count = if cfg!(miri) { 100 } else { 1 << 18 };
        let uses: Vec<_> = (0..count).map(|number| Use::begin(object.clone(), number * 8, 8)).collect();
        let mut uses = uses.into_iter();
        // Seconds suffice; searches would take many minutes.
        let watchdog = Instant::now() + Duration::from_secs(120);
        while Instant::now() < watchdog && uses.next().is_some() {}
        let left = uses.len();
        mem::forget(uses);
        assert_eq!(left, 0, "each end searches through all uses");
        assert!(!object.0.overlap(0, u64::MAX));
    }
}
