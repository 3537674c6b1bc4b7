# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the options of C#: what a call takes in a struct, as properties. generate.py runs it.

Describe() writes what is a number in C; the calls add texts, arrays and what else must stay alive meanwhile.
"""

import re

import description
from generate_csharp import NOUNS, pascal, summary, to_string, words_of

OPTIONS = {
    "gpumem_instance_desc": "InstanceOptions", "gpumem_cuda_options": "CudaOptions", "gpumem_host_options": "HostOptions",
    "gpumem_memory_desc": "MemoryOptions", "gpumem_register_desc": "RegisterOptions", "gpumem_physical_desc": "PhysicalOptions",
    "gpumem_range_desc": "RangeOptions", "gpumem_buffer_desc": "BufferOptions", "gpumem_copy_file_desc": "FileCopyOptions",
    "gpumem_sleep_desc": "SleepOptions", "gpumem_wake_desc": "WakeOptions", "gpumem_prepare_desc": "PrepareOptions",
    "gpumem_copy_options": "CopyOptions", "gpumem_pool_desc": "PoolOptions", "gpumem_ring_desc": "RingOptions",
    "gpumem_ring_open_desc": "RingOpenOptions", "gpumem_export_desc": "ExportOptions", "gpumem_import_desc": "ImportOptions",
    "gpumem_send_desc": "SendOptions", "gpumem_hub_desc": "HubOptions", "gpumem_publish_desc": "PublishOptions",
    "gpumem_link_desc": "LinkOptions", "gpumem_fetch_desc": "FetchOptions",
}
# Structs that are parameters or a class of another shape.
OTHERWISE = {f"gpumem_{name}_desc" for name in ("access", "stream", "event", "group", "import_cache")}
# Those that null stands for the defaults of.
CLASSES = {"InstanceOptions", "CudaOptions", "HostOptions"}
# Fields that are parameters of the calls.
PARAMETERS = {f"gpumem_{field}" for field in (
    "memory_desc.kind", "memory_desc.size", "register_desc.pointer", "register_desc.size", "physical_desc.size", "range_desc.size",
    "buffer_desc.size", "copy_file_desc.file_descriptor", "copy_file_desc.direction", "copy_file_desc.file_offset",
    "copy_file_desc.pointer", "copy_file_desc.size", "ring_desc.slot_size")}
# Fields that another one says.
PARTS = {"struct_size", "reserved", "location_id", "access_count", "context_count", "user_count", "group_count", "token_size", "user_data"}
# Fields that the calls describe, because they check them in their own way.
BY_CALL = {"gpumem_instance_desc.transfer_threads"}
# Types of fields that are not numbers.
TYPES = {"accesses": "ProcessorAccess[]", "contexts": "IntPtr[]", "users": "uint[]", "groups": "uint[]", "token": "byte[]",
         "location": "MemoryLocation", "host": "HostOptions", "cuda": "CudaOptions", "progress": "Func<ulong, ulong, bool>"}
# What C# says otherwise than the headers. A key is a struct, a field of one, or one that several have.
PROGRESS = ("Called on the thread of the call with the bytes that are done and all bytes, before the first byte and after each piece. "
            "True goes on. False ends the call with #GPUMEM_ERROR_CANCELLED, and what it did is undone; so does an exception, which "
            "comes out of the call. Once all bytes are done the value means nothing.")
CANCELLATION = "Ends the call as `progress` can, at the same times, with an `OperationCanceledException`."
TEXTS = {
    "copy_file_desc": "Options for copies between files and memory.",
    "range_desc": "Options for a range of addresses.", "prepare_desc": "Options for preparing a sleep.",
    "link_desc": "Options for connecting to a hub.",
    "instance_desc.backend": "Backend to open.",
    "instance_desc.transfer_threads": "Threads for each device that copy between it and ordinary memory or files, that of the caller "
                                      "included; 0 means as many as help, -1 none. They start at the first large copies and end when none "
                                      "has come for 10 seconds.",
    "location": "Where it lies: the device of the call, unless set, `MemoryLocation.Host` or a NUMA node of the host.",
    "buffer_desc.accesses": "Who may access it. Null or empty means: the device of the call, and for memory of the host the CPU too, may "
                            "read and write.",
    "copy_file_desc.prefer": "Properties that the copy should have if possible.",
    "copy_file_desc.progress": "Called on the thread of the call with the bytes that are done and all bytes: before the first byte, after "
                               "about each 64 MiB and at the end. True goes on. False ends the call with #GPUMEM_ERROR_CANCELLED, and bytes "
                               "that are copied stay so; so does an exception, which comes out of the call.",
    "copy_file_desc.cancellation": CANCELLATION[:-1] + ", whose inner exception has `GpuMemException.Copied`.",
    "sleep_desc.stream": "Wait for all work in this stream, and for what `event` marks. With neither, and without #GPUMEM_SLEEP_IDLE, the "
                         "call waits for all work of each device that may access the buffers, whoever enqueued it. It must not do so "
                         "while a stream of these is being captured.",
    "sleep_desc.event": "Wait for the work that it marks. See `stream`.",
    "sleep_desc.tag": "For a group: only the buffers with this tag; if none has it, nothing happens. Null or an empty one means all. For one "
                      "buffer null.",
    "wake_desc.keep": "Bytes of the store that each buffer keeps for its next sleep, rounded up to pieces; 0 frees it, `long.MaxValue` "
                      "keeps all.",
    "progress": PROGRESS, "cancellation": CANCELLATION,
    "copy_options.direction": "Direction of the copy. One that contradicts the operands fails.",
    "copy_options.source_order": "When the source of a copy in a stream is read.",
    "pool_desc.memory_flags": "Properties that the memory must have; otherwise the call fails.",
    "export_desc.way": "How the memory reaches the other process; by default the best way that it has. For #GPUMEM_SHARE_WAY_DMA_BUF there "
                       "is `GpuInstance.ExportDmaBuf`.",
    "export_desc.access": "The most that importers get: #GPUMEM_ACCESS_READ or #GPUMEM_ACCESS_READWRITE, which is the default. "
                          "#GPUMEM_SHARE_WAY_LEGACY has only the latter.",
    "send_desc.lease_ns": "How long the receiver may take to import it; 0 means 30 seconds. Then it is taken back.",
    "import_desc.address": "Where the memory must begin, a multiple of the granularity of ranges, if these addresses are free; NULL means "
                           "anywhere. Only for #GPUMEM_SHARE_WAY_POSIX_FD.",
    "hub_desc.mode": "Permissions of the socket file; 0 means 0600 (octal): the user alone.",
    "hub_desc.token": "A secret that links must show, up to 256 bytes; or NULL. Links show it only to a hub of their own user or of root.",
    "publish_desc.fingerprint": "32 bytes that say what the content is, such as a hash of it, to be fetched by; or NULL.",
    "fetch_desc.fingerprint": "32 bytes that say what the content must be; or NULL. Without a version, the newest that has them is fetched.",
}
# Parts of texts that are about C alone.
OF_C = ((r"`size`", "the size"), (r" Every field has a default\. The default instance reads .*$", ""), (r" `GPUMEM_HOST_\w+`.*$", ""), (r" \(see \w+\.h\)", ""),
        (r",? or NULL; copied\.$", "; or NULL."), (r", `access_count` entries as in gpumem_range_set_access\(\)", ""),
        (r"\bUINT64_MAX\b", "`long.MaxValue`"))


def fields_of(interface, struct, names):
    """The properties: field, type, the number in C or None, and how it is printed."""
    for field in struct.fields:
        base, own = field.type.base, pascal(field.name.removesuffix("_ns"))
        key = f"{struct.name}.{field.name}"
        if key in PARAMETERS or field.name in PARTS:
            continue
        checked = f"Sizes.ToNative({own}, nameof({own}))"
        if field.name in TYPES:
            printed = {"progress": f"{own} != null", "token": f'{own} == null ? null : "secret"'}.get(field.name, own)
            yield field.name, TYPES[field.name], None, printed
            if field.name == "progress":
                yield "cancellation", "CancellationToken", None, "Cancellation.CanBeCanceled"
        elif base == "char":
            yield field.name, "string", None, own
        elif interface.is_handle(base):
            value = f"{own}.Value" if base == "gpumem_device" else f"{own}.Handle.Value"
            yield field.name, NOUNS[base], f"{own} == null ? IntPtr.Zero : {value}", own
        elif field.length:
            yield field.name, "byte[]", "", own
        elif field.type.stars:
            yield field.name, "IntPtr", own, own
        elif base in names:
            yield field.name, names[base], f"({'ulong' if interface.resolve(base) == 'uint64_t' else 'int'}){own}", own
        elif field.name.endswith("_ns"):
            yield field.name, "TimeSpan", f"GpuMem.Timeout.ToNanoseconds({own}, nameof({own}))", own
        elif base == "uint64_t":
            yield field.name, "long", checked, own
        else:  # The host backend says which of its options is wrong.
            unchecked = struct.name == "gpumem_host_options"
            number = own if base == "int32_t" else f"(uint){own if unchecked else checked}"
            yield field.name, "int", None if key in BY_CALL else number, own


def text_of(interface, struct, name):
    for key in (f"{struct.name.removeprefix('gpumem_')}.{name}", name):
        if key in TEXTS:
            return TEXTS[key]
    text = next(field.text for field in struct.fields if field.name == name)
    elsewhere = re.fullmatch(r"As in (gpumem_\w+)\.", text)
    return text_of(interface, interface.struct(elsewhere[1]), name) if elsewhere else text


def options(interface, names, constants, members, identifier):
    """`identifier` writes what may be a keyword; the others are as in infos()."""
    interface.require([*PARAMETERS, *BY_CALL])
    for struct in interface.structs:
        if struct.name.endswith(("_desc", "_options")) and struct.name not in OPTIONS.keys() | OTHERWISE:
            raise description.Unreadable(f"{struct.header}: generate_csharp_options.py does not say which class of C# has {struct.name}")
    def one(struct):
        name = OPTIONS[struct.name]
        fields = list(fields_of(interface, struct, names))
        own = {field: pascal(field.removesuffix("_ns")) for field, _, _, _ in fields}
        # A property hides the type of the same name.
        crefs = {constant: f"GpuMem.{value}" if value.split(".")[0] in own.values() else value for constant, value in constants.items()}
        words = words_of(interface, crefs, members, own)

        def says(text, kind=""):
            for pattern, replacement in OF_C:
                text = re.sub(pattern, replacement, text)
            text = re.sub(r"^(One|A sum|Sum) of (the )?GPUMEM_\w+ values", lambda match: f"{match[1]} of the ^{kind}^ values", text)
            if kind == "TimeSpan":
                text = text.replace("; 0 means", "; zero means")
            if kind not in ("IntPtr", "TimeSpan"):
                text = re.sub(r"(?:(?<=\. )|^)NULL", "Null", text).replace("NULL", "null")
            text = re.sub(r"`(\w+\.\w+|OperationCanceledException)`", r"^\1^", text).replace("^long.MaxValue^", "`long.MaxValue`")
            return re.sub(r"\^([^^]*)\^", r'<see cref="\1"/>', words(text))
        unsafe = any(value == "" for _, _, value, _ in fields)
        kind = "sealed class" if name in CLASSES else "unsafe struct" if unsafe else "struct"
        text = summary(TEXTS.get(struct.name.removeprefix("gpumem_"), struct.text), "  ", says) + f"  public {kind} {name}\n  {{\n"
        for field, type_name, _, _ in fields:
            text += summary(text_of(interface, struct, field), "    ", lambda text, type_name=type_name: says(text, type_name))
            if type_name.endswith("[]") or type_name in ("string", *CLASSES, *NOUNS.values()) or type_name.startswith("Func<"):
                text += "    [AllowNull, MaybeNull]\n"
            text += f"    public {type_name} {own[field]} {{ get; set; }}\n\n"
        says_all = "Its options, without the secret." if "token" in own else "Its options."
        text += to_string(says_all, name, [(own[field], printed) for field, _, _, printed in fields])
        described = [(field, value) for field, _, value, _ in fields if value is not None]
        if described:
            text += f"\n    internal {struct.name} Describe()\n    {{\n      {struct.name} desc = {struct.name}.Sized();\n"
            for field, value in described:
                text += (f"      desc.{identifier(field)} = {value};\n" if value else
                         f"      Bytes.Write({own[field]}, desc.{field}, 32, nameof({own[field]}));\n")
            text += "      return desc;\n    }\n"
        return text + "  }\n"
    return ("// What calls take in a struct, as plain values. The default of every property is the library's.\n\n"
            "using System;\nusing System.Diagnostics.CodeAnalysis;\nusing System.Threading;\nusing GpuMem.Interop;\n\n"
            "namespace GpuMem\n{\n" + "\n".join(one(struct) for struct in interface.structs if struct.name in OPTIONS) + "}\n")
