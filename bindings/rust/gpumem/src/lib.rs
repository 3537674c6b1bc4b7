// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! The memory of GPUs: device, pinned, write-combined, registered and managed memory, ranges of addresses, buffers
//! that grow, pools, streams and events, on a GPU or on the CPU with the rules of a GPU.
//!
//! ```
//! use gpumem::{DeviceMemory, Instance, Pinned};
//!
//! # fn main() -> Result<(), gpumem::Error> {
//! let instance = Instance::default_instance()?;
//! let device = instance.device(0)?;
//!
//! let sent = Pinned::from_slice(&device, b"to the device and back")?;
//! let memory = DeviceMemory::<u8>::new(&device, sent.len())?;
//! instance.copy(&memory, &sent)?;
//! assert_eq!(memory.to_vec()?, *sent);
//! # Ok(())
//! # }
//! ```
//!
//! * An [`Instance`] is an open backend with its [`Device`]s.
//! * [`DeviceMemory`], [`Pinned`], [`WriteCombined`] and [`Registered`] are arrays. Mapped memory has no type of its
//!   own: [`Pinned`] memory is always mapped, and has a [`device_address`](Pinned::device_address).
//! * [`Managed`] is an array that the CPU and devices share. The CPU accesses it through a guard.
//! * [`Buffer`] is an array that grows in place and can sleep, and a [`Group`] puts many to sleep as one.
//! * A [`Pool`] allocates and frees blocks fast, in the order of streams.
//! * [`Physical`] is memory without an address, to be mapped into an [`AddressRange`].
//! * [`Instance::export`] shares memory with other processes, [`Imported`] is memory of another one, and a [`Hub`] has
//!   such memory under names. A [`RingProducer`] passes messages to each [`RingConsumer`] of other processes.
//! * An instance copies and fills memory at once, a [`Stream`] does so later, and an [`Event`] is a point in a
//!   stream.
//! * [`Memory`], and the functions with `raw` in their names, work with addresses and bytes.
//! * [`host`] has the functions of the host backend, and [`log`] receives the messages of the library.
//!
//! # Safety
//!
//! Safe code cannot use memory after it is freed, free memory that work on a device uses, or read memory while such
//! work writes it, even if it forgets objects ([`std::mem::forget`]). Nothing in this crate panics, drops included. A
//! drop that fails leaves its object to the instance, which tries again later.
//!
//! # Threads
//!
//! All objects can be used from any thread. Arrays are `Send` and `Sync` if their elements are.
//!
//! # Features
//!
//! `link` (the default) links the library. `load` loads it when it is first used: from the path in `GPUMEM_LIBRARY`,
//! and otherwise as the system's `libgpumem.so.0`. If it is missing, too old or lacks a function, the call that needs
//! it fails with [`ErrorKind::Library`].

#![deny(missing_docs)]
#![warn(unsafe_op_in_unsafe_fn)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::unreachable
    )
)]
#![deny(clippy::undocumented_unsafe_blocks)]

#[cfg(not(any(feature = "link", feature = "load")))]
compile_error!("enable one of the features `link` and `load`");

mod buffer;
#[rustfmt::skip] // Generated: the methods that only pass on to one function of C.
mod calls;
mod codes;
mod copy;
mod device;
mod element;
mod error;
mod event;
mod file;
mod group;
pub mod host;
mod hub;
mod infos;
mod instance;
mod library;
pub mod log;
mod managed;
mod memory;
mod options;
mod physical;
mod pool;
mod range;
mod ring;
mod share;
mod size;
mod sleep;
mod stream;
mod typed;
mod uses;
mod words;

pub use gpumem_sys as sys;

pub use buffer::{Buffer, BufferAccess, BufferAccessMut, BufferOptions, BufferRegistration, BufferSlice};
pub use codes::{
    Access, Advice, AnswerSource, AnswerType, Attach, Backend, BufferFlags, BufferState, Capability, Content,
    Direction, DmaBufFlags, EventFlags, ExportFlags, Feature, FileDirection, FileFlags, HandleTypes,
    HubFlags, ImportFlags, ImportState, Kind, Location, LockMode, LogLevel, MemoryFlags, NativeDomain,
    PhysicalFlags, PoolAnswer, PoolFlags, RangeFlags, SharePeer, ShareType, ShareWay, SleepFlags,
    SourceOrder, WaitCondition,
};
pub use copy::{CopyOptions, Destination, Enqueue, OwnedPart, Rectangle, Region, Returned, Source};
pub use device::{Device, DeviceBytes};
pub use element::{Atomic, Element, FillValue};
pub use error::{Error, ErrorKind, Rejected, Status, StatusInfo};
pub use event::Event;
pub use file::{FileCopied, FileOptions};
pub use group::{Group, GroupOptions};
pub use hub::{FetchOptions, Hub, HubOptions, Link, LinkOptions, PublishOptions};
pub use infos::*;
pub use instance::{
    probe, CudaOptions, Fallback, HostOptions, Instance, InstanceOptions, Processor, Version,
};
#[cfg(feature = "load")]
pub use library::load_from;
pub use managed::{HostAccess, HostAccessMut, Managed, ManagedInfo, ManagedRange, Place};
pub use memory::{Memory, MemoryOptions, RegisterOptions};
pub use physical::{FabricHandle, Granularity, Physical, PhysicalOptions};
pub use pool::{Pool, PoolBlock, PoolOptions, PoolSlice};
pub use range::{AddressRange, RangeOptions, RangeSlice};
pub use ring::{
    RingConsumer, RingMessage, RingMessages, RingOpenOptions, RingOptions, RingProducer, RingSlice, RingSlot,
};
pub use share::{ExportOptions, ImportOptions, Imported, ImportedSlice, SendOptions, Share, ShareHandle};
pub use sleep::{BufferCallbacks, CalledBuffer, PrepareOptions, SleepOptions, WakeOptions};
pub use stream::{Enqueued, EnqueuedRegions, Pending, PendingRegions, Stream, StreamOptions, Words};
pub use typed::{
    DeviceMemory, DeviceSlice, OwnedArray, Part, Pinned, PinnedSlice, Registered, RegisteredSlice,
    Registration, WriteCombined,
};

/// Types that can be sent to other threads and shared with them, checked when this crate is compiled.
const _: () = {
    const fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<(Instance, Device, Memory, Stream, Event, Error, Physical, AddressRange, Group, Pool)>();
    send_and_sync::<(DeviceMemory<u8>, Pinned<u8>, WriteCombined<u8>, Registered<u8>, Managed<u8>)>();
    send_and_sync::<(Buffer<u8>, BufferRegistration, PoolBlock<u8>, Pending<(Pinned<u8>, Registered<u8>)>)>();
    send_and_sync::<(HostAccess<'static, u8>, HostAccessMut<'static, u8>, BufferAccessMut<'static, u8>)>();
    send_and_sync::<(ShareHandle, Imported, Hub, Link, RingProducer)>();
    const fn send<T: Send>() {}
    send::<RingConsumer>();
    const fn error<T: std::error::Error + Send + Sync + 'static>() {}
    error::<Error>();
    error::<Rejected<Pending<((), Pinned<u8>)>>>();
};
