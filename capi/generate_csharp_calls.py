# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the plain calls of C# and the classes of its handles. generate.py runs it.

A plain call passes what it gets, checks the status, and returns what the library has written.
"""

import textwrap

import description
import generate_csharp
from generate_csharp_options import OPTIONS

# The functions, without gpumem_.
CALLS = """
    status_get_info instance_probe instance_open instance_default instance_get_info stats_get stats_get_kind stats_reset_peaks pointer_get_info pointer_get_access free unregister
    device_get_info device_get_capability device_trim_graphs device_can_access_peer device_enable_peer_access
    device_disable_peer_access malloc register pointer_get_device_pointer
    memory_create memory_register memory_get_info memory_get_import_info
    physical_create physical_import_fd physical_import_fabric physical_retain physical_get_info physical_export_fd
    physical_export_fabric range_reserve range_get_info range_get_mapping range_map range_set_access range_unmap
    buffer_create buffer_set_ahead buffer_set_callbacks buffer_note_registration group_create group_get_info
    stream_create stream_wrap stream_get_info stream_get_capture_id event_create event_wrap event_get_info event_export event_import
    share_revoke share_get_info share_import share_send share_set_cache share_flush_cache
    hub_open hub_get_info hub_publish hub_withdraw link_connect link_get_info link_fetch link_publish link_withdraw
    ring_create ring_open ring_export ring_get_info
    pool_create pool_get_info pool_get_class_info pool_get_block_info pool_reset_peaks pool_set_limit pool_set_release_threshold
    pool_set_callback pool_trim pool_free pool_free_sized pool_free_batch pool_capacity_for pool_free_native pool_free_pointer pool_record_use pool_release_capture
    host_native_stream_create host_native_stream_destroy host_stream_set_capturing host_device_lose host_fail_step
    host_foreign_alloc host_foreign_free host_foreign_peer_access host_set_current_device
""".split()
# Those that return null, or else false, for GPUMEM_NOT_READY.
WAITS = {"event_get_elapsed_time", "ring_finish", "share_receive", "link_wait"}
# The handles: class of the object, and what the handle knows of it and prints. A class whose destruction takes more has that by
# hand, in a partial class; so has what else it does.
HANDLES = {
    "gpumem_stream": ("GpuStream", ["int device", "string name"]), "gpumem_event": ("GpuEvent", ["int device", "string name"]),
    "gpumem_physical": ("PhysicalMemory", None), "gpumem_range": ("AddressRange", ["long size", "string name"]),
    "gpumem_group": ("BufferGroup", ["string name"]), "gpumem_hub": ("Hub", ["string path", "string name"]),
    "gpumem_link": ("Link", ["string path"]), "gpumem_buffer": ("GrowableBuffer", None),
    "gpumem_pool": ("MemoryPool", ["MemoryKind kind", "int device", "string name"]),
}
DESTROYED_BY_HAND = {"gpumem_stream", "gpumem_range", "gpumem_buffer", "gpumem_pool"}
INFOS = {struct: name for struct, (name, _, _) in generate_csharp.CLASSES.items()}
# Arrays that must not be null, also if they are empty.
NEVER_NULL = {"accesses", "physicals"}
# What comes out of a struct of bytes.
BYTES = {"gpumem_share_handle": "ShareHandle", "gpumem_fabric_handle": "FabricHandle"}


def camel(name):
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


class Call:
    """The method for a function."""

    def __init__(self, interface, function, csharp_type, identifier):
        self.given, self.words, self.before, self.after, self.result, self.value = [], [], [], [], "void", ""
        self.checked, self.texts = "Error.Check", []  # parameter, what the caller calls it, and where it goes
        self.arrays, counted = [], ""  # type and parameter; the last one, whose length comes next
        for number, parameter in enumerate(function.parameters[:-1]):
            base, stars = parameter.type.base, parameter.type.stars
            name = identifier(camel(parameter.name.removeprefix("out_")))
            kind = csharp_type(interface, parameter.type)
            if counted:
                self.words.append(f"({kind}){counted}.Length")
                counted = ""
            elif stars and function.parameters[number + 1].name.endswith("count"):
                counted = name
                self.given.append(f"{kind[:-1]}[] {name}")
                self.arrays.append((kind, name))
                self.words.append(f"{name}First")
            elif parameter.name.startswith("out_"):
                self.writes(interface, base, name, kind)
            elif interface.is_handle(base) and not stars:
                self.uses(base, name, not number)
            elif base in BYTES and stars:
                self.given.append(f"{base} {name}")
                self.words.append(f"&{name}")
            elif base == "char":
                self.given.append(f"string {name}")
                self.texts.append((name, name, ""))
                self.words.append(f"{name}Text.Pointer")
            elif base.endswith(("_desc", "_callbacks")):
                self.given.append(f"{base} {name}")
                self.words.append(f"&{name}")
                for field in interface.struct(base).fields:
                    if field.type.base == "char" and field.type.stars:
                        self.given.append(f"string {field.name}")
                        called = f"{OPTIONS[base]}.{generate_csharp.pascal(field.name)}" if base in OPTIONS else field.name
                        self.texts.append((field.name, called, f"{name}.{field.name} = {field.name}Text.Pointer;"))
            elif stars and base != "void":
                raise description.Unreadable(f"{function.header}: {function.name} has a pointer, so its call in C# is by hand")
            else:
                self.given.append(f"{kind} {name}")
                self.words.append(name)
        self.words.append("error")

    def uses(self, base, name, first):
        """An object that the call is about, or another one."""
        device = base == "gpumem_device"
        self.given.append(f"{'GpuDevice' if device else 'GpuHandle'} {name}")
        self.words.append(f"{name}.Value" if first else f"{name} == null ? IntPtr.Zero : {name}.Value")
        if first:
            self.checked = f"{name}.Instance.Handle.Check" if device else f"{name}.Check"
        else:
            self.after.append(f"GC.KeepAlive({name});")

    def writes(self, interface, base, name, kind):
        """What the library writes: a new object, information, or a value."""
        if interface.is_handle(base):
            self.given.append("GpuHandle made")
            self.before.append("IntPtr value;")
            self.words.append("&value")
            self.after.append("made.Attach(value);")
        elif base in INFOS:
            self.before.append(f"{base} {name} = {base}.Sized();")
            self.words.append(f"&{name}")
            self.result, self.value = INFOS[base], f"new {INFOS[base]}(&{name})"
        else:
            self.result = kind.removesuffix("*")
            self.before.append(f"{self.result} {name};")
            self.words.append(f"&{name}")
            self.value = name
            if base in BYTES:
                self.result, self.value = BYTES[base], f"new {BYTES[base]}({name})"


def calls(interface, csharp_type, identifier, declaration):
    text = ""
    missing = {*CALLS, *WAITS} - {function.name.removeprefix("gpumem_") for function in interface.functions}
    if missing:
        raise description.Unreadable(f"generate_csharp_calls.py names functions that no header has: {', '.join(sorted(missing))}")
    for function in interface.functions:
        waits = function.name.removeprefix("gpumem_") in WAITS
        if not waits and function.name.removeprefix("gpumem_") not in CALLS:
            continue
        call = Call(interface, function, csharp_type, identifier)
        if waits:
            number = call.result in ("int", "uint", "long", "ulong")
            call.result = f"{call.result}?" if number else call.result.replace("void", "bool")
        text += "\n    [MethodImpl(GpuMemLibrary.Bound)]\n"
        text += declaration(f"    internal static {call.result} {function.name}(", call.given, ")", " " * 8, 120) + "\n    {\n"
        begin, end = ("int status = ", ");") if waits else (f"{call.checked}(", "), error);")
        lines = [declaration(f"{begin}Native.{function.name}(", call.words, end, " " * 4, 112)]
        if waits:
            ready = "status != Constants.GPUMEM_NOT_READY"
            lines += [f"{call.checked}(status, error);", *call.after,
                      f"return {ready};" if not call.value else f"if ({ready}) return {call.value};\nreturn null;"]
        else:
            lines += [*call.after, *[f"return {call.value};"] * bool(call.value)]
        if call.texts or call.arrays:
            inner = textwrap.indent("\n".join([*(put for _, _, put in call.texts if put), *lines]), "  ")
            lines = [*(f"using (var {name}Text = new CText({name}, nameof({called})))" for name, called, _ in call.texts),
                     *(f"fixed ({kind} {name}First = {f'Elements.WithAddress({name})' if name in NEVER_NULL else name})"
                       for kind, name in call.arrays), "{", inner, "}"]
        lines = [*call.before, "gpumem_error* error = Error.Detail;", *lines]
        text += textwrap.indent("\n".join(lines) + "\n", " " * 6) + "    }\n"
    return ("// The calls that only pass what they get, check the status and return what the library has written, under their C names.\n\n"
            "using System;\nusing System.Runtime.CompilerServices;\nusing GpuMem.Interop;\n\nnamespace GpuMem\n{\n"
            "  static unsafe class Calls\n  {\n" + text.removeprefix("\n") + "  }\n}\n")


def handle_class(interface, handle, noun, fields):
    name = handle.removeprefix("gpumem_").capitalize() + "Handle"
    text = f"  sealed unsafe partial class {name} : GpuHandle\n  {{\n"
    if fields is not None:
        of_device = "int device" in fields
        text += "".join(f"    readonly {field};\n" for field in fields)
        given = ["GpuDevice device" if field == "int device" else field for field in fields]
        given = given if of_device else ["InstanceHandle instance", *given]
        text += f"\n    internal {name}({', '.join(given)}) : base({'device.Instance.Handle' if of_device else 'instance'})\n    {{\n"
        names = [field.split()[1] for field in fields]
        text += "".join(f"      this.{field} = {field}{'.Ordinal' if field == 'device' else ''};\n" for field in names)
        printed = "".join(f'.Add{"If" if kind == "string" else ""}("{field.capitalize()}", {field})'
                          for kind, field in (field.split() for field in fields))
        text += f"    }}\n\n    internal override Printed Print() {{ return base.Print(){printed}; }}\n\n"
    text += f"    internal override string Noun {{ get {{ return nameof({noun}); }} }}\n"
    if handle not in DESTROYED_BY_HAND:
        ends = {f"{handle}_{word}" for word in ("destroy", "release", "close")}
        end = next(function.name for function in interface.functions if function.name in ends)
        text += ("\n    [MethodImpl(GpuMemLibrary.Bound)]\n    protected override int Destroy(IntPtr value, gpumem_error* error)\n"
                 f"    {{\n      return Native.{end}(value, error);\n    }}\n")
    return text + "  }\n"


def handles(interface):
    return ("// Handles of objects: what each knows of its object, and how it ends. Handles.cs says how they work.\n\n"
            "using System;\nusing System.Runtime.CompilerServices;\nusing GpuMem.Interop;\n\nnamespace GpuMem\n{\n"
            + "\n".join(handle_class(interface, handle.name, *HANDLES[handle.name])
                        for handle in interface.handles if handle.name in HANDLES) + "}\n")
