// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Shared memory and events under names.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::os::raw::c_void;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::ptr;
use std::time::Duration;

use gpumem_sys as sys;

#[cfg(doc)]
use crate::codes::{HubFlags, ImportState};
use crate::codes::{SharePeer, ShareWay};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Rejected, Status};
use crate::infos::{Entry, WayInfo};
use crate::instance::{c_pointer, c_text, Instance};
use crate::library::{all, c, call, info_call, output_call};
use crate::memory::Owned;
pub use crate::options::{FetchOptions, HubOptions, LinkOptions, PublishOptions};
use crate::share::{place_of, ImportOptions, Imported, Share, ShareHandle};
use crate::stream::nanoseconds;

/// Bytes that `Debug` does not show.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) Vec<u8>);

impl Secret {
    /// For C, which knows none by its size of 0. So an empty one, such as that of a variable that is not set, must not get
    /// there.
    pub(crate) fn to_c(secret: &Option<Self>, function: &'static str) -> Result<(*const c_void, u32), Error> {
        match secret {
            None => Ok((ptr::null(), 0)),
            Some(Self(bytes)) if bytes.is_empty() => {
                let message = "the token is empty; pass at least one byte, or do not call this for no token";
                Err(Error::invalid(function, message))
            }
            Some(Self(bytes)) => Ok((bytes.as_ptr().cast(), u32::try_from(bytes.len()).unwrap_or(u32::MAX))),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("..")
    }
}

/// A path in a fixed array of C.
pub(crate) fn array_path(array: &[sys::c_char]) -> PathBuf {
    let bytes = array.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    OsString::from_vec(bytes).into()
}

impl HubOptions {
    /// Lets this user connect too.
    #[must_use]
    pub fn user(mut self, id: u32) -> Self {
        self.users.push(id);
        self
    }

    /// Lets the members of this group connect too.
    #[must_use]
    pub fn group(mut self, id: u32) -> Self {
        self.groups.push(id);
        self
    }
}

/// Shared memory and events under names, on a Unix socket. Others [connect](Link::connect), and list, wait for and fetch
/// what is there.
///
/// A name has versions, numbered upwards while the hub is open. Publishing adds one: before that nobody sees it, and from
/// then on it is the newest. Readers of older versions keep them. A hub that is opened again begins anew.
///
/// With [`HubFlags::KEEPER`], links publish too, and what they publish stays when they end.
///
/// ```
/// # let device = gpumem::Instance::open(gpumem::Backend::HOST)?.device(0)?;
/// # let instance = device.instance();
/// # let path = format!("@gpumem-doc-{}", std::process::id());
/// use gpumem::{
///     DeviceMemory, ExportOptions, FetchOptions, Hub, HubOptions, Link, LinkOptions, MemoryFlags, MemoryOptions,
/// };
///
/// let options = MemoryOptions::new().require(MemoryFlags::SHAREABLE);
/// let batch = DeviceMemory::<f32>::with_options(&device, 1000, &options)?;
/// let hub = Hub::open(&instance, &HubOptions::new().path(&path))?;
/// hub.publish("batch", &instance.export(&batch, &ExportOptions::new())?)?;
///
/// // In another process, which may then import it.
/// let link = Link::connect(&instance, &LinkOptions::new().path(&path))?;
/// let entry = link.wait("batch", 0)?;
/// assert_eq!((entry.version, entry.size), (1, 4000));
/// let handle = link.fetch_with_options("batch", &FetchOptions::new().version(entry.version))?;
/// # assert_eq!(handle.info()?.size, 4000);
/// # Ok::<(), gpumem::Error>(())
/// ```
#[derive(Debug)]
pub struct Hub(Owned<sys::gpumem_hub_s>);

impl Hub {
    /// Opens a hub. A socket file that a dead process has left at the path is replaced. The instance is the one that
    /// exports what is published.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if a living process has the address; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::PermissionDenied`], [`ErrorKind::NotFound`], [`ErrorKind::Unsupported`],
    /// [`ErrorKind::LimitExceeded`] or [`ErrorKind::InvalidState`].
    pub fn open(instance: &Instance, options: &HubOptions) -> Result<Self, Error> {
        let instance = instance.inner.clone();
        instance.retry();
        let desc = options.describe()?;
        // SAFETY: the struct and what it points to live during the call.
        let handle = unsafe { output_call!(gpumem_hub_open(instance.handle, &*desc)) }?;
        Ok(Self(Owned { handle, instance }))
    }

    /// Publishes a handle under a name, as its newest version, whose number is returned. The work that fills the memory
    /// must be complete. A name has up to 63 bytes, without `/` and control characters.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the hub's instance has no such export; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::AlreadyExists`], [`ErrorKind::LimitExceeded`], [`ErrorKind::PermissionDenied`],
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::InvalidState`].
    pub fn publish(&self, name: &str, handle: &ShareHandle) -> Result<u64, Error> {
        self.publish_with_options(name, handle, &PublishOptions::new())
    }

    /// Closes the hub: its links hang up, its file is removed, and its names are gone. Memory that links have imported
    /// stays with them. Dropping the hub does the same, but cannot report a failure.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] in a host function. The hub is returned unchanged.
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.0.close().map_err(|error| Rejected::new(self, error))
    }
}

/// A connection to a hub.
///
/// All threads may use it at the same time, also while one waits.
#[derive(Debug)]
pub struct Link(Owned<sys::gpumem_link_s>);

impl Link {
    /// Connects to a hub. It does not wait for one to be opened: if none is there, pause and try again. The instance is the
    /// one that imports what is fetched.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no hub is there, [`ErrorKind::PermissionDenied`] if it refuses this user or token;
    /// otherwise [`ErrorKind::InvalidArgument`], [`ErrorKind::LimitExceeded`], [`ErrorKind::Busy`],
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::InvalidState`].
    pub fn connect(instance: &Instance, options: &LinkOptions) -> Result<Self, Error> {
        let instance = instance.inner.clone();
        instance.retry();
        let desc = options.describe()?;
        // SAFETY: the struct and what it points to live during the call.
        let handle = unsafe { output_call!(gpumem_link_connect(instance.handle, &*desc)) }?;
        Ok(Self(Owned { handle, instance }))
    }

    /// All versions of all names in the hub, in their order. What is published or withdrawn meanwhile may be missing.
    ///
    /// # Errors
    /// [`ErrorKind::PeerGone`] if the hub has ended; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::NotFound`], [`ErrorKind::Busy`] or [`ErrorKind::InvalidState`].
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        let mut found = all(|index| info_call!(gpumem_link_enumerate(self.0.handle, index) => Entry))?;
        // One that was published meanwhile moves the others.
        let mut known = HashSet::new();
        found.retain(|entry| known.insert((entry.name.clone(), entry.version)));
        Ok(found)
    }

    /// Waits until a name has a version after a given one, or with 0 any, and returns the newest.
    ///
    /// Fetch the version that it found; if that is [`ErrorKind::NotFound`], newer ones have replaced it, so wait again. The
    /// numbers only grow while the hub is open, and another hub counts anew: after [`ErrorKind::PeerGone`], connect again and
    /// begin with 0.
    ///
    /// # Errors
    /// [`ErrorKind::PeerGone`] if the hub has ended; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::Busy`] or [`ErrorKind::InvalidState`].
    pub fn wait(&self, name: &str, after_version: u64) -> Result<Entry, Error> {
        loop {
            if let Some(entry) = self.wait_within(name, after_version, sys::GPUMEM_TIMEOUT_INFINITE)? {
                return Ok(entry);
            }
        }
    }

    /// As [`wait`](Self::wait) with a timeout; `None` if there was no such version in time.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_for(
        &self,
        name: &str,
        after_version: u64,
        timeout: Duration,
    ) -> Result<Option<Entry>, Error> {
        self.wait_within(name, after_version, nanoseconds(timeout))
            .map_err(|error| error.called_as("Link::wait_for"))
    }

    fn wait_within(&self, name: &str, after: u64, timeout_ns: u64) -> Result<Option<Entry>, Error> {
        let name = c_text(Some(name), "Link::wait")?;
        let (text, mut info) = (c_pointer(&name), sys::gpumem_entry_info::default());
        // SAFETY: the text lives during the call; the struct is writable and has its own size.
        let status = unsafe { call!(gpumem_link_wait(self.0.handle, text, after, timeout_ns, &mut info)) }?;
        Ok((status == Status::SUCCESS).then(|| Entry::of(&info)))
    }

    /// Fetches the handle of a name's newest version. Its descriptors and connection are kept until it is imported, or
    /// for 30 seconds.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the hub has no such name; otherwise [`ErrorKind::InvalidArgument`],
    /// [`ErrorKind::PeerGone`], [`ErrorKind::Busy`], [`ErrorKind::LimitExceeded`] or [`ErrorKind::InvalidState`].
    pub fn fetch(&self, name: &str) -> Result<ShareHandle, Error> {
        self.fetch_with_options(name, &FetchOptions::new())
    }

    /// As [`fetch`](Self::fetch), by version or fingerprint.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub fn fetch_with_options(&self, name: &str, options: &FetchOptions) -> Result<ShareHandle, Error> {
        let name = c_text(Some(name), "Link::fetch")?;
        let desc = options.describe();
        // SAFETY: the struct and the text live during the call.
        let handle = unsafe { output_call!(gpumem_link_fetch(self.0.handle, c_pointer(&name), &desc)) }?;
        Ok(ShareHandle::of(&handle))
    }

    /// Waits until a name has memory after a given version, or with 0 any, and imports the newest, which the entry
    /// describes. A version that is replaced meanwhile is passed over. Otherwise it is [`wait`](Self::wait),
    /// [`fetch_with_options`](Self::fetch_with_options) and [`Imported::with_options`].
    ///
    /// To follow a name, pass the version of the last entry, or 0 after [`ErrorKind::PeerGone`] and
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// As these. [`ErrorKind::PeerGone`] if the hub or the exporter has ended.
    pub fn import_next(
        &self,
        name: &str,
        after_version: u64,
        options: &ImportOptions,
    ) -> Result<(Imported, Entry), Error> {
        loop {
            let found = self.import_within(name, after_version, sys::GPUMEM_TIMEOUT_INFINITE, options);
            if let Some(next) = found.map_err(|error| error.called_as("Link::import_next"))? {
                return Ok(next);
            }
        }
    }

    /// As [`import_next`](Self::import_next) with a timeout; `None` if there was no such version in time.
    ///
    /// # Errors
    /// As [`import_next`](Self::import_next).
    pub fn import_next_for(
        &self,
        name: &str,
        after_version: u64,
        timeout: Duration,
        options: &ImportOptions,
    ) -> Result<Option<(Imported, Entry)>, Error> {
        self.import_within(name, after_version, nanoseconds(timeout), options)
            .map_err(|error| error.called_as("Link::import_next_for"))
    }

    fn import_within(
        &self,
        name: &str,
        after: u64,
        timeout_ns: u64,
        options: &ImportOptions,
    ) -> Result<Option<(Imported, Entry)>, Error> {
        self.0.instance.retry();
        let name = c_text(Some(name), "Link::import_next")?;
        let (text, desc) = (c_pointer(&name), options.describe()?);
        let (mut info, mut pointer, mut memory) =
            (sys::gpumem_entry_info::default(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: the texts and the struct live during the call; the outputs are writable, and the struct has its own size.
        let status = unsafe {
            call!(gpumem_link_import_next(
                self.0.handle,
                text,
                after,
                timeout_ns,
                &*desc,
                &mut info,
                &mut pointer,
                &mut memory
            ))
        }?;
        if status != Status::SUCCESS {
            return Ok(None);
        }
        let imported = Imported::of(self.0.instance.clone(), memory, pointer)?;
        Ok(Some((imported, Entry::of(&info))))
    }

    /// Publishes a handle in a keeper, as [`Hub::publish`] does. The keeper takes its descriptors, so it must be shared by
    /// [`ShareWay::POSIX_FD`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the hub is no keeper or the handle is shared in another way; otherwise
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::NotFound`], [`ErrorKind::AlreadyExists`],
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::PermissionDenied`], [`ErrorKind::PeerGone`], [`ErrorKind::Busy`]
    /// or [`ErrorKind::InvalidState`].
    pub fn publish(&self, name: &str, handle: &ShareHandle) -> Result<u64, Error> {
        self.publish_with_options(name, handle, &PublishOptions::new())
    }

    /// Says whether memory of the link's instance can be shared in one way with the process of the hub, by a trial at both
    /// ends: that process opens a small block in the same place. The answer is kept with the link. A keeper opens nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for [`ShareWay::ANY`], and for an unknown way or peer. A hub that has ended is an
    /// answer.
    pub fn share_way(&self, memory: impl Share, way: ShareWay, peer: SharePeer) -> Result<WayInfo, Error> {
        let (pointer, _, _hold) = place_of(&memory, "Link::share_way")?;
        info_call!(gpumem_link_get_way(self.0.handle, pointer, way.0, peer.0) => WayInfo)
    }

    /// Closes the link. What was imported through it stays, and still learns how the publisher fares. Dropping the link
    /// does the same, but cannot report a failure.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] in a host function. The link is returned unchanged.
    pub fn close(mut self) -> Result<(), Rejected<Self>> {
        self.0.close().map_err(|error| Rejected::new(self, error))
    }
}

/// What a hub and a link do alike.
macro_rules! names {
    ($class:ident: $handle:ident, $publish:ident, $withdraw:ident) => {
        impl $class {
            /// As [`publish`](Self::publish), with options.
            ///
            /// # Errors
            /// As [`publish`](Self::publish), [`ErrorKind::AlreadyExists`] if the name has this version, or had it and has a
            /// later one, and [`ErrorKind::InvalidState`] if the name is withdrawn and its numbers up to a higher one are used
            /// up.
            pub fn publish_with_options(
                &self,
                name: &str,
                handle: &ShareHandle,
                options: &PublishOptions,
            ) -> Result<u64, Error> {
                let name = c_text(Some(name), concat!(stringify!($class), "::publish"))?;
                let (text, native, desc) = (c_pointer(&name), handle.to_c(), options.describe());
                // SAFETY: the structs and the text live during the call.
                unsafe { output_call!($publish(self.0.handle, text, &native, &desc)) }
            }

            /// Withdraws a name, with all its versions. Importers keep what they have, and see [`ImportState::WITHDRAWN`].
            /// A link withdraws it from a keeper.
            ///
            /// # Errors
            /// [`ErrorKind::NotFound`] if there is no such name; of a link also [`ErrorKind::InvalidArgument`],
            /// [`ErrorKind::Unsupported`], [`ErrorKind::PermissionDenied`], [`ErrorKind::PeerGone`], [`ErrorKind::Busy`] or
            /// [`ErrorKind::InvalidState`].
            pub fn withdraw(&self, name: &str) -> Result<(), Error> {
                self.withdraw_as(name, 0, concat!(stringify!($class), "::withdraw"))
            }

            /// Withdraws one version of a name.
            ///
            /// # Errors
            /// As [`withdraw`](Self::withdraw), and [`ErrorKind::NotFound`] if the name has no such version.
            pub fn withdraw_version(&self, name: &str, version: u64) -> Result<(), Error> {
                self.withdraw_as(name, version, concat!(stringify!($class), "::withdraw_version"))
            }

            fn withdraw_as(&self, name: &str, version: u64, function: &'static str) -> Result<(), Error> {
                let name = c_text(Some(name), function)?;
                // SAFETY: the text lives during the call.
                unsafe { call!($withdraw(self.0.handle, c_pointer(&name), version)) }
                    .map(drop)
                    .map_err(|error| error.called_as(function))
            }

            /// Handle for calls of [`sys`](crate::sys). They must not close it.
            #[must_use]
            pub fn handle(&self) -> sys::$handle {
                self.0.handle
            }
        }
    };
}
names!(Hub: gpumem_hub, gpumem_hub_publish, gpumem_hub_withdraw);
names!(Link: gpumem_link, gpumem_link_publish, gpumem_link_withdraw);

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use super::*;
    use crate::instance::c_path;

    #[test]
    fn tokens_are_not_printed() {
        let options = LinkOptions::new().token("open sesame");
        assert!(
            !format!("{options:?}").contains("111") && format!("{options:?}").contains("token: Some(..)")
        );
        let options = HubOptions::new().token(*b"open");
        assert!(
            !format!("{options:?}").contains("111") && format!("{options:?}").contains("token: Some(..)")
        );
    }

    #[test]
    fn paths_need_not_be_text() {
        let bytes = [b'/' as sys::c_char, 0xffu8 as sys::c_char, 0, 1];
        assert_eq!(array_path(&bytes).as_os_str().as_bytes(), [b'/', 0xff]);
        let path = Path::new("a\0b");
        assert_eq!(c_path(Some(path), "f").unwrap_err().status(), Status::INVALID_ARGUMENT);
    }
}
