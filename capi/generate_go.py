# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The options of the Go binding, made of the structs of C that a call takes, and what all its objects do alike.

An option has the name, the type and the text that follow from C: a text is a string, a number of nanoseconds a time.Duration. `check`
refuses what C cannot express, and `native` makes the numbers of the struct of C; calls pass texts and arrays beside it. What does not
follow is named here.
"""

import re

import generate_cgo
import generate_infos

# The structs: their names in Go, and what the text of C does not say.
OPTIONS = {
    "gpumem_instance_desc": ("Options", "The zero value opens BackendAny with defaults."),
    "gpumem_host_options": ("HostOptions", "The zero value of every field is its default."),
    "gpumem_cuda_options": ("CUDAOptions", ""),
    "gpumem_memory_desc": ("MemoryOptions", ""),
    "gpumem_register_desc": ("RegisterOptions", ""),
    "gpumem_physical_desc": ("PhysicalOptions", ""),
    "gpumem_range_desc": ("RangeOptions", ""),
    "gpumem_buffer_desc": ("BufferOptions", ""),
    "gpumem_group_desc": ("GroupOptions", ""),
    "gpumem_sleep_desc": ("SleepOptions", "The zero value keeps the content in pinned memory, and waits for all work of each device that may "
                                          "access the buffers."),
    "gpumem_wake_desc": ("WakeOptions", "The zero value frees what kept the content."),
    "gpumem_prepare_desc": ("PrepareOptions", "The zero value prepares for ContentPinned, until all is done."),
    "gpumem_stream_desc": ("StreamOptions", ""),
    "gpumem_event_desc": ("EventOptions", ""),
    "gpumem_copy_options": ("CopyOptions", ""),
    "gpumem_export_desc": ("ExportOptions", "The zero value exports in the best way, with all access."),
    "gpumem_import_desc": ("ImportOptions", "The zero value imports for the device that has the memory, with all access that the exporter "
                                            "allows."),
    "gpumem_send_desc": ("SendOptions", ""),
    "gpumem_hub_desc": ("HubOptions", ""),
    "gpumem_publish_desc": ("PublishOptions", ""),
    "gpumem_link_desc": ("LinkOptions", ""),
    "gpumem_fetch_desc": ("FetchOptions", "The zero value fetches the newest version."),
    "gpumem_pool_desc": ("PoolOptions", "The zero value makes one of device memory."),
    "gpumem_ring_desc": ("RingOptions", "0 as a number means its default."),
    "gpumem_ring_open_desc": ("RingOpenOptions", ""),
}
# Options that only Go has.
MORE = {
    "gpumem_memory_desc": [("Uninitialized", "bool", "", "NewPinned does not zero the memory, which saves a pass over it. The others never do, "
                                                         "so for them it means nothing.")],
    "gpumem_import_desc": [("Files", "[]*os.File", "", "The descriptors of the handle, from [Instance.ExportedFiles] of the exporter. They stay the "
                           "caller's. With none, they are those that came with the handle through Receive or Fetch, or the exporter is "
                           "asked for them.")],
}
# Fields that another one says, or that the call has a parameter for.
PARTS = {"reserved", "user_data", "access_count", "context_count", "user_count", "group_count", "token_size"}
PARAMETERS = {"gpumem_register_desc.pointer", "gpumem_register_desc.size"}
# Types and names that do not follow.
TYPES = {"accesses": "[]ProcessorAccess", "contexts": "[]uintptr", "users": "[]uint32", "groups": "[]uint32", "token": "Token",
         "mode": "os.FileMode", "host": "*HostOptions", "cuda": "*CUDAOptions", "progress": "func(done, total uint64) bool"}
NAMES = {"slot_count": "Slots", "consumers_first": "FirstConsumers", "fds_max": "MaxFiles", "register_count_max": "RegisterCountMax",
         "cuda": "CUDA"}
# What Go says otherwise: of a struct, or of a field.
SLEEP = "For a Group: only the buffers with this tag{}; \"\" means all."
TEXTS = {f"gpumem_{key}": text for key, text in {
    "host_options": "Options for an instance of the host backend.",
    "range_desc": "Options for reserving addresses.", "link_desc": "Options for connecting to a hub.",
    "buffer_desc": "Options for a [GrowableBuffer] or a [Buffer].", "prepare_desc": "Options for preparing to sleep.",
    "instance_desc.backend": "", "instance_desc.host": "Ignored with BackendCUDA; nil means defaults.",
    "instance_desc.cuda": "Ignored with BackendHost; nil means defaults.",
    "memory_desc.kind": "KindDevice, KindPinned or KindManaged. NewPinned and NewManaged set it.",
    "memory_desc.size": "Bytes, 1 to 2^63-1. NewPinned and NewManaged set it.",
    "buffer_desc.size": "Bytes to begin with; may be 0. NewBuffer sets it.",
    "buffer_desc.accesses": "None means: the device of the call, and for memory of the host the CPU too, may read and write.",
    "buffer_desc.group": "The group, of the same instance, that it belongs to until it is closed; or nil.",
    "pool_desc.memory_flags": "Properties that the memory must have; otherwise the call fails.",
    "pool_desc.accesses": "Devices besides its own that may access all blocks; of a pool of KindDevice only. Streams of other devices then "
                          "allocate nothing, unless the pool has MemoryFlags or the device no virtual memory management: then access is "
                          "that of [Device.EnablePeerAccess], which is not checked.",
    "sleep_desc.flags": "SleepIdle, or 0.",
    "sleep_desc.tag": SLEEP.format(", which may be none"), "wake_desc.tag": SLEEP.format(""), "prepare_desc.tag": SLEEP.format(""),
    "prepare_desc.directory": "For ContentFile: directory of the file.",
    "sleep_desc.progress": "Called before the first byte and after each piece, with the bytes that are done and all bytes. If it returns "
                           "false, the call fails with ErrCancelled, and what it did is undone; once all bytes are done, the value means "
                           "nothing. A panic and runtime.Goexit, so also FailNow of a test, cancel too, and go on in the goroutine of the "
                           "call when all is undone. The call waits while it runs, on a goroutine of its own. It must not use the "
                           "buffers. It may be nil.",
    "wake_desc.progress": "As in SleepOptions.",
    "wake_desc.keep": "Bytes of the store that each buffer keeps for its next sleep, rounded up; math.MaxUint64 keeps all.",
    "copy_options.direction": "Inferred from the operands by default.",
    "copy_options.source_order": "When a Stream may read the source; in stream order by default.",
    "export_desc.way": "Any but ShareWayDMABuf.",
    "import_desc.device": "Device that will use the memory; nil means the one that has it, found by its UUID.",
    "import_desc.address": "Where the memory must begin, a multiple of the granularity of ranges, if these addresses are free; 0 means "
                           "anywhere. Only for ShareWayPOSIXFD.",
    "send_desc.timeout_ns": "How long a message that was begun may wait for room in the socket; 0 means 5 seconds.",
    "hub_desc.token": "A secret that links must show; see TokenOf. Links show it only to a hub of their own user or of root.",
    "link_desc.token": "That of the hub, shown only to a process of this user or of root.", "link_desc.path": "As in HubOptions.",
    "host_options.peers": 'Links between devices: "all", "none" or a list such as "0>1,1>0"; "" means all.',
}.items()}
# Parts of texts that are about C alone.
OF_C = ((r"without memory flags", "without MemoryFlags"), (r"the name `default`", 'the name "default"'), (r" `GPUMEM_HOST_\w+`.*$", ""), (r",? or NULL; copied\.$", "."), (r"; or NULL\.$", "."), (r" The array is copied; the", " The"),
        (r", by its path; otherwise NULL\.$", "."), (r"^(#GPUMEM_LOCATION_DEVICE), or 0 for it: the device of the call\. Or (.*), or",
                                                     r"\1, or LocationNone for it: the device of the call; \2; or"))
# What a method calls its object, if not by the first letter of the class.
RECEIVERS = {"AddressRange": "r", "GrowableBuffer": "b", "PoolBlock": "b", "RingProducer": "p", "RingConsumer": "c", "RingMessage": "m", "ringSlot": "s"}
# Objects with a field for their handle.
HANDLES = ("instance", "device", "memory", "physical", "event", "group", "pool", "hub", "link")
# Objects whose information needs no more than that: what the text of C calls one, what String returns, in which format, and the fields for it.
INFOS = {
    "instance": ("an open instance", "the backend, the name and the number of devices", "%v%s, %d devices", "Backend Name DeviceCount"),
    "device": ("a device", "the ordinal, the name and the size", "%d%s, %d bytes", "Ordinal Name TotalBytes"),
    "stream": ("a stream", "the name and the device", "%s device %d", "Name DeviceOrdinal"),
    "event": ("an event", "the name and the device", "%s device %d", "Name DeviceOrdinal"),
    "physical": ("physical memory", "the name, the size and the location", "%s %d bytes, %v %d", "Name Size Location LocationID"),
    "range": ("a range", "the name, the sizes and the address", "%s %d bytes at %#x, %d mapped", "Name Size r.address MappedSize"),
    "pool": ("a pool", "the name, the kind, the blocks that live and what the pool has taken", "%s %v, %d blocks in %d bytes, device %d",
             "Name Kind LiveCount ReservedBytes DeviceOrdinal"),
    "hub": ("a hub", "the path, and the number of names and links", "%s %s, %d names, %d links", "Name Path NameCount LinkCount"),
    "link": ("a link", "the path of the hub, and its process", "%s of process %d", "Path PID"),
}
# What an object knows by itself, also if it is closed: class, method, type, expression and text. Nil has nothing.
MADE_FOR = "the device that the {} was made for"
KNOWN = (
    ("Device", "Instance", "*Instance", "d.instance", "the instance of the device"),
    ("Device", "Ordinal", "int", "d.ordinal", "the number of the device in its instance"),
    ("Memory", "Device", "*Device", "m.device", MADE_FOR.format("memory")),
    ("Memory", "Size", "uint64", "m.size", "the number of bytes requested"),
    ("AddressRange", "Size", "uint64", "r.size", "the number of bytes reserved"),
    ("GrowableBuffer", "Device", "*Device", "b.device", MADE_FOR.format("buffer")),
    ("GrowableBuffer", "Group", "*Group", "b.group", "the group that the buffer was made in, or nil"),
    ("Pool", "Device", "*Device", "p.device", MADE_FOR.format("pool")),
    ("Pool", "Kind", "Kind", "p.kind", "the kind of the pool's memory"),
    ("PoolBlock", "Pool", "*Pool", "b.pool", "the pool of the block"),
    ("PoolBlock", "Size", "uint64", "b.size", "the number of bytes that were asked for"),
    ("RingProducer", "side", "*ring", "&p.ring", ""),
    ("RingProducer", "Instance", "*Instance", "p.instance", "the instance of the ring"),
    ("RingConsumer", "side", "*ring", "&c.ring", ""),
    ("RingConsumer", "Instance", "*Instance", "c.instance", "the instance of the ring"),
    ("ringSlot", "Size", "uint64", "s.size", "the bytes of the message, or those of a slot that may be filled"),
    ("ringSlot", "Number", "uint64", "s.native.number", "the number of the message: 0, 1, 2 and so on since the ring was created"),
    ("ringSlot", "Index", "int", "int(s.native.index)", "the index of the slot"),
    ("RingMessage", "Tag", "uint64", "m.native.tag", "the number that the producer passed with the message"),
)
# Objects with bytes, and what At says of them besides.
BYTES = {"Memory": "", "AddressRange": " They may cross from one mapping to the next.", "PoolBlock": "", "ringSlot": ""}


def option_name(field, pascal):
    if field.name in NAMES:
        return NAMES[field.name]
    return pascal(re.sub(r"^(\w+)_max$", r"max_\1", field.name.removesuffix("_ns")))


def option_type(interface, field, kinds):
    base = field.type.base
    if field.name in TYPES:
        return TYPES[field.name]
    if base in kinds:
        return kinds[base]
    if interface.is_handle(base):
        return f"*{base.removeprefix('gpumem_').capitalize()}"
    if base == "char":
        return "string"
    if field.length:
        return f"[{field.length}]byte"
    if field.name.endswith("_ns"):
        return "time.Duration"
    return "uint64" if field.type.stars else base.removesuffix("_t")


def option_text(interface, struct, field, kind, flags):
    key = f"{struct.name}.{field.name}"
    if key in TEXTS:
        return TEXTS[key]
    text = field.text
    for pattern, replacement in OF_C:
        text = re.sub(pattern, replacement, text)
    numbers = interface.type_of_numbers(field.type.base)
    if numbers and re.match(r"(One|A sum|Sum) of (the )?GPUMEM_\w+ values\.$", text):
        return f"A sum of {', '.join(flags(numbers))}." if len(numbers.constants) > 1 else f"{flags(numbers)[0]}, or 0."
    zero = {"string": '""', "uint64": "0"}.get(kind, "nil")
    return re.sub(r"\bNULL\b", zero, text)


def in_c(field, kind, name, native_type):
    """The value of a number of the struct of C."""
    if kind.startswith("*"):
        return f"uintptr(o.{name}.id())"
    return f"o.{name}" if kind == native_type else f"{native_type}(o.{name})"


def options(interface, go):
    """The options; `go` has what generate.py knows of Go."""
    interface.require([*PARAMETERS, *(key for key in TEXTS if "." in key)])
    text = ""
    for c_name, (name, more) in OPTIONS.items():
        struct = interface.struct(c_name)
        fields, numbers, checks = [], [], []
        own = {field.name: option_name(field, go.public) for field in struct.fields}
        for field in struct.fields[1:]:
            kind = option_type(interface, field, go.kinds)
            number = not generate_cgo.is_pointer(interface, struct, field) and field.name not in ("host", "cuda", "reserved")
            if field.name in PARTS:
                if number:
                    array = next(own[other] for other in (f"{field.name[:-6]}{end}" for end in ("s", "es")) if other in own) \
                        if field.name.endswith("_count") else "Token.bytes()"
                    numbers.append((go.raw(field.name), f"{go.raw_type(field)}(len(o.{array}))"))
                continue
            if f"{c_name}.{field.name}" in PARAMETERS:
                continue
            if number:
                numbers.append((go.raw(field.name), in_c(field, kind, own[field.name], go.raw_type(field))))
            says = go.words(option_text(interface, struct, field, kind, go.flags), own)
            fields.append((own[field.name], kind, "", says))
        fields += MORE.get(c_name, [])
        about = f"{TEXTS.get(c_name, struct.text)} {more}".strip()
        text += "\n" + go.comment(f"{name} are {go.words(about[0].lower() + about[1:], own)}") + f"type {name} struct {{\n"
        text += generate_infos.declared(fields, go.columns, go.comment_of) + "}\n"
        text += f"\n// String returns the fields that are not zero.\nfunc (o {name}) String() string {{ return fields(o) }}\n"
        for function, chosen in (("Texts", "string"), ("Limits", "time.Duration")):
            names = [f"o.{field}" for field, kind, _, _ in fields if kind == chosen]
            checks += [f"check{function}(function, {', '.join(names)})"] * bool(names)
        arrays = [f"len(o.{field})" for field, kind, _, _ in fields if kind == "[]uint32"]
        checks += [f"checkLengths(function, {', '.join(arrays)})"] * bool(arrays)
        checks += ["checkToken(function, o.Token)"] * any(kind == "Token" for _, kind, _, _ in fields)
        if checks:
            value = checks[0] if len(checks) == 1 else f"firstError({', '.join(checks)})"
            if len(value) > generate_infos.SHORT - 12:
                value = "firstError(" + "".join(f"\n\t\t{check}," for check in checks) + "\n\t)"
            text += f"\nfunc (o *{name}) check(function string) error {{\n\treturn {value}\n}}\n"
        if len(numbers) > generate_cgo.FEW or any(field.length for field in struct.fields):
            native = go.struct(c_name)
            text += f"\nfunc (o *{name}) native() {native} {{\n\treturn {native}{{\n"
            numbers = [("structSize", f"unsafe.Sizeof({native}{{}})"), *numbers]
            text += go.columns([[f"{field}:", f"{value},"] for field, value in numbers], "\t\t") + "\t}\n}\n"
    return 'import (\n\t"os"\n\t"time"\n\t"unsafe"\n)\n' + text


def objects(interface, go):
    """What all objects do alike."""
    text = ""

    def method(kind, signature, result, value, says=""):
        nonlocal text
        this = RECEIVERS.get(kind, kind[0].lower())
        zero = "nil" if result[0] == "*" else "Address{}" if result == "Address" else "0"
        text += "\n" + go.comment(says) + f"func ({this} *{kind}) {signature} {result} {{\n\tif {this} == nil {{\n\t\treturn {zero}\n\t}}\n"
        text += f"\treturn {value.replace('this', this)}\n}}\n"
    for handle in HANDLES:
        method(go.classes[f"gpumem_{handle}"], "id()", "C.uintptr_t", "C.uintptr_t(this.handle)")
    for kind, name, result, value, says in KNOWN:
        method(kind, f"{name}()", result, value, f"{name} returns {says}." if says else "")
    for kind, more in BYTES.items():
        method(kind, "At(offset uint64)", "Address", "Address{&this.block, this.address + offset}",
               f"At returns the address of the byte at an offset, for copies and fills.{more}")
    for handle, (one, returns, form, printed) in INFOS.items():
        name, function = go.classes[f"gpumem_{handle}"], f"gpumem_{handle}_get_info"
        this = RECEIVERS.get(name, name[0].lower())
        says = next(item.text for item in interface.functions if item.name == function)
        says = says.replace(f"Gets information about {one}.", f"Info gets information about the {re.sub('^(an open|an?) ', '', one)}.")
        info, native = generate_infos.STRUCTS[f"gpumem_{handle}_info"], go.struct(f"gpumem_{handle}_info")
        text += ("\n" + go.comment(says) + f"func ({this} *{name}) Info() ({info}, error) {{\n\tinfo := {native}{{structSize: unsafe.Sizeof({native}{{}})}}\n"
                 f"\terr := checked(C.gpumem_go_{handle}_get_info({this}.id(), inC(&info)), {this})\n\treturn info.public(), err\n}}\n")
        words = [word if "." in word else "named(info.Name)" if word == "Name" else f"info.{word}" for word in printed.split()]
        text += (f"\n// String returns {returns}.\nfunc ({this} *{name}) String() string {{\n"
                 f'\treturn described("{name}", {this}.id() == 0, {this}.Info, func(info {info}) string {{\n'
                 f'\t\treturn fmt.Sprintf("{form}", {", ".join(words)})\n\t}})\n}}\n')
    return '// #include "native.h"\nimport "C"\n\nimport (\n\t"fmt"\n\t"unsafe"\n)\n' + text
