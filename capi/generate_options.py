# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The structs of options of the Rust binding, with a setter for each field, made of the structs of C that a call takes, and what
makes the struct of C of them.

Flags are added to those before; a text is anything that becomes a String; a number of nanoseconds is a Duration. What does not
follow from C is named in FIELDS. Setters that take something else stand in the module of the object, by hand.
"""

import re

# The structs, with their names in Rust, and what their defaults are.
STRUCTS = {
    "gpumem_instance_desc": ("InstanceOptions", "A [`Backend`] converts to them.", "The defaults."),
    "gpumem_memory_desc": ("MemoryOptions", "", "The defaults."),
    "gpumem_register_desc": ("RegisterOptions", "", "The defaults."),
    "gpumem_stream_desc": ("StreamOptions", "", "The defaults."),
    "gpumem_physical_desc": ("PhysicalOptions", "", "The defaults: memory of the device that the call names."),
    "gpumem_range_desc": ("RangeOptions", "", "The defaults."),
    "gpumem_buffer_desc": ("BufferOptions", "", "The defaults: memory of the device that the call names, which alone may access it, and "
                           "addresses for as much as the device has memory."),
    "gpumem_group_desc": ("GroupOptions", "", "The defaults."),
    "gpumem_pool_desc": ("PoolOptions", "", "The defaults: device memory without a limit, of which all is kept."),
    "gpumem_ring_desc": ("RingOptions", "", "The defaults: 4 slots, for 4 consumers."),
    "gpumem_ring_open_desc": ("RingOpenOptions", "", "The defaults."),
    "gpumem_export_desc": ("ExportOptions", "", "The defaults: the best way that the memory has, to read and write."),
    "gpumem_import_desc": ("ImportOptions", "", "The defaults: for the device that has the memory, with all access that the exporter allows."),
    "gpumem_send_desc": ("SendOptions", "", "The defaults."),
    "gpumem_publish_desc": ("PublishOptions", "", "The defaults: the next version, to read if it is shared by descriptors, and one older version "
                            "is kept."),
    "gpumem_fetch_desc": ("FetchOptions", "", "The defaults: the newest version."),
    "gpumem_host_options": ("HostOptions", "See `docs/host-backend.md`. Every option has a default.", "The defaults."),
    "gpumem_hub_desc": ("HubOptions", "", "The defaults: a hub of the name `default`, for the user alone."),
    "gpumem_link_desc": ("LinkOptions", "", "The defaults: the hub of the name `default`."),
    "gpumem_sleep_desc": ("SleepOptions", "A [`Content`] converts to them. Without options about work, the call waits for all work of each "
                          "device that may access the buffers.", "The defaults: the content is kept in pinned memory."),
    "gpumem_wake_desc": ("WakeOptions", "", "The defaults: all buffers, and nothing of their stores is kept."),
    "gpumem_prepare_desc": ("PrepareOptions", "A [`Content`] converts to them.",
                            "The defaults: pinned memory, which is there when the call returns."),
}
# Fields that are something else in Rust, with their names, types and values at first; their setters are by hand. None: the call has
# a parameter for it, or another field says it.
PLACE = ("place", "Option<Place>", "None")
DIRECTORY = ("directory", "Option<PathBuf>", "None")
PROGRESS = ("progress", "Option<Progress<'a>>", "None")
ACCESSES = ("accesses", "Vec<(Processor, Access)>", "Vec::new()")
FIELDS = {f"gpumem_{name}": change for name, change in {
    "instance_desc.host": ("host", "Option<HostOptions>", "None"), "instance_desc.cuda": ("cuda", "Option<CudaOptions>", "None"),
    "memory_desc.kind": None, "memory_desc.size": None, "memory_desc.numa_node": ("numa_node", "i32", "0"),
    "register_desc.pointer": None, "register_desc.size": None, "range_desc.size": None,
    "physical_desc.size": None, "physical_desc.location": PLACE, "physical_desc.location_id": None,
    "buffer_desc.size": None, "buffer_desc.location": PLACE, "buffer_desc.location_id": None, "buffer_desc.accesses": ACCESSES,
    "buffer_desc.access_count": None, "buffer_desc.group": ("group", "Option<Arc<GroupInner>>", "None"),
    "pool_desc.kind": ("kind", "Kind", "Kind::DEVICE"), "pool_desc.numa_node": ("numa_node", "i32", "0"),
    "pool_desc.accesses": ACCESSES, "pool_desc.access_count": None, "ring_desc.slot_size": None,
    "import_desc.device": ("device", "Option<Device>", "None"),
    "sleep_desc.directory": DIRECTORY, "sleep_desc.stream": ("stream", "Option<&'a Stream>", "None"),
    "sleep_desc.event": ("event", "Option<&'a Event>", "None"), "sleep_desc.progress": PROGRESS, "sleep_desc.user_data": None,
    "wake_desc.progress": PROGRESS, "wake_desc.user_data": None, "prepare_desc.directory": DIRECTORY,
    **{f"hub_desc.{field}": (field, "Vec<u32>", "Vec::new()") for field in ("users", "groups")},
    "hub_desc.user_count": None, "hub_desc.group_count": None, "hub_desc.token_size": None, "link_desc.token_size": None,
}.items()}
# Names that differ.
NAMES = {"gpumem_pool_desc.memory_flags": "require"}
# Texts that differ.
TEXTS = {
    "gpumem_hub_desc.mode": "Permissions of the socket file; 0 means `0o600`: the user alone.",
    "gpumem_hub_desc.token": "A secret that links must show, of 1 to 256 bytes. Links show it only to a hub of their own user or of root.",
    **{f"gpumem_{struct}_desc.tag": "For a group: only the buffers with this tag, which may be none." for struct in ("sleep", "wake", "prepare")},
    "gpumem_sleep_desc.flags": "How to sleep. With [`SleepFlags::IDLE`] the call waits for nothing, and fails with [`ErrorKind::Busy`] if work in a "
                               "stream uses a buffer that was not observed complete.",
    "gpumem_wake_desc.keep": "Bytes of its store that each buffer keeps for its next sleep, rounded up to pieces. `u64::MAX` keeps all.",
    "gpumem_prepare_desc.bytes_per_second": "The call returns at once, and a thread of the library prepares at most so many bytes a second, in "
                                            "pieces of 2 MiB or more.",
    "gpumem_link_desc.path": "Where the hub listens, as in [`HubOptions::path`].",
    "gpumem_link_desc.token": "The secret of the hub, of 1 to 256 bytes, shown only to a process of this user or of root.",
}
# Fields of C that take more than a conversion: what stands before the struct, what stands in it, and what the result then holds.
TO_C = {
    "Option<Place>": ("let (location, location_id) = self.place.map_or((0, 0), Place::to_c);", ("location", "location_id"), ""),
    "Vec<(Processor, Access)>": ("let accesses = describe_accesses(&self.accesses);",
                                 ("accesses: first_of(&accesses)", "access_count: accesses.len() as u64"), "accesses"),
    "Option<Arc<GroupInner>>": ("", ("group: self.group.as_ref().map_or(ptr::null_mut(), |group| group.handle())",), ""),
    "Option<Device>": ("", ("device: self.device.as_ref().map_or(ptr::null_mut(), |device| device.handle)",), ""),
    "Option<&'a Stream>": ("", ("stream: order(self.stream)",), ""),
    "Option<&'a Event>": ("", ("event: self.event.map_or(ptr::null_mut(), Event::handle)",), ""),
    "Option<Progress<'a>>": ("let (progress, user_data) = progress_to_c(&mut self.progress);", ("progress", "user_data"), ""),
    "Option<HostOptions>": ("", (), ""), "Option<CudaOptions>": ("", (), ""),  # The call has them.
}


def setter(name, kind, flags):
    """What a setter takes, and what it does with that."""
    if kind == "Option<String>":
        return "impl Into<String>", f"Some({name}.into())", "="
    if kind == "Option<PathBuf>":
        return "impl Into<PathBuf>", f"Some({name}.into())", "="
    if kind == "Option<Secret>":
        return "impl Into<Vec<u8>>", f"Some(Secret({name}.into()))", "="
    if kind in ("Option<Duration>", "Option<bool>"):
        return kind[len("Option<"):-1], f"Some({name})", "="
    return kind, name, "|=" if flags else "="


def fields_of(interface, struct, kinds, numbers, named):
    """The fields: name, type, value at first, text; the setter, or None."""
    for field in struct.fields[1:]:
        change = FIELDS.get(f"{struct.name}.{field.name}", ())
        if change is None or field.name == "reserved":
            continue
        if change:
            yield (*change, "", None)
            continue
        name, base = NAMES.get(f"{struct.name}.{field.name}", field.name), field.type.base
        text = TEXTS.get(f"{struct.name}.{field.name}", field.text)
        text = re.sub(r" `GPUMEM_HOST_\w+`(?: \(.*\))?$", "", text)  # Only the default instance reads the environment.
        text = re.sub(r"\. NULL (?:means|stands for) (.*)\.$", r". By default \1.", text)
        text = re.sub(r",? or NULL; copied\.$", ".", text)
        text = re.sub(r"^For messages", "A name for messages", text)
        flags = base in numbers and numbers[base].flags
        if base in kinds:
            zero = next((named(numbers[base], constant) for constant in numbers[base].constants if not constant.value), "NONE")
            kind = kinds[base]
            first = f"{kind}::NONE" if flags else f"{kind}(0)" if zero == "NONE" else f"{kind}::{zero}"
            text = re.sub(r"(One|A sum) of (the )?GPUMEM_\w+ values", rf"\1 of the [`{kind}`] values", text)
        elif base == "gpumem_toggle":
            kind, first, text = "Option<bool>", "None", f"Whether {text[0].lower()}{text[1:]}"
        elif base == "void" and name == "token":
            kind, first = "Option<Secret>", "None"
        elif base == "char":
            kind, first = "Option<PathBuf>" if name == "path" else "Option<String>", "None"
        elif name.endswith("_ns"):
            name, kind, first = name.removesuffix("_ns"), "Option<Duration>", "None"
            text = re.sub(r"; 0 means ([^;]*)\.$", r"; \1 by default.", text)
        elif field.length:
            kind, first = f"[u8; {field.length}]", f"[0; {field.length}]"
        else:
            kind, first = "u64" if field.type.stars else base.replace("int", "i" if base[0] == "i" else "").removesuffix("_t"), "0"
            text = re.sub(r"; NULL means ", "; 0 means ", text)
        yield name, kind, first, text, setter(name, kind, flags)


def describe(struct, name, fields, kinds):
    """The function that makes the struct of C."""
    before, inside, held = [], [], []
    in_c = {NAMES.get(f"{struct.name}.{field.name}", field.name).removesuffix("_ns"): field for field in struct.fields}
    for rust, kind, *_ in fields:
        field = in_c.get(rust)
        if kind in TO_C:
            line, values, holds = TO_C[kind]
            before += [line] * bool(line)
            inside += values
            held += [holds] * bool(holds)
        elif kind in ("Option<String>", "Option<PathBuf>"):
            before.append(f'let {rust} = c_{"text" if "String" in kind else "path"}(self.{rust}.as_deref(), "{name}::{rust}")?;')
            inside.append(f"{field.name}: c_pointer(&{rust})")
            held.append(rust)
        elif kind == "Option<Secret>":
            before.append(f'let ({rust}, {rust}_size) = Secret::to_c(&self.{rust}, "{name}::{rust}")?;')
            inside += [rust, f"{rust}_size"]
        elif kind == "Vec<u32>":
            inside += [f"{rust}: first_of(&self.{rust})", f"{rust[:-1]}_count: self.{rust}.len() as u32"]
        else:
            value = f"limit(self.{rust})" if kind == "Option<Duration>" else f"toggle(self.{rust})" if kind == "Option<bool>" else f"self.{rust}"
            value += ".0" if kind in kinds.values() else ""
            if field.type.stars:
                value += f" as *{'const' if field.type.stars[0] else 'mut'} c_void"
            inside.append(f"{field.name}: {value}")
    inside.append("..Default::default()")
    kind, made = f"sys::{struct.name}", f"sys::{struct.name} {{ {', '.join(inside)} }}"
    result = kind
    if any(line.endswith("?;") for line in before):
        result = f"Result<Desc<{kind}, impl Sized>, Error>"
        last = f"Ok(Desc::new({{}}, {held[0] if len(held) == 1 else '(' + ', '.join(held) + ')'}))"
        if len(last.format(made)) <= 102:
            made = last.format(made)
        else:
            before.append(f"let desc = {made};")
            made = last.format("desc")
    before.append(made)
    this = "&mut self" if any("progress" in value for value in inside) else "&self"
    text = f"\n    pub(crate) fn describe({this}) -> {result} {{\n"
    for line in before:
        if line.startswith("let desc = ") and 102 < len(line) <= 98 + len("let desc = "):
            line = line.replace("=", "=\n           ", 1)
        elif len(line) > 102:
            start, _, end = line.partition(f" {{ {', '.join(inside)} }}")
            line = start + " {\n" + "".join(f"            {word},\n" for word in inside[:-1]) + f"            {inside[-1]}\n        }}{end}"
        text += f"        {line}\n"
    return text + "    }\n"


def rust(interface, kinds, named, words, comment):
    """The structs. What Rust calls things comes from generate.py."""
    interface.require([*FIELDS, *NAMES, *TEXTS])
    text = ""
    numbers = {numbers.name: numbers for numbers in interface.numbers}
    for c_name, (name, more, defaults) in STRUCTS.items():
        struct = interface.struct(c_name)
        fields = list(fields_of(interface, struct, kinds, numbers, named))
        text += "\n" + comment(f"{words(struct.sentence)} {more}".strip(), "/// ", 112)
        borrows = any("'a" in kind for _, kind, *_ in fields)  # It cannot be cloned, and Debug is by hand.
        text += f"pub struct {name}<'a> {{\n" if borrows else f"#[derive(Clone, Debug)]\npub struct {name} {{\n"
        text += "".join(f"    pub(crate) {field}: {kind},\n" for field, kind, _, _, _ in fields) + "}\n"
        name += "<'_>" * borrows
        text += f"\nimpl Default for {name} {{\n    fn default() -> Self {{\n        Self::new()\n    }}\n}}\n"
        text += f"\nimpl {name} {{\n" + comment(defaults, "    /// ", 112)
        text += "    #[must_use]\n    pub fn new() -> Self {\n"
        line = f"        Self {{ {', '.join(f'{field}: {first}' for field, _, first, _, _ in fields)} }}\n"
        if len(line) > 111:
            line = "        Self {\n" + "".join(f"            {field}: {first},\n" for field, _, first, _, _ in fields) + "        }\n"
        text += line + "    }\n"
        for field, _, _, says, made in fields:
            if made:
                takes, value, sets = made
                text += "\n" + comment(words(says), "    /// ", 112)
                text += (f"    #[must_use]\n    pub fn {field}(mut self, {field}: {takes}) -> Self {{\n"
                         f"        self.{field} {sets} {value};\n        self\n    }}\n")
        text += describe(struct, STRUCTS[c_name][0], fields, kinds) + "}\n"
    return text
