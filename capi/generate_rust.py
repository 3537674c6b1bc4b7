# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The structs of information of the Rust binding, made of the structs of C that the library fills in.

A field has the name, the type and the text that follow from C, as in generate_infos.py; what does not follow is named in FIELDS and
TEXTS. Handles of devices are left out, because an object knows its device; a location and its number are a Place.
"""

import re

import generate_infos

# The structs that Rust has, with their names. gpumem_managed_info and gpumem_status_info are written by hand.
STRUCTS = {**generate_infos.STRUCTS, "gpumem_pool_class_info": "PoolClassInfo", "gpumem_pool_block_info": "PoolBlockInfo",
           "gpumem_way_info": "WayInfo", "gpumem_pointer_info": "PointerInfo"}
# What a field is called, its type, and how it is made of those of C; None leaves it out.
PLACE = ("place", "Place", "Place::of_c(info.location, info.location_id)")
FALLBACK = ("fallback", "Option<Fallback>", "Fallback::of(info.fallback_status, &info.fallback_reason)")
PATH = ("path", "PathBuf", "array_path(&info.path)")
FIELDS = {f"gpumem_{name}": change for name, change in {
    **{f"{struct}_info.{field}": change for struct in ("physical", "mapping", "buffer")
       for field, change in (("location", PLACE), ("location_id", None))},
    **{f"{struct}_info.{field}": change for struct in ("probe", "instance")
       for field, change in (("fallback_status", FALLBACK), ("fallback_reason", None))},
    **{f"{struct}_info.numa_node": ("numa_node", "Option<u32>", "u32::try_from(info.numa_node).ok()") for struct in ("memory", "device")},
    **{f"{struct}_info.base": ("base", "u64", "info.base as u64") for struct in ("pointer", "mapping", "ring")},
    **{f"{struct}_info.device_pointer": ("device_address", "u64", "info.device_pointer as u64") for struct in ("memory", "pointer")},
    **{f"{struct}_info.type": ("share_type", "ShareType", "ShareType(info.r#type)") for struct in ("share", "entry")},
    "capability_info.type": ("answer_type", "AnswerType", "AnswerType(info.r#type)"),
    "device_info.compute_major": ("compute_capability", "(i32, i32)", "(info.compute_major, info.compute_minor)"),
    "device_info.compute_minor": None, "share_info.backend": ("backend", "Backend", "Backend(info.backend)"),
    "pointer_info.device_ordinal": ("device_ordinal", "Option<u32>", "u32::try_from(info.device_ordinal).ok()"),
    "pointer_info.memory": None, "hub_info.path": PATH, "link_info.path": PATH,
    "link_info.pid": ("pid", "Option<u32>", "u32::try_from(info.pid).ok().filter(|pid| *pid != 0)"),
}.items()}
# Texts of fields that Rust has otherwise, or that say more where it is used.
TEXTS = {f"gpumem_{name}": text for name, text in {
    "buffer_info.ahead": "Bytes that are made ahead of growth: gpumem_buffer_set_ahead().",
    "buffer_info.group": "Handle of its group, or NULL.",
    "buffer_info.state": "Whether it is awake, asleep, or could not be woken.",
    "capability_info.value": "The answer: a number; or 0 for no, 1 for yes, 2 for emulated.",
    "device_info.compute_major": "Major and minor number; 0 for emulated devices.",
    "entry_info.fingerprint": "As published; zeros if there is none.",
    "event_info.native_event": "The `CUevent`, for use by other code; NULL on host. It lives as long as the event.",
    "import_info.exporter_pid": "The exporter, as its own process namespace counts: the publisher, not a keeper.",
    "import_info.count": "How often this process has imported it.",
    "link_info.path": "Where it listens: a whole path, or `@` and an abstract address.",
    "pointer_info.device_ordinal": "Ordinal of the device that the memory was allocated or registered for; `None` if there is none.",
    "pool_info.release_threshold": "Bytes that it keeps when blocks are freed; 0 if it keeps all.",
    "ring_info.held_count": "Slots that this side has acquired or waited for, and not published or released. A message that was released "
                            "counts until all older ones are.",
    "share_info.exporter_pid": "The exporter, as its own process namespace counts, or that of a keeper. It may have ended.",
    "share_info.offset": "Where in it the byte lies that was exported.",
    "share_info.size": "Bytes of the whole memory; of a buffer, its capacity; 0 for an event.",
    "share_info.type": "Whether it is memory or an event.",
    "stream_info.native_stream": "The `CUstream`, for use by other code; on host see gpumem_host_native_stream_create(). It lives as long as "
                                 "the stream.",
}.items()}
WIDTH = 110  # of a line, as in rustfmt.toml
COPIED = ("Stats", "KindStats", "PoolClassInfo", "PoolBlockInfo", "PoolAttempt")  # Those that will never have a text.
TRANSLATED = ("reason", "message")  # Texts that the library has made, with names of C in them.


def said(struct, field, kind):
    """The text of a field, by its type in Rust."""
    own = TEXTS.get(f"{struct.name}.{field.name}")
    if own:
        return own
    text = generate_infos.said(struct, field)
    if kind.startswith("sys::"):
        text = re.sub(r"^(The|Its) (?=\w)", lambda match: f"Handle of {match[1].lower()} ", text)
    if kind.startswith("Option<"):
        text = re.sub(r"^Why (.*?):.*?\. 0 if", r"Why \1; `None` if", text)
        text = re.sub(r"; (-1|0) if", "; `None` if", text).replace("otherwise -1", "otherwise `None`")
    return text.replace("NULL", "0") if kind == "u64" else text


def fields_of(interface, struct, kinds):
    """The fields: name, type, how it is made, text."""
    for field in struct.fields[1:]:
        name, base = field.name, field.type.base
        change = FIELDS.get(f"{struct.name}.{name}", ())
        if change is None or name == "reserved" or base == "gpumem_device":
            continue
        if change:
            name, kind, value = change
        elif field.length is not None and base == "char":
            kind, value = "String", f"array_text(&info.{name})"
            value = f"translate(&{value})" if name in TRANSLATED else value
        elif field.length is not None:
            kind, value = f"[u8; {field.length}]", f"info.{name}"
        elif base in kinds:
            kind, value = kinds[base], f"{kinds[base]}(info.{name})"
        elif re.match(r"1 (if|once|until) ", field.text):
            kind, value = "bool", f"info.{name} != 0"
        elif interface.is_handle(base):
            kind, value = f"sys::{base}", f"info.{name}"
        else:
            number = base.replace("int", "i" if base[0] == "i" else "").removesuffix("_t")
            kind, value = "*mut c_void" if field.type.stars else number, f"info.{name}"
        yield name, kind, value, said(struct, field, kind)


def debug(name, fields):
    """`Debug`, with addresses that are numbers printed like pointers."""
    text = f"\nimpl fmt::Debug for {name} {{\n    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {{\n"
    text += f'        formatter\n            .debug_struct("{name}")\n'
    for field, kind, _, _ in fields:
        value = f"Hexadecimal(self.{field})" if kind == "u64" and field in ("base", "device_address") else f"self.{field}"
        text += f'            .field("{field}", &{value})\n'
    return text + "            .finish()\n    }\n}\n"


def infos(interface, kinds, words, comment):
    """The structs. What Rust calls things comes from generate.py."""
    interface.require([*FIELDS, *TEXTS])
    text = ""
    for c_name, name in STRUCTS.items():
        struct = interface.struct(c_name)
        fields = list(fields_of(interface, struct, kinds))
        addresses = any(value.endswith(" as u64") for _, _, value, _ in fields)
        derived = ["Clone", *["Copy"] * (name in COPIED), *["Debug"] * (not addresses), "PartialEq", "Eq"]
        about = re.sub(r" A failed call leaves them unchanged[^.]*\.", "", struct.text)  # The methods return a new one.
        text += "\n" + comment(words(about), "/// ", 112) + f"#[derive({', '.join(derived)})]\n#[non_exhaustive]\npub struct {name} {{\n"
        text += "".join(comment(words(says), "    /// ", 112) + f"    pub {field}: {kind},\n" for field, kind, _, says in fields) + "}\n"
        text += f"\nimpl {name} {{\n    pub(crate) fn of(info: &sys::{c_name}) -> Self {{\n"
        values = [field if value == field else f"{field}: {value}" for field, _, value, _ in fields]
        line = f"        Self {{ {', '.join(values)} }}\n"
        text += line if len(line) <= WIDTH + 1 else "        Self {\n" + "".join(f"            {value},\n" for value in values) + "        }\n"
        text += "    }\n}\n"
        text += debug(name, fields) * addresses
    return text
