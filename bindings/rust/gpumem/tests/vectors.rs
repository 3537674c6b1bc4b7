// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Runs the call sequences that all bindings share (`GPUMEM_VECTORS`), each as a test of its own.
//!
//! The typed arrays make most of their mistakes impossible, so the steps use [`Memory`] and the functions by address.

mod common;

use std::collections::HashMap;
use std::convert::TryFrom;
use std::fs::{remove_file, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::raw::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gpumem::{
    host, sys, Access, Backend, Buffer, BufferFlags, BufferOptions, BufferRegistration, BufferState,
    Capability, Content, CopyOptions, Device, Direction, Error, Event, EventFlags, ExportFlags,
    ExportOptions, FileOptions, Group, GroupOptions, HandleTypes, ImportOptions, Imported, Instance,
    InstanceOptions, Kind, Memory, MemoryFlags, MemoryOptions, Pool, PoolFlags, PoolOptions, PrepareOptions,
    Processor, RegisterOptions, Rejected, ShareHandle, SharePeer, ShareWay, SleepOptions, SourceOrder,
    Status, Stream, StreamOptions, WaitCondition, WakeOptions,
};

/// Ordinary memory, page aligned.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; 4096]);

enum Object {
    Instance(Instance),
    Device(Device),
    Memory(Memory),
    Buffer(Vec<Page>),
    Pointer(*mut c_void),
    Stream(Stream),
    Event(Event),
    Growable(Buffer<u8>),
    Group(Group),
    /// With the buffer that was named.
    Registration(BufferRegistration, sys::gpumem_buffer),
    /// The number of one that was forgotten.
    Forgotten(u64),
    Pool(Pool),
    DestroyedPool(sys::gpumem_pool),
    DestroyedStream(sys::gpumem_stream),
    Handle(ShareHandle),
    Imported(Imported),
    Capture(u64),
    /// A file without a name, and what the calls get.
    File(File, File),
}

const ACCESSES: [(&str, u64); 4] = [("none", 0), ("read", 1), ("readwrite", 3), ("unknown", 4)];
const WAYS: [(&str, u64); 5] = [("any", 0), ("legacy", 1), ("posix_fd", 2), ("fabric", 3), ("dma_buf", 4)];
const PEERS: [(&str, u64); 5] =
    [("other_process", 0), ("same_process", 1), ("other_user", 2), ("other_device", 3), ("container", 4)];

/// Fails with a text if a step is not understood, or if its comparison fails.
type Checked<T> = Result<T, String>;

struct Runner {
    objects: HashMap<String, Object>,
    /// Of every memory, also of those that were destroyed.
    handles: HashMap<String, sys::gpumem_memory>,
}

/// A parsed step.
struct Step<'a> {
    result: Option<&'a str>,
    words: Vec<&'a str>,
    options: HashMap<&'a str, &'a str>,
    status: &'a str,
}

impl<'a> Step<'a> {
    fn parse(line: &'a str) -> Self {
        let (left, status) =
            line.split_once("->").map_or((line, "SUCCESS"), |(left, right)| (left, right.trim()));
        let mut tokens: Vec<&str> = left.split_whitespace().collect();
        let result = (tokens.get(1) == Some(&"=")).then(|| tokens[0]);
        if result.is_some() {
            tokens.drain(..2);
        }
        let (options, words): (Vec<&str>, Vec<&str>) =
            tokens.into_iter().partition(|token| token.contains('='));
        let options = options.into_iter().filter_map(|option| option.split_once('=')).collect();
        Self { result, words, options, status }
    }

    fn word(&self, index: usize) -> Checked<&'a str> {
        self.words.get(index).copied().ok_or_else(|| format!("argument {index} is missing"))
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.options.get(name).copied()
    }

    fn number_or(&self, name: &str, default: u64) -> Checked<u64> {
        self.text(name).map_or(Ok(default), number)
    }
}

fn number(text: &str) -> Checked<u64> {
    let parsed = match (text.strip_prefix("0x"), text.strip_prefix('-')) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (_, Some(digits)) => digits.parse::<u64>().ok().map(u64::wrapping_neg),
        _ => text.parse().ok(),
    };
    parsed.ok_or_else(|| format!("{text} is not a number"))
}

fn named(text: &str, names: &[(&str, u64)]) -> Checked<u64> {
    names.iter().find(|(name, _)| *name == text).map_or_else(|| number(text), |(_, value)| Ok(*value))
}

fn kind(text: Option<&str>) -> Checked<Kind> {
    let names = [
        ("device", Kind::DEVICE.0 as u64),
        ("pinned", Kind::PINNED.0 as u64),
        ("registered", Kind::REGISTERED.0 as u64),
        ("pageable", Kind::PAGEABLE.0 as u64),
        ("unknown", Kind::UNKNOWN.0 as u64),
        ("managed", Kind::MANAGED.0 as u64),
        ("pool", Kind::POOL.0 as u64),
        ("virtual", Kind::VIRTUAL.0 as u64),
        ("foreign", Kind::FOREIGN.0 as u64),
    ];
    Ok(Kind(named(text.ok_or("kind is missing")?, &names)? as i32))
}

fn flags(text: Option<&str>) -> Checked<MemoryFlags> {
    let names = [
        ("portable", MemoryFlags::PORTABLE.0),
        ("mapped", MemoryFlags::MAPPED.0),
        ("write_combined", MemoryFlags::WRITE_COMBINED.0),
        ("read_only", MemoryFlags::READ_ONLY.0),
        ("iomemory", MemoryFlags::IOMEMORY.0),
        ("page_locked", MemoryFlags::PAGE_LOCKED.0),
        ("numa_node", MemoryFlags::NUMA_NODE.0),
        ("attach_host", MemoryFlags::ATTACH_HOST.0),
        ("oversubscribe", MemoryFlags::OVERSUBSCRIBE.0),
        ("shareable", MemoryFlags::SHAREABLE.0),
    ];
    text.map_or(Ok(MemoryFlags::NONE), |text| {
        text.split(',').try_fold(MemoryFlags::NONE, |all, flag| Ok(all | MemoryFlags(named(flag, &names)?)))
    })
}

fn buffer_flags(text: Option<&str>) -> Checked<BufferFlags> {
    let names = [("movable", BufferFlags::MOVABLE.0), ("copyable", BufferFlags::COPYABLE.0)];
    text.map_or(Ok(BufferFlags::NONE), |text| {
        text.split(',').try_fold(BufferFlags::NONE, |all, flag| Ok(all | BufferFlags(named(flag, &names)?)))
    })
}

fn handle_types(step: &Step<'_>) -> Checked<HandleTypes> {
    let names = [("posix_fd", HandleTypes::POSIX_FD.0), ("fabric", HandleTypes::FABRIC.0)];
    step.text("handle_types").map_or(Ok(HandleTypes::NONE), |text| {
        text.split(',').try_fold(HandleTypes::NONE, |all, name| Ok(all | HandleTypes(named(name, &names)?)))
    })
}

fn pool_options(step: &Step<'_>) -> Checked<PoolOptions> {
    let names = [
        ("internal_dependencies", PoolFlags::ALLOW_INTERNAL_DEPENDENCIES.0),
        ("debug", PoolFlags::DEBUG.0),
        ("from_driver", PoolFlags::FROM_DRIVER.0),
    ];
    let mut options = PoolOptions::new()
        .limit(step.number_or("limit", 0)?)
        .release_threshold(step.number_or("threshold", 0)?)
        .initial_size(step.number_or("initial", 0)?);
    for flag in step.text("flags").iter().flat_map(|text| text.split(',')) {
        options = options.flags(PoolFlags(named(flag, &names)?));
    }
    options = options.handle_types(handle_types(step)?);
    if step.text("kind").is_some() {
        options = options.kind(kind(step.text("kind"))?);
    }
    if let Some(name) = step.text("name") {
        options = options.name(name);
    }
    Ok(options)
}

fn content(step: &Step<'_>) -> Checked<Content> {
    let names = [("pinned", 0), ("pageable", 1), ("zero", 2), ("drop", 3), ("file", 4)];
    Ok(Content(step.text("content").map_or(Ok(0), |text| named(text, &names))? as i32))
}

fn sleep_options(step: &Step<'_>) -> Checked<SleepOptions<'static>> {
    let mut options = SleepOptions::new();
    if let Some(directory) = step.text("directory") {
        options = options.directory(directory);
    }
    if let Some(tag) = step.text("tag") {
        options = options.tag(tag);
    }
    Ok(options.content(content(step)?))
}

fn wake_options(step: &Step<'_>) -> Checked<WakeOptions<'static>> {
    let mut options = WakeOptions::new().keep(step.number_or("keep", 0)?);
    if let Some(tag) = step.text("tag") {
        options = options.tag(tag);
    }
    Ok(options)
}

fn prepare_options(step: &Step<'_>) -> Checked<PrepareOptions> {
    let mut options = PrepareOptions::new();
    if let Some(directory) = step.text("directory") {
        options = options.directory(directory);
    }
    if let Some(tag) = step.text("tag") {
        options = options.tag(tag);
    }
    Ok(options.content(content(step)?))
}

/// Gives memory to as many bytes.
fn set_capacity(buffer: &mut Buffer<u8>, bytes: usize) -> Result<(), Error> {
    if bytes == 0 {
        buffer.shrink_to_fit()
    } else if bytes > buffer.capacity() {
        buffer.reserve_exact(bytes - buffer.len())
    } else {
        buffer.shrink_to(bytes)
    }
}

/// The handle that `Debug` shows, such as `Stream(0x1)` or `Instance { handle: 0x1, .. }`.
fn shown_handle(object: &impl std::fmt::Debug) -> Checked<u64> {
    let text = format!("{object:?}");
    let digits = text.split_once("0x").map_or("", |(_, rest)| rest.split([')', ',']).next().unwrap_or(""));
    u64::from_str_radix(digits, 16).map_err(|error| error.to_string())
}

fn bytes_of(hex: &str) -> Checked<Vec<u8>> {
    (0..hex.len() / 2)
        .map(|index| {
            u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).map_err(|error| error.to_string())
        })
        .collect()
}

/// A file without a name, and a second one on it that may only be read if asked for.
fn temporary_file(content: &[u8], only_read: bool) -> std::io::Result<(File, File)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("gpumem-vectors-{}-{}", std::process::id(), number));
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    let given = if only_read { File::open(&path) } else { file.try_clone() };
    remove_file(&path)?;
    file.write_all(content)?;
    Ok((file, given?))
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Checked<()> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what} is {found:?}, not {expected:?}"))
    }
}

/// The status of a call whose result is not used.
fn status_of<T>(result: Result<T, Error>) -> Status {
    result.map_or_else(|error| error.status(), |_| Status::SUCCESS)
}

fn readiness(result: Result<bool, Error>) -> Status {
    match result {
        Ok(true) => Status::SUCCESS,
        Ok(false) => Status::NOT_READY,
        Err(error) => error.status(),
    }
}

macro_rules! getters {
    ($($function:ident: $variant:ident($type:ty);)*) => {$(
        fn $function(&self, name: &str) -> Checked<&$type> {
            match self.objects.get(name) {
                Some(Object::$variant(object)) => Ok(object),
                _ => Err(format!("{name} is not a {}", stringify!($variant))),
            }
        }
    )*};
}

impl Runner {
    getters! {
        instance: Instance(Instance);
        device: Device(Device);
        stream: Stream(Stream);
        event: Event(Event);
        memory: Memory(Memory);
        growable: Growable(Buffer<u8>);
        group: Group(Group);
        pool: Pool(Pool);
        handle: Handle(ShareHandle);
        capture: Capture(u64);
    }

    fn growable_mut(&mut self, name: &str) -> Checked<&mut Buffer<u8>> {
        match self.objects.get_mut(name) {
            Some(Object::Growable(buffer)) => Ok(buffer),
            _ => Err(format!("{name} is not a Buffer")),
        }
    }

    fn address(&self, text: &str) -> Checked<*mut c_void> {
        let (name, offset) =
            text.split_once('+').map_or((text, Ok(0)), |(name, offset)| (name, number(offset)));
        let start: *mut u8 = match self.objects.get(name) {
            _ if name == "null" => std::ptr::null_mut(),
            Some(Object::Buffer(pages)) => pages.as_ptr() as *mut u8,
            Some(Object::Pointer(pointer)) => pointer.cast(),
            Some(Object::Growable(buffer)) => buffer.as_ptr(),
            Some(Object::Memory(memory)) if memory.host_pointer().is_null() => {
                memory.device_address().map_err(|error| error.to_string())? as *mut u8
            }
            Some(Object::Memory(memory)) => memory.host_pointer().cast(),
            _ => return Err(format!("{name} has no address")),
        };
        Ok(start.wrapping_add(offset? as usize).cast())
    }

    /// One side of a region: `@m+N` is a memory and an offset, everything else an address.
    fn operand(&self, text: &str) -> Checked<sys::gpumem_copy_operand> {
        let mut operand = sys::gpumem_copy_operand::default();
        match text.strip_prefix('@') {
            None => operand.pointer = self.address(text)?,
            Some(text) => {
                let (name, offset) = text.split_once('+').unwrap_or((text, "0"));
                operand.memory = *self.handles.get(name).ok_or_else(|| format!("{name} is not a Memory"))?;
                operand.offset = number(offset)?;
            }
        }
        Ok(operand)
    }

    /// Copies `count` regions, each `step` bytes after the one before on both sides.
    fn copy_regions(&self, step: &Step<'_>, stream: Option<&Stream>) -> Checked<Status> {
        let instance = self.instance(step.word(1)?)?;
        let mut region = sys::gpumem_copy_region {
            destination: self.operand(step.word(2)?)?,
            source: self.operand(step.word(3)?)?,
            width: step.number_or("width", 0)?,
            height: step.number_or("height", 0)?,
            depth: step.number_or("depth", 0)?,
            direction: step.number_or("direction", 0)? as i32,
            source_order: step.number_or("source_order", 0)? as i32,
            ..Default::default()
        };
        region.destination.row_pitch = step.number_or("dpitch", 0)?;
        region.destination.slice_pitch = step.number_or("dslice", 0)?;
        region.source.row_pitch = step.number_or("spitch", 0)?;
        region.source.slice_pitch = step.number_or("sslice", 0)?;
        let distance = step.number_or("step", 0)?;
        let mut regions = Vec::new();
        for _ in 0..step.number_or("count", 1)? {
            regions.push(region);
            for side in [&mut region.destination, &mut region.source] {
                if !side.memory.is_null() {
                    side.offset += distance;
                } else if !side.pointer.is_null() {
                    side.pointer = side.pointer.cast::<u8>().wrapping_add(distance as usize).cast();
                }
            }
        }
        // SAFETY: the operands of a case live to its end, and nothing but it uses them.
        let result = unsafe {
            match stream {
                Some(stream) => stream.copy_regions_raw(&regions),
                None => instance.copy_regions_raw(&regions),
            }
        };
        let expected = step.text("failed").map(number).transpose()?;
        let failed = result.as_ref().err().and_then(Error::region);
        equal("the region that failed", failed.map(|index| index as u64), expected)?;
        Ok(status_of(result))
    }

    /// Runs a step and checks its comparisons. Returns its status.
    fn run(&mut self, step: &Step<'_>) -> Checked<Status> {
        // Its stream may be one that was destroyed.
        if step.word(0)? == "alloc" {
            return self.alloc(step);
        }
        let stream = step.text("stream").map(|name| self.stream(name)).transpose()?;
        match step.word(0)? {
            "open" => {
                let backends = [("any", 0), ("cuda", 1), ("host", 2)];
                let backend = step
                    .text("backend")
                    .map_or(Ok(common::backend().0 as u64), |text| named(text, &backends))?;
                let options = InstanceOptions::from(Backend(backend as i32))
                    .pin_budget(step.number_or("pin_budget", 0)?);
                self.made(step, Instance::open(options).map(Object::Instance))
            }
            "device" => {
                let ordinal = number(step.word(2)?)? as u32;
                let result = self.instance(step.word(1)?)?.device(ordinal);
                self.made(step, result.map(Object::Device))
            }
            "create" => {
                let mut options = MemoryOptions::new()
                    .require(flags(step.text("require"))?)
                    .prefer(flags(step.text("prefer"))?)
                    .alignment(step.number_or("alignment", 0)?);
                if let Some(name) = step.text("name") {
                    options = options.name(name);
                }
                if let Some(node) = step.text("numa_node") {
                    options = options.numa_node(number(node)? as i32);
                }
                let device = self.device(step.word(1)?)?;
                let result =
                    Memory::create(device, kind(step.text("kind"))?, step.number_or("size", 0)?, &options);
                self.made(step, result.map(Object::Memory))
            }
            "register" => {
                let mut options = RegisterOptions::new()
                    .require(flags(step.text("require"))?)
                    .prefer(flags(step.text("prefer"))?);
                if let Some(name) = step.text("name") {
                    options = options.name(name);
                }
                let (device, pointer) = (self.device(step.word(1)?)?, self.address(step.word(2)?)?);
                // SAFETY: registered memory lives until the end of the case.
                let result =
                    unsafe { Memory::register(device, pointer, step.number_or("size", 0)?, &options) };
                self.made(step, result.map(Object::Memory))
            }
            "buffer" => {
                let pages = (number(step.word(1)?)? as usize + 4095) / 4096;
                self.made(step, Ok(Object::Buffer(vec![Page([0; 4096]); pages])))
            }
            "malloc" => {
                let result =
                    self.device(step.word(1)?)?.malloc(kind(step.text("kind"))?, step.number_or("size", 0)?);
                self.made(step, result.map(Object::Pointer))
            }
            "stream" => {
                let options = StreamOptions::new().priority(step.number_or("priority", 0)? as i32);
                let result = Stream::with_options(self.device(step.word(1)?)?, &options);
                self.made(step, result.map(Object::Stream))
            }
            "event" => {
                let names = [("disable_timing", 1), ("blocking_sync", 2), ("interprocess", 4)];
                let flags = step.text("flags").map_or(Ok(0), |text| {
                    text.split(',').try_fold(0, |all, flag| Ok::<u64, String>(all | named(flag, &names)?))
                })?;
                let result = Event::with_options(self.device(step.word(1)?)?, EventFlags(flags), None);
                self.made(step, result.map(Object::Event))
            }
            "close" => self.close(step),
            "destroy" => match self.objects.remove(step.word(1)?) {
                Some(Object::Memory(memory)) => self.closed(step, memory.close(), Object::Memory),
                Some(Object::Stream(stream)) => {
                    let handle = shown_handle(&stream)? as sys::gpumem_stream;
                    let result = stream.close();
                    self.destroyed(step, result, Object::Stream, Object::DestroyedStream(handle))
                }
                Some(Object::Pool(pool)) => {
                    let handle = pool.handle();
                    let result = pool.close();
                    self.destroyed(step, result, Object::Pool, Object::DestroyedPool(handle))
                }
                Some(Object::Event(event)) => self.closed(step, event.close(), Object::Event),
                Some(Object::Growable(buffer)) => self.closed(step, buffer.close(), Object::Growable),
                Some(Object::Group(group)) => self.closed(step, group.close(), Object::Group),
                Some(Object::Imported(import)) => self.closed(step, import.close(), Object::Imported),
                _ => Err(format!("{} cannot be destroyed", step.word(1)?)),
            },
            "growable" => {
                let mut options = BufferOptions::new()
                    .reserve(step.number_or("reserve", 0)?)
                    .flags(buffer_flags(step.text("flags"))?)
                    .handle_types(handle_types(step)?);
                if let Some(name) = step.text("name") {
                    options = options.name(name);
                }
                if let Some(group) = step.text("group") {
                    options = options.group(self.group(group)?);
                }
                if let Some(tag) = step.text("tag") {
                    options = options.tag(tag);
                }
                let size = step.number_or("size", 0)? as usize;
                let result = Buffer::with_options(self.device(step.word(1)?)?, size, &options);
                self.made(step, result.map(Object::Growable))
            }
            "group" => {
                let mut options = GroupOptions::new();
                if let Some(name) = step.text("name") {
                    options = options.name(name);
                }
                let result = Group::with_options(self.instance(step.word(1)?)?, &options);
                self.made(step, result.map(Object::Group))
            }
            "resize" => {
                let size = number(step.word(2)?)? as usize;
                Ok(status_of(self.growable_mut(step.word(1)?)?.resize(size)))
            }
            "set_capacity" => {
                let size = number(step.word(2)?)? as usize;
                Ok(status_of(set_capacity(self.growable_mut(step.word(1)?)?, size)))
            }
            "note" => {
                let buffer = self.growable(step.word(1)?)?;
                let (result, handle) = (buffer.note_registration(step.word(2)?), buffer.handle());
                self.made(step, result.map(|registration| Object::Registration(registration, handle)))
            }
            "forget" => self.forget(step),
            "sleep" => {
                let options = sleep_options(step)?;
                Ok(status_of(match self.objects.get_mut(step.word(1)?) {
                    Some(Object::Growable(buffer)) => buffer.sleep(options),
                    Some(Object::Group(group)) => group.sleep(options),
                    _ => return Err("only a buffer or group can sleep".to_owned()),
                }))
            }
            "wake" => {
                let options = wake_options(step)?;
                Ok(status_of(match self.objects.get_mut(step.word(1)?) {
                    Some(Object::Growable(buffer)) => buffer.wake_with_options(options),
                    Some(Object::Group(group)) => group.wake_with_options(options),
                    _ => return Err("only a buffer or group can wake".to_owned()),
                }))
            }
            "prepare" => {
                let options = prepare_options(step)?;
                Ok(status_of(match self.objects.get(step.word(1)?) {
                    Some(Object::Growable(buffer)) => buffer.prepare(options),
                    Some(Object::Group(group)) => group.prepare(options),
                    _ => return Err("only a buffer or group can be prepared".to_owned()),
                }))
            }
            "buffer_info" => match self.growable(step.word(1)?)?.info() {
                Err(error) => Ok(error.status()),
                Ok(info) => {
                    let names = [("awake", 0), ("asleep", 1), ("failed", 2)];
                    let state =
                        step.text("state").map_or(Ok(info.state.0 as u64), |text| named(text, &names))?;
                    equal("the state", info.state, BufferState(state as i32))?;
                    equal("the name", info.name.as_str(), step.text("name").unwrap_or(&info.name))?;
                    equal("the tag", info.tag.as_str(), step.text("tag").unwrap_or(&info.tag))?;
                    for (name, found) in [
                        ("size", info.size),
                        ("generation", info.generation),
                        ("stored", info.stored_size),
                        ("registrations", info.registrations),
                    ] {
                        equal(name, found, step.number_or(name, found)?)?;
                    }
                    Ok(Status::SUCCESS)
                }
            },
            "group_info" => {
                let group = self.group(step.word(1)?)?;
                match step.text("tag").map_or_else(|| group.info(), |tag| group.info_of(tag)) {
                    Err(error) => Ok(error.status()),
                    Ok(info) => {
                        for (name, found) in [
                            ("buffers", info.buffer_count),
                            ("awake", info.awake_count),
                            ("asleep", info.asleep_count),
                            ("size", info.size),
                            ("stored", info.stored_size),
                        ] {
                            equal(name, found, step.number_or(name, found)?)?;
                        }
                        Ok(Status::SUCCESS)
                    }
                }
            }
            "pool" => {
                let result = Pool::with_options(self.device(step.word(1)?)?, &pool_options(step)?);
                self.made(step, result.map(Object::Pool))
            }
            "record_use" => {
                let stream = stream.ok_or("stream is missing")?;
                Ok(status_of(self.pool(step.word(1)?)?.record_use_raw(self.address(step.word(2)?)?, stream)))
            }
            "trim" => Ok(status_of(self.pool(step.word(1)?)?.trim(step.number_or("keep", 0)?))),
            "set_limit" => Ok(status_of(self.pool(step.word(1)?)?.set_limit(number(step.word(2)?)?))),
            "set_threshold" => {
                Ok(status_of(self.pool(step.word(1)?)?.set_release_threshold(number(step.word(2)?)?)))
            }
            "pool_info" => self.pool_info(step),
            "block_info" => {
                let pointer = self.address(step.word(2)?)?;
                match self.instance(step.word(1)?)?.block_info(pointer) {
                    Err(error) => Ok(error.status()),
                    Ok(info) => {
                        let offset = (pointer as u64).wrapping_sub(info.base as u64);
                        equal("the offset", offset, step.number_or("offset", offset)?)?;
                        let requested = info.requested_size;
                        equal("the requested size", requested, step.number_or("requested", requested)?)?;
                        Ok(Status::SUCCESS)
                    }
                }
            }
            // SAFETY, for all that follows: the operands of a case live to its end, and nothing but it uses them.
            "free" => unsafe {
                Ok(status_of(self.instance(step.word(1)?)?.free(self.address(step.word(2)?)?)))
            },
            "free_block" => {
                let (pool, pointer) = (self.pool(step.word(1)?)?, self.address(step.word(2)?)?);
                // SAFETY: see above.
                Ok(status_of(unsafe { pool.free_raw(pointer, stream) }))
            }
            "free_pointer" => {
                let (instance, pointer) = (self.instance(step.word(1)?)?, self.address(step.word(2)?)?);
                // SAFETY: see above.
                Ok(status_of(unsafe { instance.free_block(pointer, stream) }))
            }
            "register_pointer" => {
                let (device, pointer) = (self.device(step.word(1)?)?, self.address(step.word(2)?)?);
                let (size, require) = (step.number_or("size", 0)?, flags(step.text("require"))?);
                // SAFETY: see above.
                Ok(status_of(unsafe { device.register(pointer, size, require) }))
            }
            "unregister_pointer" => {
                // SAFETY: see above.
                Ok(status_of(unsafe {
                    self.instance(step.word(1)?)?.unregister(self.address(step.word(2)?)?)
                }))
            }
            "record" => Ok(status_of(self.event(step.word(1)?)?.record(self.stream(step.word(2)?)?))),
            "wait" => Ok(status_of(self.stream(step.word(1)?)?.wait_event(self.event(step.word(2)?)?))),
            "query" => Ok(readiness(match self.objects.get(step.word(1)?) {
                Some(Object::Stream(stream)) => stream.is_complete(),
                Some(Object::Event(event)) => event.is_complete(),
                _ => return Err("only a stream or event can be queried".to_owned()),
            })),
            "synchronize" => {
                let limit =
                    step.text("timeout").map(number).transpose()?.map_or(Duration::MAX, Duration::from_nanos);
                Ok(readiness(match self.objects.get(step.word(1)?) {
                    Some(Object::Stream(stream)) => stream.synchronize_for(limit),
                    Some(Object::Event(event)) => event.synchronize_for(limit),
                    _ => return Err("only a stream or event can be waited for".to_owned()),
                }))
            }
            "elapsed" => {
                let result = self.event(step.word(2)?)?.nanoseconds_since(self.event(step.word(1)?)?);
                if let Ok(Some(nanoseconds)) = result {
                    equal("that the time is negative", nanoseconds < 0, false)?;
                }
                Ok(readiness(result.map(|time| time.is_some())))
            }
            "copy" | "copy_2d" => {
                let instance = self.instance(step.word(1)?)?;
                let (to, from) = (self.address(step.word(2)?)?, self.address(step.word(3)?)?);
                let mut options = CopyOptions::new();
                options.direction = Direction(step.number_or("direction", 0)? as i32);
                options.source_order = SourceOrder(step.number_or("source_order", 0)? as i32);
                let (to_pitch, from_pitch) = (step.number_or("dpitch", 0)?, step.number_or("spitch", 0)?);
                let (width, height) = (step.number_or("width", 0)?, step.number_or("height", 0)?);
                // SAFETY: see above.
                let size = step.number_or("size", 0)?;
                let (to_2d, from_2d, extent) =
                    ((to, to_pitch), (from as *const c_void, from_pitch), (width, height));
                Ok(status_of(unsafe {
                    match (step.words[0], stream) {
                        ("copy", None) => instance.copy_raw(to, from, size, &options),
                        ("copy", Some(stream)) => stream.copy_raw(to, from, size, &options),
                        (_, None) => instance.copy_2d_raw(to_2d, from_2d, extent, &options),
                        (_, Some(stream)) => stream.copy_2d_raw(to_2d, from_2d, extent, &options),
                    }
                }))
            }
            "copy_regions" => self.copy_regions(step, stream),
            "fill" | "fill_2d" => {
                let (instance, to) = (self.instance(step.word(1)?)?, self.address(step.word(2)?)?);
                let value = (step.number_or("value", 0)? as u32, step.number_or("width", 1)? as u32);
                let (width, height) = (step.number_or("size_x", 0)?, step.number_or("size_y", 0)?);
                // SAFETY: see above.
                let (size, to_2d) = (step.number_or("size", 0)?, (to, step.number_or("pitch", 0)?));
                Ok(status_of(unsafe {
                    match (step.words[0], stream) {
                        ("fill", None) => instance.fill_raw(to, size, value),
                        ("fill", Some(stream)) => stream.fill_raw(to, size, value),
                        (_, None) => instance.fill_2d_raw(to_2d, (width, height), value),
                        (_, Some(stream)) => stream.fill_2d_raw(to_2d, (width, height), value),
                    }
                }))
            }
            "write_value" | "wait_value" => {
                let (stream, word) = (self.stream(step.word(1)?)?, self.address(step.word(2)?)?);
                let (value, size) = (step.number_or("value", 0)?, step.number_or("size", 0)? as u32);
                let names = [("geq", 0), ("eq", 1), ("and", 2), ("nor", 3)];
                let condition = step.text("condition").map_or(Ok(0), |text| named(text, &names))?;
                // SAFETY: see above.
                Ok(status_of(unsafe {
                    if step.words[0] == "write_value" {
                        stream.write_value_raw(word, value, size)
                    } else {
                        stream.wait_value_raw(word, value, size, WaitCondition(condition as i32))
                    }
                }))
            }
            "set" => {
                let (to, bytes) = (self.address(step.word(1)?)?, bytes_of(step.word(2)?)?);
                for (index, byte) in bytes.into_iter().enumerate() {
                    // SAFETY: the vectors stay within their memory; volatile, because streams may read it.
                    unsafe { to.cast::<u8>().add(index).write_volatile(byte) };
                }
                Ok(Status::SUCCESS)
            }
            "expect" => {
                let (from, expected) = (self.address(step.word(1)?)?, bytes_of(step.word(2)?)?);
                // SAFETY: the vectors stay within their memory.
                let found = (0..expected.len())
                    .map(|index| unsafe { from.cast::<u8>().add(index).read_volatile() })
                    .collect();
                equal("the content", found, expected)?;
                Ok(Status::SUCCESS)
            }
            "info" => match self.memory(step.word(1)?)?.info() {
                Err(error) => Ok(error.status()),
                Ok(info) => {
                    if step.text("kind").is_some() {
                        equal("the kind", info.kind, kind(step.text("kind"))?)?;
                    }
                    equal("the size", info.size, step.number_or("size", info.size)?)?;
                    equal("the alignment", info.alignment, step.number_or("alignment", info.alignment)?)?;
                    equal("the name", info.name.as_str(), step.text("name").unwrap_or(&info.name))?;
                    let granted = flags(step.text("granted"))?;
                    equal("that the flags are granted", info.granted_flags.contains(granted), true)?;
                    Ok(Status::SUCCESS)
                }
            },
            "pointer" => {
                let pointer = self.address(step.word(2)?)?;
                match self.instance(step.word(1)?)?.pointer_info(pointer) {
                    Err(error) => Ok(error.status()),
                    Ok(info) => {
                        equal("the kind", info.kind, kind(step.text("kind"))?)?;
                        equal("the size", info.size, step.number_or("size", info.size)?)?;
                        let offset = (pointer as u64).wrapping_sub(info.base);
                        equal("the offset", offset, step.number_or("offset", offset)?)?;
                        Ok(Status::SUCCESS)
                    }
                }
            }
            "access" => {
                let processor = step
                    .text("device")
                    .map(number)
                    .transpose()?
                    .map_or(Processor::Cpu, |ordinal| Processor::Device(ordinal as u32));
                match self.instance(step.word(1)?)?.pointer_access(self.address(step.word(2)?)?, processor) {
                    Err(error) => Ok(error.status()),
                    Ok(access) => {
                        let expected =
                            step.text("is").map_or(Ok(access.0 as u64), |text| named(text, &ACCESSES))?;
                        equal("the access", access, Access(expected as i32))?;
                        Ok(Status::SUCCESS)
                    }
                }
            }
            "count" => {
                let instance = self.instance(step.word(1)?)?;
                let stats = match instance.stats() {
                    Err(error) => return Ok(error.status()),
                    Ok(stats) => stats,
                };
                for (name, expected) in &step.options {
                    let found = match *name {
                        "live" => stats.live_count,
                        "bytes" => stats.live_bytes,
                        "reserved" => stats.reserved_bytes,
                        "streams" => stats.streams,
                        "events" => stats.events,
                        name => match instance.kind_stats(kind(Some(name))?) {
                            Err(error) => return Ok(error.status()),
                            Ok(stats) => stats.live_count,
                        },
                    };
                    equal(name, found, number(expected)?)?;
                }
                Ok(Status::SUCCESS)
            }
            "capability" => {
                let capability = Capability(number(step.word(2)?)? as i32);
                Ok(status_of(self.device(step.word(1)?)?.capability(capability, None)))
            }
            "peer" => {
                let (device, peer) = (self.device(step.word(1)?)?, self.device(step.word(2)?)?);
                match step.word(3)? {
                    "query" => Ok(status_of(device.can_access_peer(peer))),
                    "enable" => Ok(status_of(device.enable_peer_access(peer))),
                    "disable" => Ok(status_of(device.disable_peer_access(peer))),
                    other => Err(format!("peer {other} is not a step")),
                }
            }
            "export" => {
                let (instance, pointer) = (self.instance(step.word(1)?)?, self.address(step.word(2)?)?);
                let way = step.text("way").map_or(Ok(0), |text| named(text, &WAYS))?;
                let access = step.text("access").map_or(Ok(0), |text| named(text, &ACCESSES))?;
                let names = [("neighbours", ExportFlags::NEIGHBOURS.0)];
                let flags = step.text("flags").map_or(Ok(0), |text| named(text, &names))?;
                let options = ExportOptions::new()
                    .way(ShareWay(way as i32))
                    .access(Access(access as i32))
                    .flags(ExportFlags(flags));
                self.made(step, instance.export_raw(pointer, &options).map(Object::Handle))
            }
            "export_event" => {
                let result = self.event(step.word(1)?)?.export();
                self.made(step, result.map(Object::Handle))
            }
            "handle" => self.made(step, Ok(Object::Handle(ShareHandle::from([0; ShareHandle::LEN])))),
            "damage" => {
                let (name, index) = (step.word(1)?, number(step.word(2)?)? as usize);
                let mut bytes = self.handle(name)?.as_ref().to_vec();
                bytes[index] ^= 0xff;
                let damaged = ShareHandle::try_from(&bytes[..]).map_err(|error| error.to_string())?;
                self.objects.insert(name.to_owned(), Object::Handle(damaged));
                Ok(Status::SUCCESS)
            }
            "same" => {
                let same = self.handle(step.word(1)?)? == self.handle(step.word(2)?)?;
                equal("that the handles are the same", same, true)?;
                Ok(Status::SUCCESS)
            }
            "share_info" => match self.handle(step.word(1)?)?.info() {
                Err(error) => Ok(error.status()),
                Ok(info) => {
                    let types = [("memory", 1), ("event", 2)];
                    for (name, names, found) in [
                        ("type", &types[..], info.share_type.0),
                        ("way", &WAYS, info.way.0),
                        ("access", &ACCESSES, info.access.0),
                    ] {
                        let expected = step.text(name).map_or(Ok(found as u64), |text| named(text, names))?;
                        equal(name, found as u64, expected)?;
                    }
                    for (name, found) in
                        [("size", info.size), ("offset", info.offset), ("descriptors", info.fd_count.into())]
                    {
                        equal(name, found, step.number_or(name, found)?)?;
                    }
                    Ok(Status::SUCCESS)
                }
            },
            "descriptors" => match self.instance(step.word(1)?)?.export_fds(self.handle(step.word(2)?)?) {
                Err(error) => Ok(error.status()),
                Ok(fds) => {
                    equal("the number of descriptors", fds.len() as u64, number(step.word(3)?)?)?;
                    Ok(Status::SUCCESS)
                }
            },
            "revoke" => Ok(status_of(self.instance(step.word(1)?)?.revoke(self.handle(step.word(2)?)?))),
            "import" => {
                let access = step.text("access").map_or(Ok(0), |text| named(text, &ACCESSES))?;
                let options = ImportOptions::new().access(Access(access as i32));
                let (instance, handle) = (self.instance(step.word(1)?)?, self.handle(step.word(2)?)?);
                let result = Imported::with_options(instance, handle, &options);
                self.made(step, result.map(Object::Imported))
            }
            "import_event" => {
                let result = Event::import(self.device(step.word(1)?)?, self.handle(step.word(2)?)?);
                self.made(step, result.map(Object::Event))
            }
            "way" => {
                let (instance, pointer) = (self.instance(step.word(1)?)?, self.address(step.word(2)?)?);
                let way = ShareWay(named(step.word(3)?, &WAYS)? as i32);
                let peer = SharePeer(named(step.word(4)?, &PEERS)? as i32);
                match instance.share_way_raw(pointer, way, peer) {
                    Err(error) => Ok(error.status()),
                    Ok(info) => {
                        let name = info.status.name().replace("GPUMEM_ERROR_", "").replace("GPUMEM_", "");
                        equal("the way", name.as_str(), step.text("is").unwrap_or(&name))?;
                        let count = u64::from(info.fd_count);
                        equal("the descriptors", count, step.number_or("descriptors", count)?)?;
                        equal(
                            "that there is a reason",
                            info.is_possible() || !info.message.is_empty(),
                            true,
                        )?;
                        Ok(Status::SUCCESS)
                    }
                }
            }
            "capturing" => {
                let capturing = number(step.word(2)?)? != 0;
                Ok(status_of(host::stream_set_capturing(self.stream(step.word(1)?)?, capturing)))
            }
            "capture" => {
                let result = self.stream(step.word(1)?)?.capture_id();
                if let Ok(found) = result {
                    let found = u64::from(found != 0);
                    equal("that there is one", found, step.number_or("is", found)?)?;
                }
                self.made(step, result.map(Object::Capture))
            }
            "release_capture" => {
                let (pool, capture) = (self.pool(step.word(1)?)?, *self.capture(step.word(2)?)?);
                // SAFETY: there is no graph.
                Ok(status_of(unsafe { pool.release_capture(capture, stream) }))
            }
            "file" => {
                let made = temporary_file(&bytes_of(step.word(1)?)?, step.text("access").is_some());
                let (file, given) = made.map_err(|error| error.to_string())?;
                self.made(step, Ok(Object::File(file, given)))
            }
            "expect_file" => {
                let (mut file, _) = self.files(step.word(1)?)?;
                let mut found = Vec::new();
                file.seek(SeekFrom::Start(0)).map_err(|error| error.to_string())?;
                file.read_to_end(&mut found).map_err(|error| error.to_string())?;
                equal("the file", found, bytes_of(step.word(2)?)?)?;
                Ok(Status::SUCCESS)
            }
            "read_file" | "write_file" => self.copy_file(step),
            "cache" => {
                let idle = Duration::from_nanos(step.number_or("idle", 0)?);
                let instance = self.instance(step.word(1)?)?;
                Ok(status_of(instance.set_import_cache(idle, step.number_or("bytes", 0)?)))
            }
            "flush_cache" => Ok(status_of(self.instance(step.word(1)?)?.flush_import_cache())),
            "status_name" => {
                let status = Status(number(step.word(1)?)? as i32);
                equal("the name", status.name(), step.word(2)?)?;
                equal(
                    "the library's name",
                    status.library_name().map_err(|error| error.to_string())?,
                    step.word(2)?,
                )?;
                Ok(Status::SUCCESS)
            }
            other => Err(format!("{other} is not an operation")),
        }
    }

    fn files(&self, name: &str) -> Checked<(&File, &File)> {
        match self.objects.get(name) {
            Some(Object::File(file, given)) => Ok((file, given)),
            _ => Err(format!("{name} is not a file")),
        }
    }

    fn copy_file(&self, step: &Step<'_>) -> Checked<Status> {
        let (instance, pointer) = (self.instance(step.word(1)?)?, self.address(step.word(2)?)?);
        let (_, file) = self.files(step.word(3)?)?;
        let (offset, size) = (step.number_or("offset", 0)?, step.number_or("size", 0)?);
        let mut options = FileOptions::new();
        if step.text("cancel").is_some() {
            options = options.progress(|_, _| ControlFlow::Break(()));
        }
        // SAFETY: the operands of a case live to its end, and nothing but it uses them.
        let result = unsafe {
            match step.word(0)? {
                "read_file" => instance.read_file_raw(pointer, file, offset, size, options),
                _ => instance.write_file_raw(file, offset, pointer, size, options),
            }
        };
        let copied = result.as_ref().map_or_else(Error::copied, |copied| Some(copied.bytes));
        equal("copied", copied, step.text("copied").map(number).transpose()?.or(copied))?;
        Ok(status_of(result))
    }

    /// One that was forgotten has no object any more, so the library is called itself.
    fn forget(&mut self, step: &Step<'_>) -> Checked<Status> {
        let name = step.word(2)?;
        let handle = self.growable(step.word(1)?)?.handle();
        match self.objects.remove(name) {
            Some(Object::Registration(registration, of)) if of == handle => {
                let number = registration.number();
                let status = status_of(registration.close().map_err(Error::from));
                self.objects.insert(name.to_owned(), Object::Forgotten(number));
                Ok(status)
            }
            Some(Object::Forgotten(number)) => Ok(Status(raw_forget(handle, number))),
            _ => Err(format!("{name} is not a registration of this buffer")),
        }
    }

    /// A pool or stream that was destroyed has no object any more, so the library is called itself.
    fn alloc(&mut self, step: &Step<'_>) -> Checked<Status> {
        let (name, size, alignment) =
            (step.word(1)?, number(step.word(2)?)?, step.text("alignment").map(number).transpose()?);
        let pool = match self.objects.get(name) {
            Some(Object::DestroyedPool(pool)) => return Ok(Status(raw_alloc(*pool, size, ptr::null_mut()))),
            _ => self.pool(name)?,
        };
        let stream = match step.text("stream").map(|name| (name, self.objects.get(name))) {
            Some((_, Some(Object::DestroyedStream(stream)))) => {
                return Ok(Status(raw_alloc(pool.handle(), size, *stream)));
            }
            Some((name, _)) => Some(self.stream(name)?),
            None => None,
        };
        let result = match alignment {
            Some(alignment) => pool.alloc_aligned_raw(size, alignment, stream),
            None => pool.alloc_raw(size, stream),
        };
        self.made(step, result.map(Object::Pointer))
    }

    /// As [`alloc`](Self::alloc), the library itself is asked for a pool that was destroyed.
    fn pool_info(&self, step: &Step<'_>) -> Checked<Status> {
        let name = step.word(1)?;
        if let Some(Object::DestroyedPool(pool)) = self.objects.get(name) {
            return Ok(Status(raw_pool_info(*pool)));
        }
        match self.pool(name)?.info() {
            Err(error) => Ok(error.status()),
            Ok(info) => {
                if step.text("kind").is_some() {
                    equal("the kind", info.kind, kind(step.text("kind"))?)?;
                }
                equal("the name", info.name.as_str(), step.text("name").unwrap_or(&info.name))?;
                for (name, found) in [
                    ("limit", info.limit),
                    ("threshold", info.release_threshold),
                    ("live", info.live_count),
                    ("captures", info.capture_count),
                ] {
                    equal(name, found, step.number_or(name, found)?)?;
                }
                Ok(Status::SUCCESS)
            }
        }
    }

    fn made(&mut self, step: &Step<'_>, result: Result<Object, Error>) -> Checked<Status> {
        match result {
            Ok(object) => {
                if let (Some(name), Object::Memory(memory)) = (step.result, &object) {
                    self.handles.insert(name.to_owned(), memory.handle());
                }
                self.objects.insert(step.result.ok_or("the result has no name")?.to_owned(), object);
                Ok(Status::SUCCESS)
            }
            Err(error) => Ok(error.status()),
        }
    }

    fn closed<T>(
        &mut self,
        step: &Step<'_>,
        result: Result<(), Rejected<T>>,
        object: impl FnOnce(T) -> Object,
    ) -> Checked<Status> {
        match result {
            Ok(()) => Ok(Status::SUCCESS),
            Err(rejected) => {
                self.objects.insert(step.word(1)?.to_owned(), object(rejected.given));
                Ok(rejected.error.status())
            }
        }
    }

    /// As [`closed`](Self::closed); `after` takes the place of the object, for steps that use its stale handle.
    fn destroyed<T>(
        &mut self,
        step: &Step<'_>,
        result: Result<(), Rejected<T>>,
        object: impl FnOnce(T) -> Object,
        after: Object,
    ) -> Checked<Status> {
        if result.is_ok() {
            self.objects.insert(step.word(1)?.to_owned(), after);
        }
        self.closed(step, result, object)
    }

    fn close(&mut self, step: &Step<'_>) -> Checked<Status> {
        let instance = match self.objects.remove(step.word(1)?) {
            Some(Object::Instance(instance)) => instance,
            _ => return Err("only an instance can be closed".to_owned()),
        };
        let result = match step.text("mode").unwrap_or("check") {
            "check" => instance.close(),
            // SAFETY: the memory of the instance is not used afterwards.
            "force" => unsafe { instance.close_by_force() }.map(drop),
            other => return self.close_in_another_way(step, instance, number(other)?),
        };
        self.closed(step, result, Object::Instance)
    }

    /// The crate has no other mode, so this calls the library itself.
    fn close_in_another_way(&mut self, step: &Step<'_>, instance: Instance, mode: u64) -> Checked<Status> {
        let handle = shown_handle(&instance)?;
        self.objects.insert(step.word(1)?.to_owned(), Object::Instance(instance));
        Ok(Status(raw_close(handle, mode as i32)))
    }

    /// Ends a case: closes its instances by force, then drops the objects.
    fn end(&mut self) {
        for object in self.objects.values() {
            if let Object::Instance(instance) = object {
                // SAFETY: only drops follow.
                unsafe { instance.clone().close_by_force() }.unwrap();
            }
        }
        self.objects.clear();
    }
}

#[cfg(feature = "load")]
fn raw_close(handle: u64, mode: i32) -> i32 {
    let library = gpumem::sys::Library::open().unwrap();
    let close = library.gpumem_instance_close().unwrap();
    // SAFETY: any mode and handle may be given.
    unsafe { close(handle as gpumem::sys::gpumem_instance, mode, std::ptr::null_mut(), std::ptr::null_mut()) }
}

#[cfg(feature = "load")]
fn raw_forget(buffer: sys::gpumem_buffer, registration: u64) -> i32 {
    let library = gpumem::sys::Library::open().unwrap();
    let forget = library.gpumem_buffer_forget_registration().unwrap();
    // SAFETY: any number and handle may be given.
    unsafe { forget(buffer, registration, std::ptr::null_mut()) }
}

#[cfg(feature = "load")]
fn raw_alloc(pool: sys::gpumem_pool, size: u64, stream: sys::gpumem_stream) -> i32 {
    let library = gpumem::sys::Library::open().unwrap();
    let alloc = library.gpumem_pool_alloc().unwrap();
    let mut pointer = ptr::null_mut();
    // SAFETY: any handles may be given, and the output is writable.
    unsafe { alloc(pool, size, stream, &mut pointer, ptr::null_mut()) }
}

#[cfg(feature = "load")]
fn raw_pool_info(pool: sys::gpumem_pool) -> i32 {
    let library = gpumem::sys::Library::open().unwrap();
    let get_info = library.gpumem_pool_get_info().unwrap();
    let mut info = sys::gpumem_pool_info::default();
    // SAFETY: any handle may be given; the struct is writable and has its own size.
    unsafe { get_info(pool, &mut info, ptr::null_mut()) }
}

#[cfg(not(feature = "load"))]
fn raw_alloc(pool: sys::gpumem_pool, size: u64, stream: sys::gpumem_stream) -> i32 {
    let mut pointer = ptr::null_mut();
    // SAFETY: any handles may be given, and the output is writable.
    unsafe { sys::gpumem_pool_alloc(pool, size, stream, &mut pointer, ptr::null_mut()) }
}

#[cfg(not(feature = "load"))]
fn raw_pool_info(pool: sys::gpumem_pool) -> i32 {
    let mut info = sys::gpumem_pool_info::default();
    // SAFETY: any handle may be given; the struct is writable and has its own size.
    unsafe { sys::gpumem_pool_get_info(pool, &mut info, ptr::null_mut()) }
}

#[cfg(not(feature = "load"))]
fn raw_forget(buffer: sys::gpumem_buffer, registration: u64) -> i32 {
    // SAFETY: any number and handle may be given.
    unsafe { sys::gpumem_buffer_forget_registration(buffer, registration, std::ptr::null_mut()) }
}

#[cfg(not(feature = "load"))]
fn raw_close(handle: u64, mode: i32) -> i32 {
    let handle = handle as gpumem::sys::gpumem_instance;
    // SAFETY: any mode and handle may be given.
    unsafe { gpumem::sys::gpumem_instance_close(handle, mode, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// Runs the steps of a case.
fn run_case(lines: &[(usize, &str)]) -> Checked<()> {
    let mut runner = Runner { objects: HashMap::new(), handles: HashMap::new() };
    let backend = if common::backend() == Backend::HOST { "host" } else { "cuda" };
    let lines = match lines.split_first().map(|((_, text), rest)| (text.strip_prefix("only "), rest)) {
        Some((Some(only), rest)) if only == backend => rest,
        Some((Some(_), _)) => &[],
        _ => lines,
    };
    let result = lines.iter().try_for_each(|(line, text)| {
        let step = Step::parse(text);
        let checked = runner.run(&step).and_then(|status| {
            let name = status.name();
            let name =
                name.strip_prefix("GPUMEM_ERROR_").or_else(|| name.strip_prefix("GPUMEM_")).unwrap_or(name);
            equal("the status", name, step.status)
        });
        checked.map_err(|problem| format!("line {line}: {text}: {problem}"))
    });
    runner.end();
    result
}

fn main() {
    let path = std::env::var("GPUMEM_VECTORS").expect("GPUMEM_VECTORS names the file with the vectors");
    let text = std::fs::read_to_string(path).expect("the vectors can be read");
    let mut cases: Vec<(&str, Vec<(usize, &str)>)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("case ") {
            cases.push((name, Vec::new()));
        } else if !line.is_empty() && !line.starts_with('#') {
            let (_, lines) = cases.last_mut().expect("a case comes before its steps");
            lines.push((index + 1, line));
        }
    }
    assert!(!cases.is_empty());
    let mut failed = 0;
    for (name, lines) in &cases {
        match run_case(lines) {
            Ok(()) => println!("test {name} ... ok"),
            Err(problem) => {
                failed += 1;
                println!("{problem}\ntest {name} ... FAILED");
            }
        }
    }
    println!("\ntest result: {} passed; {failed} failed", cases.len() - failed);
    std::process::exit(i32::from(failed != 0));
}
