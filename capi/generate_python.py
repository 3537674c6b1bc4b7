# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The named tuples, the exceptions, the options of the host backend and the names of functions of the Python binding, made of what the headers describe.

A field has the name, the type and the text that follow from C: a text is a str, a number that is "1 if" something is a bool, and a
pointer is an int, or None where the text says NULL. What does not follow is named in FIELDS. The texts are those of the headers, in
the words of Python, unless TEXTS has another one.
"""

import re
import textwrap

import generate_infos

# The structs that Python has, with their names.
STRUCTS = {"gpumem_status_info": "StatusInfo", **generate_infos.STRUCTS, "gpumem_pointer_info": "PointerInfo",
           "gpumem_managed_info": "ManagedInfo", "gpumem_way_info": "WayInfo", "gpumem_copy_file_info": "FileCopied",
           "gpumem_pool_block_info": "BlockInfo"}
# What a field is called, of which type, and how its value is made of `{}`, if that does not follow; "" leaves it as it is. A name in
# place of a value is a parameter: the object of this package. None: Python has no such field, as it has no handles.
FIELDS = {f"gpumem_{name}": change for name, change in {
    "status_info.status": ("code", "", ""),
    "capability_info.value": ("", "", "known(Answer, {0}) if found.type == AnswerType.TRI else {0}"),
    "pointer_info.buffer": ("", "Optional[Buffer]", "buffer"),
    "mapping_info.range": ("", "Optional[Range]", "range"),
    "buffer_info.range": ("range_handle", "Optional[int]", "{}"),
    "buffer_info.group": ("", "Optional[Group]", "group"),
    "pool_block_info.pool": ("", "Optional[Pool]", "pool"),
    "managed_info.accessed_by_devices": ("", "Tuple[int, ...]", "tuple(ordinal for ordinal in range(64) if {} >> ordinal & 1)"),
    "copy_file_info.copied": ("size", "", ""),
    "share_info.backend": ("", "Backend", "known(Backend, {})"),
    "import_info.count": ("import_count", "", ""),
    "entry_info.fingerprint": ("", "Optional[bytes]", "bytes({0}) if any({0}) else None"),
}.items()}
# Texts of classes and of fields in place of those of C, or behind them if they begin with "+".
TEXTS = {
    "StatusInfo": "Name, cause and remedy of a status code.",
    "CapabilityInfo": "+It is false if the answer is no.",
    "CapabilityInfo.value": "An :class:`Answer` if ``type`` is ``AnswerType.TRI``, otherwise a number.",
    "CapabilityInfo.status": "Status of a call that needs the capability: 0 unless the answer is no.",
    "PointerInfo.buffer": "The buffer whose addresses hold it, also behind its size and while it sleeps; None if no object of this package "
                          "has the buffer.",
    "ManagedInfo.accessed_by_devices": "Ordinals of the devices that are set as accessors of every page.",
    "PhysicalInfo.block_id": "Number of the block, unique in the process: the same for every handle and mapping of it.",
    "BufferInfo.range_handle": "The ``gpumem_range`` that it is mapped in, which only the buffer may change; None if it is an ordinary "
                               "allocation.",
    "FileCopied": "What :meth:`Instance.read_file` or :meth:`Instance.write_file` has copied.",
    "FileCopied.size": "All bytes.",
    "FileCopied.direct": "Those of them that passed by the system's page cache.",
    "MappingInfo.range": "The range that the address lies in; None if no object of this package has it.",
    "ImportInfo": "+Of what was fetched from a keeper, ``state`` is LIVE as long as the keeper lives, and ``exporter_pid`` is the "
                  "publisher, which may have ended.",
    "ImportInfo.import_count": "How often this process has it imported now.",
    "WayInfo": "+It is false if it cannot.",
    "WayInfo.status": "0, or that of the export or import; ``status_name`` is its name.",
    "Entry.fingerprint": "As published; None if it was published without one.",
    "BlockInfo.pool": "Its pool; None if that was closed.",
    "StreamInfo.native_stream": "The ``CUstream``, for use by other code.",
}
# What else the classes have.
METHODS = {
    "CapabilityInfo": ('def __bool__(self) -> bool:', "Whether the device has it: the answer is not no, or the number not 0.",
                       "return bool(self.value)"),
    "BufferInfo": ("@property\ndef asleep(self) -> bool:", "Whether its memory was given back: it is ASLEEP, or FAILED.",
                   "return self.state != BufferState.AWAKE"),
    "Stats": ("@property\ndef live_objects(self) -> int:", "Live memory, streams and events together.",
              "return self.live_count + self.streams + self.events"),
    "WayInfo": ("def __bool__(self) -> bool:", "Whether the memory can be shared so.", "return self.status == 0",
                "@property\ndef status_name(self) -> str:", 'The name of the status, such as "GPUMEM_ERROR_UNSUPPORTED".',
                "return text(c.gpumem_status_name(self.status))",
                "def __repr__(self) -> str:", "The values, with the name of the status.",
                'return (f"WayInfo(way={self.way!r}, status={self.status} ({self.status_name}), fd_count={self.fd_count}, "\n'
                '        f"needs_socket={self.needs_socket}, slow={self.slow}, message={self.message!r})")'),
}
# Texts that the library has made, with names of C in them.
TRANSLATED = ("cause", "remedy", "reason", "fallback_reason", "message")

# What objects know. Class: the struct, what info() says, or "" if that is by hand, whether it does not change, and the properties that
# have one field, as name=field if it is called otherwise, with their texts, if those are not the field's.
KNOWN = {
    "DeviceKnown": ("gpumem_device_info", "Information about the device; also after it is lost.", False, {}),
    "EventKnown": ("gpumem_event_info", "Information about the event.", False, {}),
    "HubKnown": ("gpumem_hub_info", "Information about the hub.", False, {"path": "Where it listens."}),
    "InstanceKnown": ("gpumem_instance_info", "Information about the instance.", True, {"backend": "CUDA or HOST."}),
    "LinkKnown": ("gpumem_link_info", "Information about the link.", False, {}),
    "PhysicalKnown": ("gpumem_physical_info", "Information about the memory.", True, {"size": "Bytes."}),
    "PoolKnown": ("gpumem_pool_info", "Information about the pool. What other threads allocate meanwhile may or may not be counted.", False, {}),
    "RangeKnown": ("gpumem_range_info", "Information about the range.", True,
                   {"base": "Address of the first byte.", "size": "", "granularity": ""}),
    "RingKnown": ("gpumem_ring_info", "Information about the ring. It asks nobody.", False, {}),
    "StreamKnown": ("gpumem_stream_info", "Information about the stream.", False, {"native_stream": "The CUstream, for other code."}),
    "BufferKnown": ("gpumem_buffer_info", "", False, {
        "base": "Address of the first byte. Only a movable or copyable buffer changes it.",
        "size": "Bytes, as last asked for: the only ones that may be used.", "nbytes=size": "The same as :attr:`size`.", "reserved_size": "",
        "generation": "", "state": "AWAKE, ASLEEP, or FAILED if it could not be woken: wake it again, or close it.", "name": ""}),
    "RegionKnown": ("gpumem_memory_info", "", False, {
        "kind": "DEVICE, PINNED, REGISTERED, MANAGED or IMPORTED; VIRTUAL for a part of a range, and a buffer; POOL for a block.", "size": "",
        "nbytes=size": "The same as :attr:`size`.", "host_pointer": "", "device_pointer": "",
        "granted_flags": "Properties of the memory; contains what was required.",
        "requested_flags": "The required and preferred properties together.", "name": ""}),
}

# What else an exception is, for those who know Python's own.
BASES = {"INVALID_ARGUMENT": "ValueError", "WRONG_KIND": "TypeError", "NOT_FOUND": "LookupError",
         **{f"OUT_OF_{what}": "MemoryError" for what in ("DEVICE_MEMORY", "HOST_MEMORY", "ADDRESS_SPACE")}}
# Its text, if that of C does not suit an object.
MEANINGS = {"STALE_HANDLE": "The object was closed.", "NO_ACCESS": "The processor that would act has no right to the memory.",
            "BUSY": "In use by work that was not observed complete, or by live objects.",
            "CANCELLED": "A progress function ended the call. Raise it in one, with a text of your own, to cancel.",
            "CONTENT_LOST": "Content that was kept while a buffer slept can no longer be read.",
            "NOT_FOUND": "This instance has nothing of that name, address or number.",
            "DRIVER_TOO_OLD": "The driver is older than the cuda backend needs, or its parts do not match."}


def exception(status):
    """GPUMEM_ERROR_BUSY is Busy."""
    name = re.sub(r"^GPUMEM_(ERROR_)?", "", status)
    return "InternalError" if name == "INTERNAL" else "".join(word.capitalize() for word in name.split("_"))


def wrapped(text, indent, width=120, behind="", quotes=True):
    """A text as the lines of a docstring."""
    found = textwrap.fill(text, width, initial_indent=indent + '"""' * quotes, subsequent_indent=indent + behind, break_long_words=False,
                          break_on_hyphens=False)
    return found + ('"""' if quotes and len(found.splitlines()[-1]) + 3 <= 124 else "") + "\n"


def public(names):
    """The names that a module offers."""
    return textwrap.fill("__all__ = [" + ", ".join(f'"{name}"' for name in names) + "]", 120, subsequent_indent=" " * 11) + "\n"


def errors(statuses):
    text = '"""The exceptions of gpumem: one class for each status of the C interface, all derived from :class:`Error`.\n\n'
    text += "Decide by the class or by :attr:`Error.code`. The texts are for people and may change.\n" + '"""\n\n'
    text += "from typing import Dict, Type\n\nfrom ._error import Error, LibraryNotFound, VersionMismatch\n"
    failures = [constant for constant in statuses.constants if constant.value]
    for constant in failures:
        name = re.sub(r"^GPUMEM_(ERROR_)?", "", constant.name)
        about = MEANINGS.get(name) or re.sub(r"^Note: (.)(.*?)(;.*)?$", lambda found: found[1].upper() + found[2] + (found[3] or "."), constant.text)
        bases = ", ".join(["Error", *([BASES[name]] if name in BASES else [])])
        text += f'\n\nclass {exception(constant.name)}({bases}):\n{wrapped(about.replace("..", "."), "    ")}\n    code = {constant.value}\n'
    text += "\n\n#: The exception class of each status.\nSTATUS_CLASSES: Dict[int, Type[Error]] = {\n"
    text += "".join(f"    {constant.value}: {exception(constant.name)},\n" for constant in failures) + "}\n"
    text += "STATUS_NAMES: Dict[int, str] = {\n"
    text += "".join(f'    {constant.value}: "{constant.name}",\n' for constant in statuses.constants) + "}\n"
    return text + "\n" + public(["Error", "LibraryNotFound", "VersionMismatch", *(exception(constant.name) for constant in failures)])


def functions(names):
    """What a program calls in place of each function."""
    text = '"""What is called in Python in place of the functions of C."""\n\nFUNCTIONS = {\n'
    return text + "".join(f'    "{name}": "{member}()",\n' for name, member in names.items() if member) + "}\n"


def fields_of(interface, struct, kinds, words):
    """The fields: name, type, value, text."""
    about = STRUCTS[struct.name]
    found = []
    for field in struct.fields[1:]:
        change = FIELDS.get(f"{struct.name}.{field.name}", ("", "", ""))
        if change is None or field.name == "reserved" or (interface.is_handle(field.type.base) and not change[2]):
            continue
        name, base, value = change[0] or field.name, field.type.base, f"found.{field.name}"
        kind, form = "int", "{}"
        if base == "char":
            kind, form = "str", "text({})"
            form = f"in_python({form})" if field.name in TRANSLATED else form
        elif field.length is not None:
            kind, form = "bytes", "bytes({})"
        elif base in kinds:
            kind = kinds[base]
            form = f"known({kind}, {{}})"
        elif re.match(r"1 (if|once|until) ", field.text) and base == "uint32_t":
            kind, form = "bool", "bool({})"
        elif field.type.stars and "NULL" in field.text and not field.name.startswith("native_"):
            kind = "Optional[int]"
        elif field.type.stars:
            form = "{} or 0"
        says = TEXTS.get(f"{about}.{name}") or words(generate_infos.said(struct, field), "0" if field.name.startswith("native_") else "None")
        says = says or f"A :class:`{kind}`."
        found.append((name, change[1] or kind, (change[2] or form).format(value), says))
    return found


def infos(interface, kinds, words):
    """The named tuples, and for each a function that makes one of its struct. `kinds` are the enumerations by their type in C;
    `words` puts a text into the words of Python."""
    interface.require(FIELDS)
    text, named = "", set()
    for c_name, name in STRUCTS.items():
        struct = interface.struct(c_name)
        fields = fields_of(interface, struct, kinds, words)
        if name == "WayInfo":
            fields.insert(0, ("way", "ShareWay", "way", "The way that was asked for."))
        more = TEXTS.get(name, "")
        about = re.sub(r" A failed call leaves them unchanged(, but for `peak_bytes`)?\.", "", struct.text)
        about = f"{words(about, 'None')} {more[1:]}".strip() if more[:1] in ("", "+") else more
        text += f"\n\nclass {name}(NamedTuple):\n" + wrapped(about, "    ").replace('"""\n', "\n").rstrip() + "\n\n"
        text += "".join(wrapped(f"- ``{field}``: {says}", "    ", behind="  ", quotes=False) for field, _, _, says in fields if says)
        text += '    """\n\n' + "".join(f"    {field}: {kind}\n" for field, kind, _, _ in fields)
        parts = METHODS.get(name, ())
        for head, says, body in zip(parts[::3], parts[1::3], parts[2::3]):
            text += "\n" + textwrap.indent(head + "\n" + wrapped(says, "    ") + textwrap.indent(body, "    "), "    ") + "\n"
        given = [(field, kind) for field, kind, value, _ in fields if value.isidentifier()]
        function = re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()
        parameters = "".join(f", {field}: {kind}" for field, kind in given)
        text += f"\n\ndef {function}(found: Any{parameters}) -> {name}:\n"
        text += textwrap.fill(f"    return {name}(" + ", ".join(value.replace(" ", "\0") for _, _, value, _ in fields) + ")", 120,
                              subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False).replace("\0", " ") + "\n"
        named |= {word for _, kind, value, _ in fields for word in re.findall(r"\b[A-Z]\w+", f"{kind} {value}")}
    enums = sorted(named & set(kinds.values()))
    head = '"""The results of calls as named tuples, each with a function that makes one of the struct of C. `_codes` has the enumerations."""\n'
    head += "\nfrom __future__ import annotations\n\nfrom typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple\n\n"
    head += "from . import _library as c\nfrom ._calls import text\n"
    head += textwrap.fill(f"from ._codes import ({', '.join(enums)})", 120, subsequent_indent=" " * 20) + "\n"
    head += "from ._enums import known\nfrom ._words import in_python\n\nif TYPE_CHECKING:\n"
    for module, cls in ("_buffers", "Buffer"), ("_groups", "Group"), ("_pool", "Pool"), ("_ranges", "Range"):
        head += f"    from .{module} import {cls}\n"
    return head + "\n" + public(STRUCTS.values()) + text


def known(interface, kinds, words):
    """The classes that objects derive from for what they know: info(), and the properties that have one field of it."""
    text, named = "", set()
    for cls, (c_name, asked, stays, properties) in KNOWN.items():
        info, fields = STRUCTS[c_name], {name: (kind, says) for name, kind, _, says in fields_of(interface, interface.struct(c_name), kinds, words)}
        last = f"    def _last_info(self) -> {info}:"
        needs = ["_handle: int"] * bool(asked) + [f"_info: Optional[{info}]"] * stays + ([] if asked else [f"{last.strip()} ..."])
        text += f"\n\nclass {cls}:\n    __slots__ = ()\n\n    if TYPE_CHECKING:\n" + textwrap.indent("\n".join(needs), " " * 8) + "\n"
        if asked:
            maker = re.sub(r"(?<=.)([A-Z])", r"_\1", info).lower()
            found = f"_infos.{maker}(ask(c.{c_name[:-4]}get_info, c.{c_name}(), self._handle))"
            text += f"\n    def info(self) -> {info}:\n{wrapped(asked, ' ' * 8)}        "
            text += (f"self._info = {found}  # type: ignore[misc]  # the slot is the object's\n        return self._info\n\n{last}\n        return self._info or self.info()\n" if stays else
                     f"return {found}\n")
        for name, says in properties.items():
            name, _, field = name.partition("=")
            kind, of_field = fields[field or name]
            text += f"\n    @property\n    def {name}(self) -> {kind}:\n{wrapped(says or of_field, ' ' * 8)}"
            text += f"        return self.{'_known' if cls == 'RegionKnown' else '_last_info' if stays or not asked else 'info'}().{field or name}\n"
            named |= {kind} & set(kinds.values())
    head = '"""What objects know of themselves."""\n\nfrom __future__ import annotations\n\nfrom typing import TYPE_CHECKING, Optional\n\n'
    head += "from . import _infos\nfrom . import _library as c\nfrom ._calls import ask\n\nif TYPE_CHECKING:\n"
    for module, names in ("_codes", named), ("_infos", {STRUCTS[c_name] for c_name, *_ in KNOWN.values()}):
        head += textwrap.fill(f"    from .{module} import ({', '.join(sorted(names))})", 120, subsequent_indent=" " * 24) + "\n"
    return head + text.replace("_last_info(self) -> MemoryInfo: ...", "_known(self) -> MemoryInfo: ...")


def options(interface, kinds, words):
    """The options of the host backend as a dataclass, and the function that makes the struct of them."""
    struct = interface.struct("gpumem_host_options")
    fields, values = "", []
    says = wrapped(words(struct.text, "None") + " 0 and None are the defaults; see the page on the host backend.", "    ").replace('"""\n', "\n").rstrip() + "\n\n"
    for field in struct.fields[1:]:
        base = field.type.base
        kind, default, form = {"uint32_t": ("int", "0", "u32"), "uint64_t": ("int", "0", "u64"), "char": ("Optional[str]", "None", "encoded"),
                               "gpumem_toggle": ("Optional[bool]", "None", "toggle")}.get(base, ("", "", ""))
        if not form:
            kind, default, form = f"Union[{kinds[base]}, str, int]", '"default"', f"code({kinds[base]}, "
        fields += f"    {field.name}: {kind} = {default}\n"
        says += wrapped(f"- ``{field.name}``: {words(field.text, 'None')}", "    ", behind="  ", quotes=False)
        values.append(f'{field.name}={form}{"" if form.endswith(" ") else "("}options.{field.name},\0"{field.name}")')
    text = '"""The options of the host backend."""\n\nfrom __future__ import annotations\n\nimport dataclasses\n'
    text += "from typing import Any, Optional, Union\n\nfrom . import _library as c\nfrom ._calls import encoded, u32, u64\n"
    text += "from ._codes import HostLock\nfrom ._enums import code, toggle\n\n\n@dataclasses.dataclass\nclass HostOptions:\n"
    text += says + '    """\n\n' + fields + "\n\ndef host_options(options: HostOptions) -> Any:\n    return c.gpumem_host_options(\n"
    return text + textwrap.fill(", ".join(values) + ")", 120, initial_indent=" " * 8, subsequent_indent=" " * 8).replace("\0", " ") + "\n"
