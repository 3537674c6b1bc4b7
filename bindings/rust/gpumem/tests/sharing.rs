// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Memory, events and rings of several processes.
//!
//! A test starts this program again to run the same test in a role. The standard input of that process is a socket to
//! the one that started it.

mod common;

use std::convert::TryFrom;
use std::fs::File;
use std::io::{Read, Write};
use std::mem;
use std::os::raw::c_int;
use std::os::unix::io::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{backend, is_host, with_device};
use gpumem::{
    Access, AddressRange, Backend, Buffer, BufferOptions, Capability, Device, DeviceMemory, DmaBufFlags,
    Error, ErrorKind, Event, EventFlags, ExportFlags, ExportOptions, FetchOptions, HandleTypes, Hub,
    HubFlags, HubOptions, ImportOptions, ImportState, Imported, Instance, Kind, Link, LinkOptions, Memory,
    MemoryFlags, MemoryOptions, Physical, PhysicalOptions, Pinned, Pool, PoolOptions, Processor,
    PublishOptions, Region, Rejected, RingConsumer, RingMessage, RingOpenOptions, RingOptions, RingProducer,
    RingSlot, SendOptions, ShareHandle, SharePeer, ShareType, ShareWay, Status, Stream, WaitCondition,
};

/// Elements in 2 MiB.
const LEN: usize = 1 << 19;
const PATIENCE: Duration = Duration::from_secs(60);

extern "C" {
    fn dup2(from: c_int, to: c_int) -> c_int;
}

/// The process that was started for a test.
struct Peer {
    process: Child,
    socket: UnixStream,
}

impl Peer {
    fn start(test: &str) -> Self {
        Self::start_with(test, &[])
    }

    /// Also gives it descriptors, as numbers from 100 on.
    fn start_with(test: &str, fds: &[OwnedFd]) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--nocapture"])
            .env("GPUMEM_TEST_ROLE", "peer")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let numbers: Vec<c_int> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: the function makes only system calls.
        unsafe {
            command.pre_exec(move || {
                for (to, from) in (100..).zip(&numbers) {
                    if dup2(*from, to) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        Self { process: command.spawn().unwrap(), socket }
    }

    /// Waits for its end, which must be a good one.
    fn end(self) {
        let Self { process, socket } = self;
        drop(socket);
        let output = process.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// The socket of a process that was started for a test.
fn peer() -> Option<UnixStream> {
    std::env::var_os("GPUMEM_TEST_ROLE")?;
    // SAFETY: it is open, and nothing else uses it.
    let socket = unsafe { UnixStream::from_raw_fd(0) };
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(socket)
}

/// Tells the other side that a step is done.
fn tell(mut socket: &UnixStream) {
    socket.write_all(b".").unwrap();
}

/// Waits until the other side tells that a step is done.
fn wait(mut socket: &UnixStream) {
    socket.read_exact(&mut [0]).expect("the other process does the next step");
}

fn write_handle(mut socket: &UnixStream, handle: &ShareHandle) {
    socket.write_all(handle.as_ref()).unwrap();
}

fn read_handle(mut socket: &UnixStream) -> ShareHandle {
    let mut bytes = [0; ShareHandle::LEN];
    socket.read_exact(&mut bytes).expect("the other process writes a handle");
    ShareHandle::from(bytes)
}

/// Waits for what happens soon, on another thread or in another process.
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Closes an object, as soon as other processes do not use it any more.
fn close_soon<T>(object: T, close: impl Fn(T) -> Result<(), Rejected<T>>) {
    let mut open = Some(object);
    soon("the object can be closed", || match open.take().map(&close) {
        Some(Err(rejected)) => {
            assert_eq!(rejected.error.kind(), ErrorKind::Busy);
            open = Some(rejected.given);
            false
        }
        _ => true,
    });
}

fn open() -> (Instance, Device) {
    let instance = Instance::open(backend()).unwrap();
    let device = instance.device(0).unwrap();
    (instance, device)
}

fn shareable(device: &Device, len: usize) -> DeviceMemory<u32> {
    let options = MemoryOptions::new().require(MemoryFlags::SHAREABLE);
    DeviceMemory::with_options(device, len, &options).unwrap()
}

fn numbers() -> Vec<u32> {
    (0..LEN as u32).collect()
}

/// A range of two blocks that can be shared by descriptors, with the numbers across their seam.
fn two_blocks(device: &Device) -> (AddressRange, u64) {
    let options = PhysicalOptions::new().handle_types(HandleTypes::POSIX_FD);
    let unit = Physical::granularity(device, &options).unwrap().recommended;
    let blocks = [0, 1].map(|_| Physical::with_options(device, unit, &options).unwrap());
    let mut range = AddressRange::reserve(&device.instance(), 4 * unit).unwrap();
    range.map(0, &blocks).unwrap();
    range.set_access(0, 2 * unit, &[(Processor::Device(0), Access::READ_WRITE)]).unwrap();
    let seam = range.slice::<u32>(unit as usize / 4 - 2..unit as usize / 4 + 2).unwrap();
    device.instance().copy(seam, &[1, 2, 3, 4]).unwrap();
    (range, unit)
}

/// Four elements of an import.
fn read(instance: &Instance, imported: &Imported, offset: u64) -> Result<[u32; 4], Error> {
    let mut found = [0; 4];
    instance.copy(&mut found, imported.slice(offset as usize / 4..offset as usize / 4 + 4)?)?;
    Ok(found)
}

#[test]
fn memory_is_shared_by_a_handle() {
    if let Some(socket) = peer() {
        return import_by_handle(&socket);
    }
    with_device(|instance, device| {
        let memory = shareable(device, LEN);
        instance.copy(&memory, &numbers()).unwrap();
        let options = ExportOptions::new().way(ShareWay::LEGACY).access(Access::READ_WRITE);
        let handle = instance.export(memory.slice(1000..).unwrap(), &options).unwrap();
        let info = handle.info().unwrap();
        assert_eq!(
            (info.share_type, info.way, info.backend),
            (ShareType::MEMORY, ShareWay::LEGACY, backend())
        );
        assert_eq!((info.size, info.offset, info.access), (4 * LEN as u64, 4000, Access::READ_WRITE));
        assert_eq!(info.buffer_id, memory.info().unwrap().unwrap().buffer_id);
        assert_eq!(info.device_uuid, device.info().unwrap().uuid);
        assert_eq!(info.exporter_pid, std::process::id() as i32);
        assert_eq!(instance.export(memory.slice(1000..).unwrap(), &options).unwrap(), handle);
        assert_ne!(instance.export(&memory, &options).unwrap(), handle);
        assert_eq!(Imported::new(instance, &handle).unwrap_err().kind(), ErrorKind::InvalidState);

        let peer = Peer::start("memory_is_shared_by_a_handle");
        write_handle(&peer.socket, &handle);
        wait(&peer.socket);
        let mut found = [0; 5];
        instance.copy(&mut found, memory.slice(1000..1005).unwrap()).unwrap();
        assert_eq!(found, [7, 8, u32::MAX, 1003, 1004]);

        // The importer would lose it.
        let Rejected { given, error, .. } = memory.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        tell(&peer.socket);
        wait(&peer.socket);
        close_soon(given, DeviceMemory::close);
        tell(&peer.socket);
        peer.end();
        assert_eq!(instance.revoke(&handle).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

fn import_by_handle(socket: &UnixStream) {
    with_device(|instance, device| {
        let handle = read_handle(socket);
        let imported = Imported::new(instance, &handle).unwrap();
        assert_eq!((imported.offset(), imported.bytes()), (4000, 4 * LEN as u64 - 4000));
        let info = imported.info().unwrap();
        assert_eq!((info.way, info.access), (ShareWay::LEGACY, Access::READ_WRITE));
        assert_eq!((info.state, info.count), (ImportState::LIVE, 1));
        let shared = handle.info().unwrap();
        assert_eq!((info.exporter_pid, info.exporter_buffer_id), (shared.exporter_pid, shared.buffer_id));
        let known = imported.memory_info().unwrap();
        assert_eq!((known.kind, known.size), (Kind::IMPORTED, 4 * LEN as u64));
        let address = imported.device_address().unwrap();
        assert_eq!(address, known.device_address + 4000);
        assert_eq!(instance.pointer_info(address as *const _).unwrap().kind, Kind::IMPORTED);
        assert_eq!(instance.kind_stats(Kind::IMPORTED).unwrap().live_count, 1);
        assert!(format!("{imported:?}").contains("offset: 4000"));

        // It is mapped once.
        let options =
            ImportOptions::new().device(device).access(Access::READ_WRITE).timeout(PATIENCE).name("b");
        let again = Imported::with_options(instance, &handle, &options).unwrap();
        assert_eq!((again.handle(), again.device_address().unwrap()), (imported.handle(), address));
        assert_eq!(imported.info().unwrap().count, 2);
        drop(again);
        assert_eq!(imported.info().unwrap().count, 1);

        // Copies in all forms.
        assert_eq!(read(instance, &imported, 0).unwrap(), [1000, 1001, 1002, 1003]);
        let stream = Stream::new(device).unwrap();
        let copied = DeviceMemory::<u32>::new(device, 3).unwrap();
        stream.copy(&copied, imported.slice(1..4).unwrap()).unwrap().wait().unwrap();
        assert_eq!(copied.to_vec().unwrap(), [1001, 1002, 1003]);
        let part = imported.slice::<u32>(..2).unwrap();
        assert_eq!((part.len(), part.is_empty(), part.device_address()), (2, false, address));
        instance.copy_regions([Region::new(part, &[7, 8][..], 2)]).unwrap();
        instance.fill(imported.slice::<u8>(8..12).unwrap(), 0xffu8).unwrap();

        // Parts that are none.
        for (from, to) in [(LEN - 1000, LEN - 999), (0, LEN), (usize::MAX, usize::MAX), (1, 0)] {
            let error = imported.slice::<u32>(from..to).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{from} {to}");
        }
        let error = Imported::with_options(instance, &handle, &ImportOptions::new().access(Access::READ))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(Event::import(device, &handle).unwrap_err().kind(), ErrorKind::InvalidArgument);

        tell(socket);
        wait(socket);
        imported.close().unwrap();
        tell(socket);
        wait(socket);
        let error = Imported::new(instance, &handle).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StaleHandle, "{error}");
    });
}

#[test]
fn memory_is_sent_with_its_descriptors() {
    if let Some(socket) = peer() {
        return import_what_was_sent(&socket);
    }
    with_device(|instance, device| {
        let (range, unit) = two_blocks(device);
        let options = ExportOptions::new().access(Access::READ);
        let handle = instance.export(range.slice::<u32>(unit as usize / 4 - 2..).unwrap(), &options).unwrap();
        let info = handle.info().unwrap();
        assert_eq!((info.way, info.access, info.fd_count), (ShareWay::POSIX_FD, Access::READ, 2));
        assert_eq!((info.size, info.offset), (2 * unit, unit - 8));

        let peer = Peer::start("memory_is_sent_with_its_descriptors");
        wait(&peer.socket);
        let options = SendOptions::new().lease(PATIENCE).timeout(PATIENCE);
        instance.send_with_options(&handle, &peer.socket, &options).unwrap();
        wait(&peer.socket);
        instance.revoke(&handle).unwrap();
        wait(&peer.socket);
        range.close().unwrap();
        tell(&peer.socket);
        wait(&peer.socket);
        assert_eq!(instance.send(&handle, &peer.socket).unwrap_err().kind(), ErrorKind::NotFound);
        // It hangs up, and no message comes.
        let hung_up = instance.receive(&peer.socket).unwrap_err();
        assert_eq!(hung_up.kind(), ErrorKind::PeerGone);
        peer.end();
    });
}

fn import_what_was_sent(socket: &UnixStream) {
    with_device(|instance, _| {
        assert_eq!(instance.receive_for(socket, Duration::from_millis(5)).unwrap(), None);
        tell(socket);
        let handle = instance.receive(socket).unwrap();
        let options = ImportOptions::new().access(Access::READ_WRITE);
        let error = Imported::with_options(instance, &handle, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAccess);
        let imported = Imported::new(instance, &handle).unwrap();
        let info = imported.info().unwrap();
        assert_eq!((info.way, info.access), (ShareWay::POSIX_FD, Access::READ));
        assert_eq!((info.state, info.count), (ImportState::LIVE, 1));
        assert_eq!(read(instance, &imported, 0).unwrap(), [1, 2, 3, 4]);
        let error = instance.fill(imported.slice::<u8>(..1).unwrap(), 1u8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAccess);
        tell(socket);
        soon("the export ends", || imported.info().unwrap().state == ImportState::WITHDRAWN);
        tell(socket);
        wait(socket);
        assert_eq!(read(instance, &imported, 0).unwrap(), [1, 2, 3, 4]);
        tell(socket);
        socket.shutdown(std::net::Shutdown::Both).unwrap();
    });
}

#[test]
fn descriptors_travel_by_another_way() {
    if let Some(socket) = peer() {
        return import_with_descriptors(&socket);
    }
    with_device(|instance, device| {
        let (range, _) = two_blocks(device);
        let handle = instance.export(range.slice::<u8>(..1).unwrap(), &ExportOptions::new()).unwrap();
        let fds = instance.export_fds(&handle).unwrap();
        assert_eq!(fds.len(), 2);
        let peer = Peer::start_with("descriptors_travel_by_another_way", &fds);
        write_handle(&peer.socket, &handle);
        peer.end();
    });
}

fn import_with_descriptors(socket: &UnixStream) {
    with_device(|instance, _| {
        let handle = read_handle(socket);
        // SAFETY: the other process has put them there.
        let fds = [100, 101].map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        let options = ImportOptions::new();
        let file = File::open("/dev/null").unwrap();
        let file = OwnedFd::from(file);
        for wrong in [&fds[..1], &[file.try_clone().unwrap(), file][..]] {
            let error = Imported::with_fds(instance, &handle, wrong, &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        let imported = Imported::with_fds(instance, &handle, &fds, &options).unwrap();
        drop(fds);
        assert_eq!(imported.info().unwrap().count, 1);
        let seam = imported.bytes() / 2 - 8;
        assert_eq!(read(instance, &imported, seam).unwrap(), [1, 2, 3, 4]);
    });
}

#[test]
fn what_an_exporter_leaves() {
    if let Some(socket) = peer() {
        return export_and_wait(&socket);
    }
    with_device(|instance, _| {
        let mut peer = Peer::start("what_an_exporter_leaves");
        let (stays, goes) =
            (instance.receive(&peer.socket).unwrap(), instance.receive(&peer.socket).unwrap());
        let by_descriptor = Imported::new(instance, &stays).unwrap();
        let by_handle = Imported::new(instance, &goes).unwrap();
        assert_eq!(read(instance, &by_handle, 0).unwrap(), [0, 1, 2, 3]);
        peer.kill();
        for imported in [&by_descriptor, &by_handle] {
            soon("the exporter ends", || imported.info().unwrap().state == ImportState::PEER_GONE);
        }
        // The descriptors keep the memory alive. Without them it may be gone.
        let seam = by_descriptor.bytes() / 2 - 8;
        assert_eq!(read(instance, &by_descriptor, seam).unwrap(), [1, 2, 3, 4]);
        let error = read(instance, &by_handle, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerGone);
        assert!(error.message().ends_with("; drop the import"), "{error}");
        by_handle.close().unwrap();
        assert_eq!(Imported::new(instance, &goes).unwrap_err().kind(), ErrorKind::PeerGone);
    });
}

/// Exports, and waits to be killed.
fn export_and_wait(socket: &UnixStream) {
    let (instance, device) = open();
    let (range, _) = two_blocks(&device);
    let memory = shareable(&device, LEN);
    instance.copy(&memory, &numbers()).unwrap();
    let options = ExportOptions::new();
    for handle in
        [instance.export(range.slice::<u8>(..1).unwrap(), &options), instance.export(&memory, &options)]
    {
        instance.send(&handle.unwrap(), socket).unwrap();
    }
    wait(socket);
}

#[test]
fn events_are_shared() {
    if let Some(socket) = peer() {
        return import_event(&socket);
    }
    with_device(|instance, device| {
        let error = Event::with_options(device, EventFlags::INTERPROCESS, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let plain = Event::new(device).unwrap();
        assert_eq!(plain.export().unwrap_err().kind(), ErrorKind::Unsupported);
        let flags = EventFlags::INTERPROCESS | EventFlags::DISABLE_TIMING;
        let event = Event::with_options(device, flags, Some("batch")).unwrap();
        let handle = event.export().unwrap();
        assert_eq!(event.export().unwrap(), handle);
        let info = handle.info().unwrap();
        assert_eq!((info.share_type, info.size), (ShareType::EVENT, 0));
        assert_eq!(Event::import(device, &handle).unwrap_err().kind(), ErrorKind::InvalidState);

        let stream = Stream::new(device).unwrap();
        let gate = Pinned::<AtomicU32>::zeroed(device, 1).unwrap();
        let memory = DeviceMemory::<u8>::new(device, 64).unwrap();
        stream.wait_value(&gate, 0, WaitCondition::GEQ, 1).unwrap();
        drop(stream.fill(&memory, 1u8).unwrap());
        event.record(&stream).unwrap();
        drop(memory);
        let peer = Peer::start("events_are_shared");
        instance.send(&handle, &peer.socket).unwrap();
        wait(&peer.socket);
        // The latest record is that of the other process, so it says nothing about the fill.
        event.synchronize().unwrap();
        assert!(!stream.is_complete().unwrap());
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 1);
        event.record(&stream).unwrap();
        tell(&peer.socket);
        wait(&peer.socket);
        gate[0].store(1, Ordering::Release);
        stream.synchronize().unwrap();
        assert_eq!(instance.kind_stats(Kind::DEVICE).unwrap().live_count, 0);
        peer.end();
        drop((gate, plain));
        close_soon(event, Event::close);
        assert_eq!(instance.revoke(&handle).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

fn import_event(socket: &UnixStream) {
    with_device(|instance, device| {
        let handle = instance.receive(socket).unwrap();
        assert_eq!(Imported::new(instance, &handle).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let event = Event::import_with_fds::<OwnedFd>(device, &handle, &[]).unwrap();
        assert!(event.info().unwrap().flags.contains(EventFlags::INTERPROCESS | EventFlags::DISABLE_TIMING));
        assert!(!event.is_complete().unwrap());
        assert_eq!(event.export().unwrap_err().kind(), ErrorKind::Unsupported);
        let stream = Stream::new(device).unwrap();
        event.record(&stream).unwrap();
        event.synchronize().unwrap();
        tell(socket);
        wait(socket);
        assert!(!event.synchronize_for(Duration::from_millis(5)).unwrap());
        stream.wait_event(&event).unwrap();
        assert!(!stream.is_complete().unwrap());
        tell(socket);
        stream.synchronize().unwrap();
        assert!(event.is_complete().unwrap());
        assert!(event.nanoseconds_since(&event).is_err());
    });
}

fn address(test: &str) -> String {
    format!("@gpumem-test-{test}-{}", std::process::id())
}

#[test]
fn memory_has_a_name_in_a_hub() {
    if let Some(socket) = peer() {
        return follow_a_name(&socket);
    }
    with_device(|instance, device| {
        let path = address("hub");
        let options = HubOptions::new().path(&path).token("open sesame").name("batches").links_max(2);
        let hub = Hub::open(instance, &options.clone().mode(0o600).timeout(PATIENCE).names_max(2)).unwrap();
        assert_eq!(Hub::open(instance, &options).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let info = hub.info().unwrap();
        assert_eq!((info.path.to_str(), info.name.as_str()), (Some(path.as_str()), "batches"));
        assert_eq!((info.link_count, info.name_count, info.version_count), (0, 0, 0));

        let (range, unit) = two_blocks(device);
        let handle =
            instance.export(range.slice::<u8>(unit as usize - 8..).unwrap(), &ExportOptions::new()).unwrap();
        let peer = Peer::start("memory_has_a_name_in_a_hub");
        (&peer.socket).write_all(format!("{path:40}").as_bytes()).unwrap();
        wait(&peer.socket);
        assert_eq!(hub.publish("weights", &handle).unwrap(), 1);
        wait(&peer.socket);
        let info = hub.info().unwrap();
        assert_eq!((info.link_count, info.name_count, info.version_count), (1, 1, 1));
        assert_eq!(info.fd_count, 2);
        assert!(info.refused_count > 0);
        // The next version is other memory.
        let (other, _) = two_blocks(device);
        let handle =
            instance.export(other.slice::<u8>(unit as usize - 8..).unwrap(), &ExportOptions::new()).unwrap();
        let options =
            PublishOptions::new().version(5).fingerprint([9; 32]).keep(3).access(Access::READ_WRITE);
        assert_eq!(hub.publish_with_options("weights", &handle, &options).unwrap(), 5);
        let error = hub.publish_with_options("weights", &handle, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        for name in ["", "a/b", "a\0b", "a\nb", &"n".repeat(64)] {
            assert_eq!(
                hub.publish(name, &handle).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{name:?}"
            );
        }
        hub.publish("more", &handle).unwrap();
        assert_eq!(hub.publish("most", &handle).unwrap_err().kind(), ErrorKind::LimitExceeded);
        tell(&peer.socket);
        wait(&peer.socket);
        hub.withdraw_version("weights", 1).unwrap();
        hub.withdraw("more").unwrap();
        assert_eq!(hub.withdraw("more").unwrap_err().kind(), ErrorKind::NotFound);
        tell(&peer.socket);
        wait(&peer.socket);
        hub.close().unwrap();
        tell(&peer.socket);
        peer.end();
    });
}

#[test]
fn a_token_is_never_empty() {
    with_device(|instance, _| {
        let path = address("empty");
        let (ours, theirs) = (HubOptions::new().path(&path), LinkOptions::new().path(&path));
        let text =
            "Options::token: the token is empty; pass at least one byte, or do not call this for no token";
        let error = Hub::open(instance, &ours.clone().token("")).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidArgument, format!("Hub{text}")));
        let hub = Hub::open(instance, &ours).unwrap();
        let error = Link::connect(instance, &theirs.clone().token("")).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidArgument, format!("Link{text}")));
        Link::connect(instance, &theirs).unwrap();
        hub.close().unwrap();
    });
}

fn follow_a_name(mut socket: &UnixStream) {
    with_device(|instance, device| {
        let mut path = [0; 40];
        socket.read_exact(&mut path).unwrap();
        let path = String::from_utf8(path.to_vec()).unwrap().trim().to_owned();
        let options = LinkOptions::new().path(&path).timeout(PATIENCE);
        for wrong in [options.clone(), options.clone().token("open sesam")] {
            assert_eq!(Link::connect(instance, &wrong).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        let nobody = LinkOptions::new().path(address("nobody"));
        assert_eq!(Link::connect(instance, &nobody).unwrap_err().kind(), ErrorKind::NotFound);
        let link = Link::connect(instance, &options.token("open sesame")).unwrap();
        let info = link.info().unwrap();
        assert!(info.connected && !info.keeper && info.pid.is_some(), "{info:?}");
        assert_eq!(info.path.to_str(), Some(path.as_str()));
        assert!(link.entries().unwrap().is_empty());
        assert_eq!(link.wait_for("weights", 0, Duration::from_millis(5)).unwrap(), None);
        assert_eq!(link.fetch("weights").unwrap_err().kind(), ErrorKind::NotFound);
        let (mine, _) = two_blocks(device);
        let whole = mine.slice::<u8>(..1).unwrap();
        let way = link.share_way(whole, ShareWay::POSIX_FD, SharePeer::OTHER_PROCESS).unwrap();
        assert_eq!((way.status, way.fd_count, way.needs_socket), (Status::SUCCESS, 2, false), "{way:?}");
        assert_eq!((way.slow, way.message.as_str()), (false, ""));
        let way = link.share_way(whole, ShareWay::POSIX_FD, SharePeer::OTHER_DEVICE).unwrap();
        assert!(way.is_possible() && way.slow && way.message.contains("on another device"), "{way:?}");
        // Nobody opens a dma-buf, which could be exported.
        let way = link.share_way(whole, ShareWay::DMA_BUF, SharePeer::OTHER_PROCESS).unwrap();
        assert_eq!((way.status, way.fd_count, way.slow), (Status::UNSUPPORTED, 0, false));
        assert!(way.message.contains("opens none"), "{way:?}");
        let error = link.share_way(whole, ShareWay::ANY, SharePeer::OTHER_PROCESS).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);

        tell(socket);
        let entry = link.wait("weights", 0).unwrap();
        assert_eq!((entry.name.as_str(), entry.version), ("weights", 1));
        assert_eq!((entry.share_type, entry.way), (ShareType::MEMORY, ShareWay::POSIX_FD));
        // Descriptors are for reading unless the publisher says otherwise.
        assert_eq!((entry.access, entry.publisher_gone, entry.fingerprint), (Access::READ, false, [0; 32]));
        assert_eq!(entry.publisher_uid, info.uid);
        assert_eq!(Some(entry.publisher_pid as u32), info.pid);
        let first = Imported::new(instance, &link.fetch("weights").unwrap()).unwrap();
        assert_eq!(first.info().unwrap().access, Access::READ);
        assert_eq!(read(instance, &first, 0).unwrap(), [1, 2, 3, 4]);
        tell(socket);
        wait(socket);
        let second = link.wait_for("weights", 1, PATIENCE).unwrap().unwrap();
        assert_eq!((second.version, second.access, second.fingerprint), (5, Access::READ_WRITE, [9; 32]));
        let known: Vec<_> =
            link.entries().unwrap().into_iter().map(|entry| (entry.name, entry.version)).collect();
        assert_eq!(known, [("more".to_owned(), 1), ("weights".to_owned(), 1), ("weights".to_owned(), 5)]);
        for (options, found) in [
            (FetchOptions::new().version(1), Some(Access::READ)),
            (FetchOptions::new().fingerprint([9; 32]), Some(Access::READ_WRITE)),
            (FetchOptions::new().version(2), None),
            (FetchOptions::new().fingerprint([8; 32]), None),
        ] {
            match (link.fetch_with_options("weights", &options), found) {
                (Ok(handle), Some(access)) => {
                    let imported = Imported::new(instance, &handle).unwrap();
                    assert_eq!(imported.info().unwrap().access, access);
                }
                (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound),
                (result, _) => panic!("{options:?}: {result:?}"),
            }
        }
        // It is no keeper.
        let handle = link.fetch("weights").unwrap();
        assert_eq!(link.publish("mine", &handle).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(link.withdraw("weights").unwrap_err().kind(), ErrorKind::Unsupported);
        tell(socket);
        wait(socket);
        soon("the version is withdrawn", || first.info().unwrap().state == ImportState::WITHDRAWN);
        assert_eq!(read(instance, &first, 0).unwrap(), [1, 2, 3, 4]);
        tell(socket);
        wait(socket);
        soon("the hub has ended", || !link.info().unwrap().connected);
        assert_eq!(link.entries().unwrap_err().kind(), ErrorKind::PeerGone);
        // What is not kept is asked.
        let alone = shareable(device, LEN);
        let way = link.share_way(&alone, ShareWay::LEGACY, SharePeer::OTHER_PROCESS).unwrap();
        assert_eq!((way.status, way.message.is_empty()), (Status::PEER_GONE, false), "{way:?}");
        assert_eq!(read(instance, &first, 0).unwrap(), [1, 2, 3, 4]);
        drop(first);
        link.close().unwrap();
    });
}

/// The version and the first element of what a link imports next.
fn next(theirs: &Instance, link: &Link, after: u64) -> Result<(u64, u32), Error> {
    let next = link.import_next_for("batch", after, PATIENCE, &ImportOptions::new())?;
    let (imported, entry) = next.expect("there is a version");
    let mut found = [0u32];
    theirs.copy(&mut found, imported.slice(..1)?)?;
    imported.close()?;
    Ok((entry.version, found[0]))
}

#[test]
fn an_address_is_lent_no_longer_than_its_buffer_lives() {
    with_device(|instance, device| {
        let options = BufferOptions::new().handle_types(HandleTypes::POSIX_FD);
        if Buffer::<u32>::with_options(device, 1, &options).is_err()
            || Buffer::<u32>::with_options(device, 1, &BufferOptions::new().host()).is_err()
        {
            return println!("needs buffers that can be shared, and some of host memory");
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let make = || Buffer::<u32>::with_options(device, 1, &BufferOptions::new().host()).unwrap();
                while !done.load(Ordering::Relaxed) {
                    drop(make());
                    make().close().unwrap();
                }
            });
            for _ in 0..200 {
                let buffer = Buffer::<u32>::with_options(device, 1, &options).unwrap();
                let exported = instance.export(&buffer, &ExportOptions::new());
                if exported.is_err() {
                    done.store(true, Ordering::Relaxed);
                }
                instance.revoke(&exported.unwrap()).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_link_follows_a_name() {
    // One process imports from itself, with another instance.
    let theirs = Instance::open(backend()).unwrap();
    with_device(|instance, device| {
        let path = address("next");
        let hub = Hub::open(instance, &HubOptions::new().path(&path)).unwrap();
        let link = Link::connect(&theirs, &LinkOptions::new().path(&path)).unwrap();
        let publish = |content: u32| {
            let options = BufferOptions::new().handle_types(HandleTypes::POSIX_FD);
            let buffer = Buffer::with_options(device, 1, &options).unwrap();
            instance.copy(&buffer, &[content]).unwrap();
            let handle = instance.export(&buffer, &ExportOptions::new()).unwrap();
            hub.publish("batch", &handle).unwrap();
            (buffer, handle)
        };
        let (options, moment) = (ImportOptions::new(), Duration::from_millis(5));
        assert!(link.import_next_for("batch", 0, moment, &options).unwrap().is_none());
        let error = link.import_next("a/b", 0, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().starts_with("Link::import_next: "), "{error}");
        let error = link.import_next_for("a/b", 0, moment, &options).unwrap_err();
        assert!(error.to_string().starts_with("Link::import_next_for: "), "{error}");

        let mut published = vec![publish(1)];
        assert_eq!(next(&theirs, &link, 0).unwrap(), (1, 1));
        published.push(publish(2));
        assert_eq!(next(&theirs, &link, 0).unwrap(), (2, 2));
        assert_eq!(next(&theirs, &link, 1).unwrap(), (2, 2));
        assert!(link.import_next_for("batch", 2, moment, &options).unwrap().is_none());
        let reading = ImportOptions::new().access(Access::READ).name("next");
        let (imported, entry) = link.import_next_for("batch", 1, PATIENCE, &reading).unwrap().unwrap();
        assert_eq!((entry.version, imported.info().unwrap().access), (2, Access::READ));
        assert_eq!(imported.memory_info().unwrap().name, "next");
        imported.close().unwrap();

        // Each is withdrawn as soon as the next one is there, mostly between the steps of the reader.
        let last = if is_host() { 300 } else { 60 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = 2;
                while seen < last.into() {
                    let (version, content) = next(&theirs, &link, seen).unwrap();
                    assert!(version > seen && version == content.into(), "{version} has {content}");
                    seen = version;
                }
            });
            for content in 3..=last {
                let new = publish(content);
                if let Some((_, handle)) = published.last() {
                    instance.revoke(handle).unwrap();
                }
                published.push(new);
            }
        });

        hub.close().unwrap();
        assert_eq!(next(&theirs, &link, last.into()).unwrap_err().kind(), ErrorKind::PeerGone);
        // SAFETY: nothing that the instance has is used any more.
        unsafe { theirs.clone().close_by_force() }.unwrap();
        assert_eq!(next(&theirs, &link, 0).unwrap_err().kind(), ErrorKind::Closed);
        drop(link);
    });
}

#[test]
fn a_keeper_holds_what_others_leave() {
    if let Some(socket) = peer() {
        return publish_and_end(&socket);
    }
    with_device(|instance, _| {
        let path = address("keep");
        let options = HubOptions::new().path(&path).flags(HubFlags::KEEPER).bytes_max(1 << 30);
        let hub = Hub::open(instance, &options.fds_max(64).versions_max(4)).unwrap();
        let mut peer = Peer::start("a_keeper_holds_what_others_leave");
        (&peer.socket).write_all(format!("{path:40}").as_bytes()).unwrap();
        let link = Link::connect(instance, &LinkOptions::new().path(&path)).unwrap();
        assert!(link.info().unwrap().keeper);
        let entry = link.wait("state", 0).unwrap();
        wait(&peer.socket);
        peer.kill();
        let gone = || link.entries().unwrap().first().map_or(false, |entry| entry.publisher_gone);
        soon("the publisher ends", gone);
        assert_eq!(link.entries().unwrap().len(), 1);
        let imported = Imported::new(instance, &link.fetch("state").unwrap()).unwrap();
        let seam = entry.size / 2 - 8;
        assert_eq!(read(instance, &imported, seam).unwrap(), [1, 2, 3, 4]);
        link.withdraw_version("state", entry.version).unwrap();
        assert_eq!(link.withdraw("state").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(read(instance, &imported, seam).unwrap(), [1, 2, 3, 4]);
        drop((imported, link, hub));
    });
}

fn publish_and_end(mut socket: &UnixStream) {
    let mut path = [0; 40];
    socket.read_exact(&mut path).unwrap();
    let path = String::from_utf8(path.to_vec()).unwrap().trim().to_owned();
    let (instance, device) = open();
    let link = Link::connect(&instance, &LinkOptions::new().path(path)).unwrap();
    let memory = shareable(&device, LEN);
    let legacy = instance.export(&memory, &ExportOptions::new()).unwrap();
    assert_eq!(link.publish("state", &legacy).unwrap_err().kind(), ErrorKind::Unsupported);
    let (range, _) = two_blocks(&device);
    let handle = instance.export(range.slice::<u8>(..1).unwrap(), &ExportOptions::new()).unwrap();
    let options = PublishOptions::new().access(Access::READ_WRITE);
    assert_eq!(link.publish_with_options("state", &handle, &options).unwrap(), 1);
    tell(socket);
    wait(socket);
}

#[test]
fn imports_are_kept() {
    if let Some(socket) = peer() {
        return import_and_keep(&socket);
    }
    with_device(|instance, device| {
        let (range, _) = two_blocks(device);
        let handle = instance.export(range.slice::<u8>(..1).unwrap(), &ExportOptions::new()).unwrap();
        let peer = Peer::start("imports_are_kept");
        write_handle(&peer.socket, &handle);
        wait(&peer.socket);
        peer.end();
    });
}

fn import_and_keep(socket: &UnixStream) {
    with_device(|instance, _| {
        let handle = read_handle(socket);
        instance.set_import_cache(Duration::from_secs(3600), 0).unwrap();
        // Of the host backend; a driver does not show its mappings.
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:gpumem-block");
        let imported = Imported::new(instance, &handle).unwrap();
        let address = imported.device_address().unwrap();
        drop(imported);
        let again = Imported::new(instance, &handle).unwrap();
        assert_eq!((again.device_address().unwrap(), again.info().unwrap().count), (address, 1));
        drop(again);
        assert_eq!(is_mapped(), is_host());
        instance.flush_import_cache().unwrap();
        assert!(!is_mapped());
        assert_eq!(instance.kind_stats(Kind::IMPORTED).unwrap().live_count, 0);
        instance.set_import_cache(Duration::ZERO, 0).unwrap();
        drop(Imported::new(instance, &handle).unwrap());
        tell(socket);
    });
}

#[test]
fn ways_are_what_an_export_does() {
    with_device(|instance, device| {
        let memory = shareable(device, LEN);
        let (range, _) = two_blocks(device);
        let small = DeviceMemory::<u32>::new(device, 16).unwrap();
        let raw = Memory::create(device, Kind::PINNED, 4096, &MemoryOptions::new()).unwrap();
        let whole = range.slice::<u8>(..1).unwrap();
        for way in [ShareWay::LEGACY, ShareWay::POSIX_FD, ShareWay::FABRIC] {
            let options = ExportOptions::new().way(way);
            for (said, done) in [
                (
                    instance.share_way(&memory, way, SharePeer::OTHER_PROCESS),
                    instance.export(&memory, &options),
                ),
                (instance.share_way(whole, way, SharePeer::OTHER_PROCESS), instance.export(whole, &options)),
                (
                    instance.share_way(&small, way, SharePeer::OTHER_PROCESS),
                    instance.export(&small, &options),
                ),
                (instance.share_way(&raw, way, SharePeer::OTHER_PROCESS), instance.export(&raw, &options)),
            ] {
                let (said, done) =
                    (said.unwrap(), done.map_or_else(|error| error.status(), |_| Status::SUCCESS));
                assert_eq!((said.status, said.is_possible()), (done, done == Status::SUCCESS), "{said:?}");
                assert!(said.is_possible() || !said.message.is_empty());
            }
        }
        let by_descriptor = instance.share_way(whole, ShareWay::POSIX_FD, SharePeer::CONTAINER).unwrap();
        assert_eq!((by_descriptor.is_possible(), by_descriptor.fd_count), (true, 2));
        assert!(by_descriptor.needs_socket);
        let error = instance.share_way(&memory, ShareWay::ANY, SharePeer::OTHER_PROCESS).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let null = instance.share_way_raw(std::ptr::null(), ShareWay::LEGACY, SharePeer::OTHER_USER);
        assert_eq!(null.unwrap_err().kind(), ErrorKind::InvalidArgument);

        // What lies beside small memory would be shown. The host backend cannot share it at all.
        let neighbours = ExportOptions::new().flags(ExportFlags::NEIGHBOURS);
        match instance.export(&small, &neighbours) {
            Ok(handle) => {
                assert!(!is_host());
                let count = handle.info().unwrap().fd_count;
                assert_eq!(instance.export_fds(&handle).unwrap().len() as u32, count);
            }
            Err(error) => assert_eq!((error.kind(), is_host()), (ErrorKind::Unsupported, true), "{error}"),
        }
        let nothing = DeviceMemory::<u32>::new(device, 0).unwrap();
        let error = instance.export(&nothing, &neighbours).unwrap_err();
        assert_eq!(error.to_string(), "Instance::export: there are no elements to share; pass at least one");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = instance.export(&memory, &ExportOptions::new().way(ShareWay::DMA_BUF)).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().starts_with("Instance::export: ")),
            (ErrorKind::InvalidArgument, true)
        );
    });
}

#[test]
fn a_dma_buf_is_a_descriptor() {
    with_device(|instance, device| {
        let memory = shareable(device, LEN);
        let able = device.capability(Capability::SHARE_DMA_BUF, None).unwrap();
        match instance.export_dma_buf(&memory, DmaBufFlags::PREFER_PCIE) {
            Ok(fd) => assert!(able.is_supported() && fd.as_raw_fd() >= 0),
            Err(error) => assert_eq!((error.kind(), able.is_supported()), (ErrorKind::Unsupported, false)),
        }
        let pinned = Memory::create(device, Kind::PINNED, 4096, &MemoryOptions::new()).unwrap();
        let error = instance.export_dma_buf(&pinned, DmaBufFlags::NONE).unwrap_err();
        assert!([ErrorKind::WrongKind, ErrorKind::Unsupported].contains(&error.kind()), "{error}");
    });
}

#[test]
fn what_the_cpu_borrows_is_not_shared() {
    with_device(|instance, device| {
        let options = BufferOptions::new().host().handle_types(HandleTypes::POSIX_FD);
        // A device may be unable to share memory of the host.
        let buffer = Buffer::<u32>::with_options(device, 1000, &options)
            .or_else(|_| Buffer::with_options(device, 1000, &BufferOptions::new().host()))
            .unwrap();
        let options = ExportOptions::new();
        for result in [
            instance.export(&buffer, &options),
            instance.export(buffer.as_slice(), &options),
            instance.export_raw(buffer.as_ptr().cast(), &options),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("lends it to the CPU"), "{error}");
        }
        let error = instance.export_dma_buf(&buffer, DmaBufFlags::NONE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let options = BufferOptions::new().handle_types(HandleTypes::POSIX_FD);
        let buffer = Buffer::<u32>::with_options(device, 1000, &options).unwrap();
        let handle = instance.export(&buffer, &ExportOptions::new()).unwrap();
        assert_eq!(handle.info().unwrap().way, ShareWay::POSIX_FD);
        // The export ends with the memory.
        drop(buffer);
        assert_eq!(instance.export_fds(&handle).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn blocks_of_pools_are_shared() {
    with_device(|instance, device| {
        let options = PoolOptions::new().handle_types(HandleTypes::POSIX_FD);
        let pool = Pool::with_options(device, &options).unwrap();
        assert_eq!(pool.info().unwrap().handle_types, HandleTypes::POSIX_FD);
        let blocks = [0, 1].map(|_| pool.alloc::<u32>(4, None).unwrap());
        instance.copy(&blocks[0], &[1, 2, 3, 4]).unwrap();
        instance.copy(&blocks[1], &[5, 6, 7, 8]).unwrap();
        let (alone, together) = (ExportOptions::new(), ExportOptions::new().flags(ExportFlags::NEIGHBOURS));
        for result in [
            instance.export(&blocks[1], &alone),
            instance.export(blocks[1].as_slice(), &alone),
            instance.export_raw(blocks[1].as_ptr().cast(), &alone),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains("ExportFlags::NEIGHBOURS"), "{error}");
        }

        let handle = instance.export(&blocks[1], &together).unwrap();
        let info = handle.info().unwrap();
        assert_eq!((info.way, info.fd_count), (ShareWay::POSIX_FD, 1));
        let imported = Imported::new(instance, &handle).unwrap();
        assert_eq!(read(instance, &imported, 0).unwrap(), [5, 6, 7, 8]);
        instance.fill(imported.slice::<u32>(..4).unwrap(), 9u32).unwrap();
        for (block, expected) in blocks.iter().zip([[1, 2, 3, 4], [9; 4]]) {
            let mut found = [0; 4];
            instance.copy(&mut found, block).unwrap();
            assert_eq!(found, expected);
        }
        let inside = instance.export(blocks[1].slice(1..).unwrap(), &together).unwrap();
        assert_eq!(inside.info().unwrap().offset, info.offset + 4);

        let pool = Pool::new(device).unwrap();
        assert_eq!(pool.info().unwrap().handle_types, HandleTypes::NONE);
        let plain = pool.alloc::<u32>(4, None).unwrap();
        assert_eq!(instance.export(&plain, &together).unwrap_err().kind(), ErrorKind::Unsupported);
        let error = Pool::with_options(device, &options.kind(Kind::PINNED)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn handles_are_not_trusted() {
    with_device(|instance, device| {
        let memory = shareable(device, LEN);
        let handle = instance.export(&memory, &ExportOptions::new()).unwrap();
        let mut bytes = handle.as_ref().to_vec();
        for index in (0..bytes.len()).step_by(17) {
            bytes[index] ^= 1;
            let damaged = ShareHandle::try_from(&bytes[..]).unwrap();
            let kinds = [
                damaged.info().map(drop),
                instance.revoke(&damaged),
                Imported::new(instance, &damaged).map(drop),
            ]
            .map(|result| result.unwrap_err().kind());
            // Of the version it cannot be known whether it is damaged or newer.
            let allowed = [ErrorKind::InvalidArgument, ErrorKind::Unsupported];
            assert!(kinds.iter().all(|kind| allowed.contains(kind)), "{index}: {kinds:?}");
            bytes[index] ^= 1;
        }
        assert_eq!(ShareHandle::try_from(&bytes[..]).unwrap().info().unwrap(), handle.info().unwrap());
        let not_a_socket = File::open("/dev/null").unwrap();
        assert_eq!(instance.send(&handle, &not_a_socket).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(instance.receive(&not_a_socket).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let (here, there) = UnixStream::pair().unwrap();
        (&there).write_all(&[7; 4096]).unwrap();
        assert_eq!(instance.receive(&here).unwrap_err().kind(), ErrorKind::InvalidArgument);
        // Of another backend.
        if !is_host() {
            let other = Instance::open(Backend::HOST).unwrap();
            assert_eq!(Imported::new(&other, &handle).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    });
}

/// Bytes of a slot.
const SLOT: u64 = 1000;

/// What a message has: its bytes and its size depend on its number.
fn message(number: u64) -> Vec<u8> {
    (0..SLOT - number % 7).map(|index| (number * 31 + index) as u8).collect()
}

fn tag(number: u64) -> u64 {
    number * 1_000_003 + 7
}

fn can_make_rings(device: &Device) -> bool {
    let answer = device.capability(Capability::SHARE_EVENTS, None).unwrap();
    if answer.value == 0 {
        println!("no rings here: {}", answer.reason);
    }
    answer.value != 0
}

fn produce(instance: &Instance, producer: &mut RingProducer, stream: Option<&Stream>, count: u64) {
    for _ in 0..count {
        let slot = producer.acquire_for(stream, PATIENCE).unwrap().expect("a slot is free");
        let (bytes, number) = (message(slot.number()), slot.number());
        let target = slot.slice(..bytes.len()).unwrap();
        match stream {
            Some(stream) => stream.copy_from_slice(target, &bytes).map(drop).unwrap(),
            None => instance.copy(target, &bytes).unwrap(),
        }
        slot.publish(bytes.len() as u64, tag(number)).unwrap();
    }
}

fn contents(instance: &Instance, slice: gpumem::RingSlice<'_, u8>) -> Vec<u8> {
    let mut found = vec![0; slice.len()];
    instance.copy(&mut found, slice).unwrap();
    found
}

#[test]
fn a_ring_has_slots() {
    with_device(|instance, device| {
        if !can_make_rings(device) {
            return;
        }
        let options = RingOptions::new().slot_count(3).consumers_max(2).name("ours");
        let mut producer = RingProducer::new(device, SLOT, &options).unwrap();
        let handle = producer.export().unwrap();
        assert_eq!(handle.info().unwrap().share_type, ShareType::RING);
        let info = producer.info().unwrap();
        assert_eq!((info.is_producer, info.slot_size, info.slot_count), (true, SLOT, 3));
        assert_eq!((info.consumers_max, info.consumer_count, info.finished), (2, 0, false));
        assert_eq!(info.name, "ours");
        // Without consumers, messages are lost.
        for number in 0..10 {
            let slot = producer.acquire(None).unwrap();
            assert_eq!((slot.number(), slot.index(), slot.size()), (number, number as u32 % 3, SLOT));
            let address = info.base + u64::from(slot.index()) * info.slot_stride;
            assert_eq!(slot.slice::<u8>(..1).unwrap().device_address(), address);
            assert_eq!(slot.slice::<u8>(1..1001).unwrap_err().kind(), ErrorKind::InvalidArgument);
            assert_eq!(slot.slice::<u32>(250..251).unwrap_err().kind(), ErrorKind::InvalidArgument);
            slot.publish(number, 0).unwrap();
        }
        // What is dropped comes again.
        let stream = Stream::new(device).unwrap();
        let slot = producer.acquire(Some(&stream)).unwrap();
        drop(stream.fill(slot.slice::<u8>(..1000).unwrap(), 7).unwrap());
        drop(slot);
        let again = producer.acquire(None).unwrap();
        assert_eq!(again.number(), 10);
        assert_eq!(contents(instance, again.slice(990..).unwrap()), [7; 10]);
        assert_eq!(again.publish(SLOT + 1, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
        producer.acquire(None).unwrap().publish(SLOT, 0).unwrap();
        assert_eq!(producer.info().unwrap().published, 11);
        // So does what is forgotten, once the work is complete.
        let gate = Pinned::<AtomicU32>::zeroed(device, 1).unwrap();
        stream.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
        let slot = producer.acquire(Some(&stream)).unwrap();
        drop(stream.fill(slot.slice::<u8>(..1000).unwrap(), 9).unwrap());
        mem::forget(slot);
        let early = producer.acquire_for(None, Duration::from_millis(1)).map(|slot| slot.is_some());
        gate[0].store(1, Ordering::Release);
        assert!(!early.unwrap());
        drop(stream);
        let again = producer.acquire(None).unwrap();
        assert_eq!(again.number(), 11);
        assert_eq!(contents(instance, again.slice(990..).unwrap()), [9; 10]);
        mem::forget(again);
        producer.acquire(None).unwrap().publish(SLOT, 0).unwrap();
        assert_eq!(producer.info().unwrap().published, 12);

        // What else is refused.
        let open = |handle: &ShareHandle| RingConsumer::open(instance, handle, &RingOpenOptions::new());
        assert_eq!(open(&handle).unwrap_err().kind(), ErrorKind::InvalidState);
        assert_eq!(open(&ShareHandle::from([0; 256])).unwrap_err().kind(), ErrorKind::InvalidArgument);
        for (size, options) in [(0, RingOptions::new()), (SLOT, RingOptions::new().slot_count(257))] {
            let refused = RingProducer::new(device, size, &options).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
        producer.finish().unwrap();
        assert_eq!(producer.acquire(None).unwrap_err().kind(), ErrorKind::InvalidState);
        producer.close().unwrap();
    });
}

#[test]
fn two_consumers_get_all_messages_in_order() {
    if let Some(socket) = peer() {
        return consume(&socket);
    }
    with_device(|instance, device| {
        if !can_make_rings(device) {
            return;
        }
        let options = RingOptions::new().consumers_max(2).consumers_first(2);
        let mut producer = RingProducer::new(device, SLOT, &options).unwrap();
        assert!(producer.acquire_for(None, Duration::from_millis(1)).unwrap().is_none());
        let peers = [0u8, 1].map(|streams| {
            let peer = Peer::start("two_consumers_get_all_messages_in_order");
            write_handle(&peer.socket, &producer.export().unwrap());
            (&peer.socket).write_all(&[streams]).unwrap();
            peer
        });
        let stream = Stream::new(device).unwrap();
        produce(instance, &mut producer, None, 50);
        produce(instance, &mut producer, Some(&stream), 50);
        assert!(producer.finish_for(PATIENCE).unwrap());
        peers.into_iter().for_each(Peer::end);
        stream.synchronize().unwrap();
        producer.close().unwrap();
    });
}

#[test]
fn a_dropped_producer_finishes_the_ring() {
    if let Some(socket) = peer() {
        return consume(&socket);
    }
    with_device(|instance, device| {
        if !can_make_rings(device) {
            return;
        }
        let options = RingOptions::new().consumers_first(1).slot_count(100);
        let mut producer = RingProducer::new(device, SLOT, &options).unwrap();
        let peer = Peer::start("a_dropped_producer_finishes_the_ring");
        write_handle(&peer.socket, &producer.export().unwrap());
        (&peer.socket).write_all(&[0]).unwrap();
        produce(instance, &mut producer, None, 100);
        drop(producer);
        peer.end();
        // The instance tries again to destroy the ring, until it has seen that its consumer is gone.
        let begun = Instant::now();
        while instance.stats().unwrap().live_objects() != 0 && begun.elapsed() < PATIENCE {
            RingProducer::new(device, SLOT, &RingOptions::new()).unwrap().close().unwrap();
        }
    });
}

/// One consumer orders its work by a stream, the other waits on the CPU.
fn consume(mut socket: &UnixStream) {
    let (instance, device) = open();
    let options = RingOpenOptions::new().timeout(PATIENCE).name("theirs");
    let consumer = RingConsumer::open(&instance, &read_handle(socket), &options).unwrap();
    let mut streams = [0];
    socket.read_exact(&mut streams).unwrap();
    let stream = (streams == [1]).then(|| Stream::new(&device).unwrap());
    let mut next = 0;
    for found in consumer.messages(stream.as_ref()) {
        let found = found.unwrap();
        assert_eq!((found.number(), found.tag()), (next, tag(next)));
        if let Some(stream) = &stream {
            stream.synchronize().unwrap();
        }
        let bytes = found.size() as usize;
        assert_eq!(contents(&instance, found.slice(..bytes).unwrap()), message(next));
        next += 1;
    }
    assert_eq!(next, 100);
    assert_eq!(consumer.wait(None).unwrap_err().kind(), ErrorKind::Closed);
    consumer.close().unwrap();
}

/// Work of a stream on a slot that was acquired without it. Its consumer reads at once what it gets.
#[test]
fn a_slot_is_passed_on_after_work_of_any_stream() {
    if let Some(socket) = peer() {
        let (instance, _device) = open();
        let consumer = RingConsumer::open(&instance, &read_handle(&socket), &RingOpenOptions::new()).unwrap();
        for (found, number) in consumer.messages(None).map(Result::unwrap).zip(0..) {
            let bytes = found.size() as usize;
            assert_eq!(contents(&instance, found.slice(..bytes).unwrap()), message(number), "{number}");
        }
        return consumer.close().unwrap();
    }
    with_device(|_, device| {
        if !can_make_rings(device) {
            return;
        }
        let options = RingOptions::new().consumers_first(1);
        let mut producer = RingProducer::new(device, SLOT, &options).unwrap();
        let peer = Peer::start("a_slot_is_passed_on_after_work_of_any_stream");
        write_handle(&peer.socket, &producer.export().unwrap());
        let [own, first, second] = [0; 3].map(|_| Stream::new(device).unwrap());
        let event = Event::with_options(device, EventFlags::DISABLE_TIMING, None).unwrap();
        let late = || thread::sleep(Duration::from_millis(20));
        let fill = |slot: &RingSlot, stream: &Stream| {
            stream.launch_host_function(late).unwrap();
            let bytes = message(slot.number());
            drop(stream.copy_from_slice(slot.slice(..bytes.len()).unwrap(), &bytes).unwrap());
            bytes.len() as u64
        };

        // In the order of the one stream that uses it.
        for _ in 0..3 {
            let slot = producer.acquire(None).unwrap();
            let bytes = fill(&slot, &first);
            slot.publish(bytes, 0).unwrap();
        }
        // Of several, the slot's own one comes after the other.
        for _ in 0..3 {
            let slot = producer.acquire(Some(&own)).unwrap();
            let bytes = fill(&slot, &first);
            event.record(&first).unwrap();
            own.wait_event(&event).unwrap();
            slot.publish(bytes, 0).unwrap();
        }
        // Otherwise it is refused, and comes again when that is complete.
        for (stream, users) in [(Some(&own), [&first, &first]), (None, [&first, &second])] {
            let slot = producer.acquire(stream).unwrap();
            let number = slot.number();
            let bytes = users.map(|user| fill(&slot, user))[0];
            let error = slot.publish(bytes, 0).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (
                    ErrorKind::Busy,
                    "RingSlot::publish: work in another stream uses the slot and was not observed complete; \
                     synchronize that stream, or take the slot with it"
                )
            );
            let slot = producer.acquire(None).unwrap();
            assert_eq!(slot.number(), number);
            assert!(users.iter().all(|user| user.is_complete().unwrap()));
            slot.publish(bytes, 0).unwrap();
        }
        // What is dropped, or forgotten, is not used any more when it comes again.
        let slot = producer.acquire(None).unwrap();
        fill(&slot, &first);
        drop(slot);
        assert!(first.is_complete().unwrap());
        let gate = Pinned::<AtomicU32>::zeroed(device, 1).unwrap();
        let slot = producer.acquire(None).unwrap();
        first.wait_value(&gate, 0, WaitCondition::EQ, 1).unwrap();
        let bytes = fill(&slot, &first);
        mem::forget(slot);
        let early = producer.acquire_for(None, Duration::from_millis(1)).map(|slot| slot.is_some());
        gate[0].store(1, Ordering::Release);
        assert!(!early.unwrap());
        producer.acquire(None).unwrap().publish(bytes, 0).unwrap();
        assert!(producer.finish_for(PATIENCE).unwrap());
        peer.end();
        [own, first, second].iter().for_each(|stream| stream.synchronize().unwrap());
        producer.close().unwrap();
    });
}

/// Work of a stream on a message that was taken without it. Its producer writes the slot again at once.
#[test]
fn a_message_is_released_after_work_of_any_stream() {
    if let Some(socket) = peer() {
        let (instance, device) = open();
        let consumer = RingConsumer::open(&instance, &read_handle(&socket), &RingOpenOptions::new()).unwrap();
        let [own, first, second] = [0; 3].map(|_| Stream::new(&device).unwrap());
        let mut copied = Vec::new();
        let mut copy = |found: &RingMessage, stream: &Stream| {
            stream.launch_host_function(|| thread::sleep(Duration::from_millis(5))).unwrap();
            let bytes = found.size() as usize;
            let target = Pinned::<u8>::zeroed(&device, bytes).unwrap();
            let pending = stream.copy(target, found.slice(..bytes).unwrap()).unwrap();
            copied.push((found.number(), pending));
        };
        for found in consumer.messages(None).take(10) {
            copy(&found.unwrap(), &first);
        }
        for found in consumer.messages(Some(&own)).take(10) {
            let found = found.unwrap();
            copy(&found, &first);
            copy(&found, &own);
            found.release().unwrap();
        }
        for found in consumer.messages(None).take(10) {
            let found = found.unwrap();
            copy(&found, &first);
            copy(&found, &second);
            found.release().unwrap();
        }
        for _ in 0..5 {
            let [older, newer] = [0; 2].map(|_| consumer.wait(None).unwrap());
            copy(&older, &first);
            copy(&newer, &second);
            newer.release().unwrap();
            older.release().unwrap();
        }
        for (number, pending) in copied {
            assert_eq!(pending.wait().unwrap().0[..], message(number)[..], "{number}");
        }
        return consumer.close().unwrap();
    }
    with_device(|instance, device| {
        if !can_make_rings(device) {
            return;
        }
        let options = RingOptions::new().slot_count(2).consumers_first(1);
        let mut producer = RingProducer::new(device, SLOT, &options).unwrap();
        let peer = Peer::start("a_message_is_released_after_work_of_any_stream");
        write_handle(&peer.socket, &producer.export().unwrap());
        produce(instance, &mut producer, None, 40);
        assert!(producer.finish_for(PATIENCE).unwrap());
        peer.end();
        producer.close().unwrap();
    });
}

#[test]
fn a_dead_consumer_holds_up_nobody() {
    if let Some(socket) = peer() {
        let (instance, _device) = open();
        let consumer = RingConsumer::open(&instance, &read_handle(&socket), &RingOpenOptions::new()).unwrap();
        let _held = consumer.wait_for(None, PATIENCE).unwrap().unwrap();
        tell(&socket);
        return wait(&socket);
    }
    with_device(|instance, device| {
        if !can_make_rings(device) {
            return;
        }
        let options = RingOptions::new().slot_count(2).consumers_first(1);
        let mut producer = RingProducer::new(device, SLOT, &options).unwrap();
        let mut peer = Peer::start("a_dead_consumer_holds_up_nobody");
        write_handle(&peer.socket, &producer.export().unwrap());
        produce(instance, &mut producer, None, 2);
        wait(&peer.socket);
        assert!(producer.acquire_for(None, Duration::from_millis(20)).unwrap().is_none());
        let Rejected { given, error, .. } = producer.close().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        producer = given;
        peer.kill();
        produce(instance, &mut producer, None, 10);
        assert!(producer.finish_for(PATIENCE).unwrap());
        producer.close().unwrap();
    });
}

#[test]
fn a_producer_that_dies_is_reported() {
    if let Some(socket) = peer() {
        let (instance, device) = open();
        let options = RingOptions::new().consumers_first(1);
        let mut producer = RingProducer::new(&device, SLOT, &options).unwrap();
        write_handle(&socket, &producer.export().unwrap());
        produce(&instance, &mut producer, None, 4);
        tell(&socket);
        return wait(&socket);
    }
    with_device(|instance, device| {
        if !can_make_rings(device) {
            return;
        }
        let mut peer = Peer::start("a_producer_that_dies_is_reported");
        let handle = read_handle(&peer.socket);
        let consumer = RingConsumer::open(instance, &handle, &RingOpenOptions::new()).unwrap();
        wait(&peer.socket);
        let messages: Vec<_> = consumer.messages(None).take(3).map(Result::unwrap).collect();
        for (found, number) in messages.iter().zip(0..) {
            assert_eq!((found.number(), found.tag()), (number, tag(number)));
            let bytes = found.size() as usize;
            assert_eq!(contents(instance, found.slice(..bytes).unwrap()), message(number));
        }
        // In the reverse order, as variables are dropped.
        let held = |consumer: &RingConsumer| consumer.info().unwrap().held_count;
        let mut messages = messages.into_iter().rev();
        drop((messages.next(), messages.next()));
        assert_eq!(held(&consumer), 3);
        let last = consumer.wait_for(None, PATIENCE).unwrap().unwrap();
        let error = consumer.wait(None).unwrap_err();
        assert!(
            error.message().ends_with("all 4 slots are held; release the oldest message first"),
            "{error}"
        );
        drop(messages);
        assert_eq!((held(&consumer), consumer.info().unwrap().released), (1, 3));
        peer.kill();
        assert_eq!(consumer.wait(None).unwrap_err().kind(), ErrorKind::PeerGone);
        assert_eq!(last.release().unwrap_err().kind(), ErrorKind::PeerGone);
        consumer.close().unwrap();
    });
}
