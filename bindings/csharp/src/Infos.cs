// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What the generated classes of information have beside the fields of their structs.

using System;
using System.Collections.Generic;
using System.Diagnostics.CodeAnalysis;
using GpuMem.Interop;

namespace GpuMem
{
  public sealed unsafe partial class CapabilityInfo
  {
    /// <summary>The answer as yes, no or emulated; null if it is a number.</summary>
    public CapabilityAnswer? Answer
    {
      get { return Type == AnswerType.YesNo ? (CapabilityAnswer?)Value : null; }
    }

    /// <summary>Whether it works, possibly emulated; for a number, whether it is not 0.</summary>
    public bool IsAvailable { get { return Value != 0; } }
  }

  public sealed unsafe partial class MemoryInfo
  {
    /// <summary>Adds what memory prints of itself.</summary>
    internal Printed Print(Printed text, bool whole)
    {
      if (whole) text.Add(nameof(Kind), Kind).Add(nameof(Size), Size);
      return text.Add("Device", DeviceOrdinal).AddIf(nameof(Name), Name);
    }

    /// <summary>Of memory of no bytes.</summary>
    internal MemoryInfo(MemoryKind kind, int device, MemoryFlags flags, string name)
    {
      Kind = kind;
      NumaNode = -1;
      DeviceOrdinal = device;
      RequestedFlags = GrantedFlags = flags;
      Name = name ?? "";
    }
  }

  public sealed unsafe partial class PointerInfo
  {
    void Complete(gpumem_pointer_info* info)
    {
      // A range and a block are no gpumem_memory.
      IsOfInstance = info->memory != IntPtr.Zero || Kind == MemoryKind.Virtual || Kind == MemoryKind.Pool;
      Buffer = BufferHandle.OwnerOf(info->buffer);
    }

    /// <summary>
    /// Buffer of this process in whose addresses it was, also behind its size and while it slept; else null.
    /// </summary>
    [MaybeNull]
    public GrowableBuffer Buffer { get; private set; }

    /// <summary>
    /// Whether the memory was made through the instance of the query, as an object of its own, a range, a buffer, or a block
    /// of a pool. A block of ordinary memory is like any other ordinary memory.
    /// </summary>
    public bool IsOfInstance { get; private set; }

    /// <summary>
    /// Whether the address was in a buffer: in the addresses that it has reserved, also behind its size and while it slept.
    /// </summary>
    public bool IsIn(GrowableBuffer buffer)
    {
      if (buffer == null) throw new ArgumentNullException(nameof(buffer));
      return buffer == Buffer;
    }
  }

  public sealed unsafe partial class UnifiedInfo
  {
    void Complete(gpumem_managed_info* info)
    {
      ulong mask = info->accessed_by_devices;
      var ordinals = new List<int>();
      for (int i = 0; i < 64; ++i) if ((mask >> i & 1) != 0) ordinals.Add(i);
      AccessedByDevices = ordinals.ToArray();
    }

    /// <summary>Numbers of the devices that are set as accessors of every page.</summary>
    public IReadOnlyList<int> AccessedByDevices { get; private set; }
  }

  public sealed unsafe partial class PhysicalInfo
  {
    /// <summary>Adds what physical memory prints of itself.</summary>
    internal Printed Print(Printed text)
    {
      return text.Add(nameof(Size), Size).Add(nameof(Location), Location).AddIf(nameof(Name), Name);
    }
  }

  public sealed unsafe partial class BufferInfo
  {
    void Complete(gpumem_buffer_info* info) { Range = info->range; }

    /// <summary>Adds what a buffer prints of itself.</summary>
    internal Printed Print(Printed text)
    {
      text.Add(nameof(Size), Size).Add(nameof(Location), Location);
      if (State != BufferState.Awake) text.Add(nameof(State), State);
      return text.AddIf(nameof(Name), Name);
    }

    /// <summary>The range that it is mapped in; zero if it is an ordinary allocation.</summary>
    internal IntPtr Range { get; private set; }
  }

  public sealed unsafe partial class MappingInfo
  {
    IntPtr range;

    void Complete(gpumem_mapping_info* info) { range = info->range; }

    /// <summary>Whether the mapping is in a range.</summary>
    public bool IsIn(AddressRange other)
    {
      if (other == null) throw new ArgumentNullException(nameof(other));
      return other.Handle.Value == range;
    }

    /// <summary>Whether the mapping is part of a buffer.</summary>
    public bool IsIn(GrowableBuffer buffer)
    {
      if (buffer == null) throw new ArgumentNullException(nameof(buffer));
      return buffer.Info.Range == range;
    }
  }

  public sealed unsafe partial class InstanceStats
  {
    /// <summary>Live memory objects, streams and events together.</summary>
    public long LiveObjects { get { return LiveCount + Streams + Events; } }
  }
}
