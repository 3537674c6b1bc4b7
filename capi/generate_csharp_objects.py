# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes what several classes of C# have alike: the handle, owner and information of objects, copies between operands and arrays, the
elements of memory for the CPU, and what an instance does and a stream enqueues. generate.py runs it.

The members are templates; what differs from class to class is in the tables. Each class has the rest in a file of its own.
"""

import re
from string import Template

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
# Class: what it is an operand of, and its number of elements after it was disposed.
TYPED = {"PinnedMemory": ("a copy or fill", "elements.Count"), "UnifiedMemory": ("a copy, a fill, a prefetch or advice", "length")}
# Class: the handles that the work is for, the words for copying and for filling, and what ends a sentence about several things and about one.
WORK = {
    "GpuInstance": ("handle.Usable(), null", "Copies", "Fills", ", and returns when they are {}", ", and returns when it is {}"),
    "GpuStream": ("null, handle.Usable()", "Enqueues a copy of", "Enqueues a fill of", "", ""),
}
CONSTRAINT = "#if GPUMEM_MCS\n        where T : struct\n#else\n        where T : unmanaged\n#endif\n"

OBJECT = """
    readonly $kind handle;
    readonly Gpu$owner $field;

    $name(Gpu$owner $field, $kind handle)
    {
      this.$field = $field;
      this.handle = handle;
    }

    /// <summary>$owned</summary>
    public Gpu$owner $owner { get { return handle.IfUsable($field); } }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return handle.IsDisposed; } }

    internal $kind Handle { get { return handle; } }

    /// <summary>$printed</summary>
    public override string ToString() { return handle.Text; }
"""
INFO = """
    /// <summary>$info</summary>
    public $cls Info { get { return Calls.gpumem_${noun}_get_info(handle.Usable()); } }
"""
SLICE = """
    /// <summary>A part of the $noun, as an operand of a $use.$more</summary>
    public GpuRange Slice(long offset, long size) { return Range.Slice(offset, size); }
"""
COPY = """
    /// <summary>$begin $what, and returns when it is copied.</summary>
    public void $method<T>($given)
$where    {
$before      $body;
    }
"""
CONVERT = """
    /// <summary>The whole $noun, as an operand of $used.</summary>
    public static implicit operator GpuRange($cls $noun)
    {
      if ($noun == null) throw new ArgumentNullException(nameof($noun));
      return $range;
    }

    /// <summary>The whole $noun without gaps between rows and slices, as an operand of a region.</summary>
    public static implicit operator CopyOperand($cls $noun) { return new CopyOperand($noun); }
"""
VIEW = """
    /// <summary>Number of elements.</summary>
    public long Length { get { return elements.Length; } }

    /// <summary>
    /// One element. Each access checks the bounds and $check; in a hot loop use a span or <see cref="$pointer"/>.
    /// </summary>
    public T this[long index]
    {
      get { return elements.Get(index); }
      set { elements.Set(index, value); }
    }

    /// <summary>Copies elements from an array$who.</summary>
    public void CopyFrom(T[] source, int sourceStart, long start, int count)
    {
      elements.CopyFrom(source, sourceStart, start, count);
    }

    /// <summary>Copies an array to the first elements$who.</summary>
    public void CopyFrom(T[] source) { elements.CopyFrom(source); }

    /// <summary>Copies elements to an array$who.</summary>
    public void CopyTo(long start, T[] destination, int destinationStart, int count)
    {
      elements.CopyTo(start, destination, destinationStart, count);
    }

    /// <summary>Copies the first elements to an array$who.</summary>
    public void CopyTo(T[] destination) { elements.CopyTo(destination); }

    /// <summary>Copies all elements to a new array$who.</summary>
    public T[] ToArray() { return elements.ToArray(); }

#if NETCOREAPP3_0_OR_GREATER
    /// <summary>Gets all elements$used.$more</summary>
    /// <exception cref="OverflowException">There are more elements than a span can hold.</exception>
    public ${override}Span<T> GetSpan() { return elements.GetSpan(); }

    /// <summary>Gets some elements$used.</summary>
    public Span<T> GetSpan(long start, int length) { return elements.GetSpan(start, length); }
#endif
"""
POINTER = """
    /// <summary>First byte; valid $until.</summary>
    public IntPtr Pointer { get { return elements.Pointer; } }
"""
TYPED_MEMORY = """
    /// <summary>The memory without its element type.</summary>
    public GpuMemory Allocation
    {
      get
      {
        RequireUsable();
        return allocation;
      }
    }

    /// <summary>Number of bytes.</summary>
    public long Size { get { return Allocation.Size; } }

    /// <summary>The whole memory, as an operand of $used.</summary>
    public GpuRange Range { get { return Allocation.Range; } }

    /// <summary>Some elements, as an operand of $used.</summary>
    public GpuRange<T> Slice(long start, long length)
    {
      Elements<T>.RequireInside(Length, start, length, nameof(length));
      return new GpuRange<T>(allocation.Slice(start * Elements<T>.Size, length * Elements<T>.Size));
    }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return allocation.IsDisposed; } }

    /// <summary>Its name, elements and device.</summary>
    public override string ToString()
    {
      var text = new Printed("$name<" + typeof(T).Name + ">").Add(nameof(Length), $count);
      return allocation.Handle.Info.Print(text, false).AddIf(nameof(IsDisposed), IsDisposed).ToString();
    }
"""
FILL_TYPED = """
    /// <summary>$fill elements with a value${they}.</summary>
    /// <exception cref="ArgumentException">The bytes of the value do not repeat after 1, 2 or 4.</exception>
    public void Fill<T>($kind<T> destination, T value)
$where    {
      handle.Usable();
      if (destination == null) throw new ArgumentNullException(nameof(destination));
      Fill(destination.Slice(0, destination.Length), value);
    }
"""
COPIES_AND_FILLS = """
    /// <summary>$copy bytes${they_are}. Both ranges must have the same size.</summary>
    public void Copy(GpuRange destination, GpuRange source, CopyOptions options = default(CopyOptions))
    {
      Transfer.Copy($handles, destination, source, options);
    }

    /// <summary>$copy a rectangle of bytes${it_is}.</summary>
    public void Copy2D(GpuRange destination, long destinationPitch, GpuRange source, long sourcePitch, long width,
                       long height, CopyOptions options = default(CopyOptions))
    {
      Transfer.Copy2D($handles, destination, destinationPitch, source, sourcePitch, width, height, options);
    }

    /// <summary>$fill elements with a value${they}.</summary>
    /// <exception cref="ArgumentException">The bytes of the value do not repeat after 1, 2 or 4.</exception>
    public void Fill<T>(GpuRange<T> destination, T value)
$where    {
      int valueSize;
      uint bits = Elements<T>.Bits(value, out valueSize);
      Fill((GpuRange)destination, bits, valueSize);
    }

    /// <summary>$fill memory with a repeated value of 1, 2 or 4 bytes${it}.</summary>
    /// <param name="destination">The memory.</param>
    /// <param name="value">The value, which must fit into its bytes.</param>
    /// <param name="valueSize">Bytes of the value; 0 means those of an element of typed memory, and else 1.</param>
    /// <exception cref="ArgumentOutOfRangeException">The value has more bytes.</exception>
    public void Fill(GpuRange destination, uint value, int valueSize = 0)
    {
      Transfer.Fill($handles, destination, value, valueSize);
    }

    /// <summary>$fill a rectangle with a repeated value of 1, 2 or 4 bytes${it}.</summary>
    /// <param name="destination">The memory, whose first byte is that of the rectangle.</param>
    /// <param name="pitch">Bytes from one row to the next.</param>
    /// <param name="width">Bytes of a row.</param>
    /// <param name="height">Number of rows.</param>
    /// <param name="value">The value, which must fit into its bytes.</param>
    /// <param name="valueSize">Bytes of the value; 0 means those of an element of typed memory, and else 1.</param>
    /// <exception cref="ArgumentOutOfRangeException">The value has more bytes.</exception>
    public void Fill2D(GpuRange destination, long pitch, long width, long height, uint value, int valueSize = 0)
    {
      Transfer.Fill2D($handles, destination, pitch, width, height, value, valueSize);
    }
"""


def made(template, **words):
    text = Template(template.removeprefix("\n")).substitute(words, where=CONSTRAINT)
    return re.sub(r"    /// <summary>\n    /// (.*)\n    /// </summary>\n|    /// <summary>(.*)</summary>\n",
                  lambda match: summary(match[1] or match[2], "    ", str), text)


def handle_of(interface, name):
    """What each object has: its handle, its owner and its information."""
    noun, owned, info, printed = OBJECTS[name]
    owner = "Device" if "evice" in owned else "Instance"
    yield made(OBJECT, name=name, kind=f"{noun.capitalize()}Handle", owner=owner, field=owner.lower(), owned=owned, printed=printed)
    if info:
        struct = f"gpumem_{noun}_info"
        if not interface.struct(struct):
            raise description.Unreadable(f"generate_csharp_objects.py: no header has {struct}")
        yield made(INFO, noun=noun, info=info, cls=CLASSES[struct][0])


def operand(name):
    """The parts of an operand, and copies between it and arrays."""
    noun, place, instance, offsets, methods = OPERANDS[name]
    yield made(SLICE, noun=noun, use="copy" if noun == "message" else "copy or fill", more=" Every byte must be mapped." * (noun == "range"))
    waits = noun == "block"
    begin = "Waits for the work of the block's stream, copies" if waits else "Copies"
    for offset, at in (("0", place), ("offset", "an offset"))[:1 + offsets]:
        for method in methods:
            into = method == "CopyFrom"
            array = "source" if into else "destination"
            body = f"FromArray({instance}, Range, {offset}, source)" if into else f"ToArray({instance}, destination, Range, {offset})"
            body = f"{method}(0, {array})" if offsets and offset == "0" else f"Transfer.{body}"
            yield made(COPY, begin=begin, before="      handle.Usable().WaitForStream();\n" * waits, method=method, body=body,
                       given=f"{'long offset, ' * (offset != '0')}T[] {array}", what=f"an array to {at}" if into else f"from {at} to an array")
    if name in CONVERTED:
        yield made(CONVERT, cls=name, noun=noun, used="a copy or fill", range=f"{noun}.Range")


def view(name):
    """The elements of memory, for the CPU."""
    check, pointer, who, until, more = VIEWS[name]
    yield made(VIEW, check=check, pointer=pointer, who=who, more=more, used=f", for use {until}" if until else "",
               override="" if until else "override ")
    if until:
        yield made(POINTER, until=until)


def typed(name):
    """Memory as elements of a type."""
    used, count = TYPED[name]
    yield made(TYPED_MEMORY, name=name, used=used, count=count)
    yield made(CONVERT, cls=f"{name}<T>", noun="memory", used=used, range="new GpuRange<T>(memory.Range)")


def work(name):
    """Copies and fills, which an instance makes and a stream enqueues."""
    handles, copy, fill, they, it = WORK[name]
    yield made(COPIES_AND_FILLS, handles=handles, copy=copy, fill=fill, they_are=they.format("copied"), it_is=it.format("copied"),
               they=they.format("filled"), it=it.format("filled"))
    for kind in TYPED:
        yield made(FILL_TYPED, kind=kind, fill=fill, they=they.format("filled"))


def objects(interface):
    parts = {}
    for names, make, generic in ((OBJECTS, lambda name: handle_of(interface, name), ""), (OPERANDS, operand, ""), (VIEWS, view, "<T>"),
                                 (TYPED, typed, "<T>"), (WORK, work, "")):
        for name in names:
            parts.setdefault(name + generic, []).extend(make(name))
    return ("// What objects have alike. Each class is in a file of its own, too, which says what it is.\n\n"
            "using System;\n\nnamespace GpuMem\n{\n"
            + "\n".join(f"  partial class {name}\n  {{\n" + "\n".join(texts) + "  }\n" for name, texts in parts.items()) + "}\n")
