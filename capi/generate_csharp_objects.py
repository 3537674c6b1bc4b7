# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes what the objects of C# have alike: their handle, owner and information, and copies of what is an operand. generate.py runs it."""

import description
from generate_csharp import CLASSES, summary

DEVICE, INSTANCE = "Device given at creation.", "Its instance."
# Class: handle, text of its owner (the device if it says so, else the instance), of its information if that is always asked for, and
# of what it prints.
OBJECTS = {
    "GpuStream": ("stream", "Its device.", "Information about the stream.", "Its name and device."),
    "GpuEvent": ("event", "Its device.", "Information about the event.", "Its name and device."),
    "GpuMemory": ("allocation", DEVICE, "", "Its name, kind, size and device."),
    "ImportedMemory": ("allocation", INSTANCE, "", "Its name, size and device."),
    "PhysicalMemory": ("physical", "Device given at creation or import.", "", "Its name, size and location."),
    "AddressRange": ("range", INSTANCE, "Information about the range and what is mapped now.", "Its name and size."),
    "GrowableBuffer": ("buffer", DEVICE, "", "Its name, size and location."),
    "BufferGroup": ("group", INSTANCE, "", "Its name."),
    "Hub": ("hub", INSTANCE, "Information about the hub as it is now.", "Its path and name."),
    "Link": ("link", INSTANCE, "Information about the link as it is now.", "The path of the hub."),
    "MemoryPool": ("pool", DEVICE, "Information about the pool as it is now. The object does not change with the pool.",
                   "Its name, kind and device."),
}
BOTH = ("CopyFrom", "CopyTo")
# Class: noun, where copies begin, the handle of its instance, whether an offset can be given, and the copies that it has.
OPERANDS = {
    "GpuMemory": ("memory", "the start of the memory", "device.Instance.Handle", False, BOTH),
    "ImportedMemory": ("memory, counted from the byte that was exported", "the byte that was exported and those behind it",
                       "instance.Handle.Usable()", False, BOTH),
    "AddressRange": ("range", "the start of the range", "instance.Handle", True, BOTH),
    "GrowableBuffer": ("buffer", "the start of the buffer", "device.Instance.Handle", True, BOTH),
    "PoolBlock": ("block", "the start of the block", "pool.Handle.Instance", False, BOTH),
    "RingSlot": ("slot", "the beginning of the slot", "ring.Instance.Handle.Usable()", False, BOTH[:1]),
    "RingMessage": ("message", "the beginning of the message", "ring.Instance.Handle.Usable()", False, BOTH[1:]),
}
# Those that can be given whole where a range or an operand of a region is wanted.
CONVERTED = ("GrowableBuffer", "PoolBlock")
# Class: what each access does but check the bounds, its pointer, who copies, until when it may be used, and more of a span of all.
VIEWS = {
    "PinnedMemory": ("keeps the memory alive", "HostPointer", " with the CPU", "",
                     ' If a span cannot hold them, use <see cref="GetSpan(long, int)"/>.'),
    "HostAccess": ("that the access lasts", "Pointer", "", "until the access is disposed", " A span does not keep it alive: <c>using</c> does."),
    "BufferView": ("that the view is current, and holds changes of the buffer back", "Pointer", "", "until the buffer is changed or disposed", ""),
}
CONSTRAINT = "#if GPUMEM_MCS\n        where T : struct\n#else\n        where T : unmanaged\n#endif\n"


def says(text):
    return summary(text, "    ", str)


def handle_of(interface, name):
    """What each object has: its handle and its owner."""
    noun, owned, info, printed = OBJECTS[name]
    kind = f"{noun.capitalize()}Handle"
    owner = "Device" if "evice" in owned else "Instance"
    field = owner.lower()
    text = f"    readonly {kind} handle;\n    readonly Gpu{owner} {field};\n\n"
    text += f"    {name}(Gpu{owner} {field}, {kind} handle)\n    {{\n      this.{field} = {field};\n      this.handle = handle;\n    }}\n\n"
    text += says(owned) + f"    public Gpu{owner} {owner} {{ get {{ return handle.IfUsable({field}); }} }}\n\n"
    if info:
        struct = f"gpumem_{noun}_info"
        if not interface.struct(struct):
            raise description.Unreadable(f"generate_csharp_objects.py: no header has {struct}")
        text += says(info) + f"    public {CLASSES[struct][0]} Info {{ get {{ return Calls.gpumem_{noun}_get_info(handle.Usable()); }} }}\n\n"
    text += says("Whether it was disposed.") + "    public bool IsDisposed { get { return handle.IsDisposed; } }\n\n"
    text += f"    internal {kind} Handle {{ get {{ return handle; }} }}\n\n"
    return text + says(printed) + "    public override string ToString() { return handle.Text; }\n"


def copy(name, method, to_offset):
    noun, place, instance, offsets, _ = OPERANDS[name]
    at = "an offset" if to_offset else place
    begin, wait = ("Waits for the work of the block's stream, copies", "      handle.Usable().WaitForStream();\n") if noun == "block" else ("Copies", "")
    into = method == "CopyFrom"
    array = "source" if into else "destination"
    given = "offset" if to_offset else "0"
    body = f"Transfer.FromArray({instance}, Range, {given}, source)" if into else f"Transfer.ToArray({instance}, destination, Range, {given})"
    body = f"{method}(0, {array})" if offsets and not to_offset else body
    return (says(f"{begin} {'an array to ' + at if into else f'from {at} to an array'}, and returns when it is copied.")
            + f"    public void {method}<T>({'long offset, ' * to_offset}T[] {array})\n{CONSTRAINT}    {{\n{wait}      {body};\n    }}\n")


def operand(name):
    noun, _, _, offsets, methods = OPERANDS[name]
    more = " Every byte must be mapped." if name == "AddressRange" else ""
    use = "copy" if noun == "message" else "copy or fill"
    parts = [says(f"A part of the {noun}, as an operand of a {use}.{more}")
             + "    public GpuRange Slice(long offset, long size) { return Range.Slice(offset, size); }\n"]
    parts += [copy(name, method, offset) for offset in (False, True)[:1 + offsets] for method in methods]
    if name in CONVERTED:
        parts.append(says(f"The whole {noun}, as an operand of a copy or fill.")
                     + f"    public static implicit operator GpuRange({name} {noun})\n    {{\n"
                     f"      if ({noun} == null) throw new ArgumentNullException(nameof({noun}));\n      return {noun}.Range;\n    }}\n")
        parts.append(says(f"The whole {noun} without gaps between rows and slices, as an operand of a region.")
                     + f"    public static implicit operator CopyOperand({name} {noun}) {{ return new CopyOperand({noun}); }}\n")
    return "\n".join(parts)


def view(name):
    """The elements of memory, for the CPU."""
    check, pointer, who, until, more = VIEWS[name]
    until_then = f", for use {until}" if until else ""

    def given(text, declared):
        return says(text) + f"    public {declared}\n"
    parts = [given("Number of elements.", "long Length { get { return elements.Length; } }")]
    if until:
        parts.append(given(f"First byte; valid {until}.", "IntPtr Pointer { get { return elements.Pointer; } }"))
    parts += [
        given(f'One element. Each access checks the bounds and {check}; in a hot loop use a span or <see cref="{pointer}"/>.',
              "T this[long index]\n    {\n      get { return elements.Get(index); }\n      set { elements.Set(index, value); }\n    }"),
        given(f"Copies elements from an array{who}.", "void CopyFrom(T[] source, int sourceStart, long start, int count)\n"
              "    {\n      elements.CopyFrom(source, sourceStart, start, count);\n    }"),
        given(f"Copies an array to the first elements{who}.", "void CopyFrom(T[] source) { elements.CopyFrom(source); }"),
        given(f"Copies elements to an array{who}.", "void CopyTo(long start, T[] destination, int destinationStart, int count)\n"
              "    {\n      elements.CopyTo(start, destination, destinationStart, count);\n    }"),
        given(f"Copies the first elements to an array{who}.", "void CopyTo(T[] destination) { elements.CopyTo(destination); }"),
        given(f"Copies all elements to a new array{who}.", "T[] ToArray() { return elements.ToArray(); }"),
        "#if NETCOREAPP3_0_OR_GREATER\n" + says(f"Gets all elements{until_then}.{more}")
        + '    /// <exception cref="OverflowException">There are more elements than a span can hold.</exception>\n'
        f"    public {'' if until else 'override '}Span<T> GetSpan() {{ return elements.GetSpan(); }}\n\n"
        + given(f"Gets some elements{until_then}.", "Span<T> GetSpan(long start, int length) { return elements.GetSpan(start, length); }")
        + "#endif\n"]
    return f"  partial class {name}<T>\n  {{\n" + "\n".join(parts) + "  }\n"


def objects(interface):
    text = []
    for name in dict.fromkeys([*OBJECTS, *OPERANDS]):
        parts = [handle_of(interface, name)] if name in OBJECTS else []
        parts += [operand(name)] if name in OPERANDS else []
        text.append(f"  partial class {name}\n  {{\n" + "\n".join(parts) + "  }\n")
    text += [view(name) for name in VIEWS]
    return ("// What objects have alike. Each class is in a file of its own, too, which says what it is.\n\n"
            "using System;\n\nnamespace GpuMem\n{\n" + "\n".join(text) + "}\n")
