// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where memory lies or should lie, and what a processor may do with it.

using System;
using System.Diagnostics.CodeAnalysis;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// A place for memory, or a processor: a device, which converts to it, or the host. The default is no place.
  /// </summary>
  public struct MemoryLocation : IEquatable<MemoryLocation>
  {
    readonly GpuInstance instance;
    readonly int id;

    /// <summary>Describes a location.</summary>
    /// <param name="kind">Kind of location.</param>
    /// <param name="id">Number of the device or NUMA node; ignored otherwise.</param>
    public MemoryLocation(Location kind, int id = 0) : this(null, kind, id) { }

    MemoryLocation(GpuInstance instance, Location kind, int id)
    {
      this.instance = instance;
      this.id = id;
      Kind = kind;
    }

    /// <summary>The host, any NUMA node; as a processor, the CPU.</summary>
    public static MemoryLocation Host { get { return new MemoryLocation(Location.Host); } }

    /// <summary>The NUMA node of the calling thread; only for prefetches and advice.</summary>
    public static MemoryLocation CurrentHostNode { get { return new MemoryLocation(Location.HostNumaCurrent); } }

    /// <summary>A NUMA node of the host.</summary>
    public static MemoryLocation HostNode(int node) { return new MemoryLocation(Location.HostNuma, node); }

    /// <summary>A device.</summary>
    public static implicit operator MemoryLocation(GpuDevice device)
    {
      if (device == null) throw new ArgumentNullException(nameof(device));
      return new MemoryLocation(device.Instance, Location.Device, device.Ordinal);
    }

    /// <summary>Kind of location.</summary>
    public Location Kind { get; }

    /// <summary>Number of the device or NUMA node; -1 if it has none.</summary>
    public int Id { get { return Kind == Location.Device || Kind == Location.HostNuma ? id : -1; } }

    /// <summary>Whether both are the same location.</summary>
    public bool Equals(MemoryLocation other) { return Kind == other.Kind && Id == other.Id; }

    /// <summary>Whether both are the same location.</summary>
    public override bool Equals([AllowNull] object other) { return other is MemoryLocation && Equals((MemoryLocation)other); }

    /// <summary>Agrees with <see cref="Equals(MemoryLocation)"/>.</summary>
    public override int GetHashCode() { return (int)Kind * 397 ^ Id; }

    /// <summary>Whether both are the same location.</summary>
    public static bool operator ==(MemoryLocation one, MemoryLocation other) { return one.Equals(other); }

    /// <summary>Whether they are different locations.</summary>
    public static bool operator !=(MemoryLocation one, MemoryLocation other) { return !one.Equals(other); }

    /// <summary>Its kind and number.</summary>
    public override string ToString()
    {
      return new Printed(nameof(MemoryLocation)).Add(nameof(Kind), Kind).Add(nameof(Id), Id).ToString();
    }

    /// <summary>The number for a call of an instance. Devices of another one have numbers of their own.</summary>
    internal int IdIn(GpuInstance of)
    {
      if (instance != null && instance.Handle.Raw != of.Handle.Raw)
      {
        throw new ArgumentException("the device belongs to another instance; use a device of this one");
      }
      return Kind == Location.Device || Kind == Location.HostNuma ? id : 0;
    }

    /// <summary>The number for memory that a device makes: on itself, for which it is 0, or on the host.</summary>
    internal int IdFor(GpuDevice device)
    {
      int number = IdIn(device.Instance);
      if (Kind != Location.Device) return number;
      if (number == device.Ordinal) return 0;
      throw new ArgumentException("the location is device " + number + "; call the method of that device");
    }
  }

  /// <summary>A range of managed memory and where to move it.</summary>
  public struct PrefetchRange
  {
    /// <summary>Describes a prefetch.</summary>
    public PrefetchRange(GpuRange range, MemoryLocation location)
    {
      Range = range;
      Location = location;
    }

    /// <summary>The memory.</summary>
    public GpuRange Range { get; }

    /// <summary>Where to move it.</summary>
    public MemoryLocation Location { get; }

    /// <summary>The range and the location.</summary>
    public override string ToString()
    {
      return new Printed(nameof(PrefetchRange)).Add(nameof(Range), Range).Add(nameof(Location), Location).ToString();
    }

    internal unsafe gpumem_managed_range Describe(GpuInstance instance)
    {
      gpumem_managed_range native = gpumem_managed_range.Sized();
      native.pointer = Range.Pointer;
      native.size = (ulong)Range.Size;
      native.location = (int)Location.Kind;
      native.location_id = Location.IdIn(instance);
      return native;
    }
  }

  /// <summary>What a processor may do with mapped memory.</summary>
  public struct ProcessorAccess
  {
    /// <summary>Describes the access of a processor.</summary>
    /// <param name="processor">A device, or <see cref="MemoryLocation.Host"/> for the CPU.</param>
    /// <param name="access">What it may do.</param>
    public ProcessorAccess(MemoryLocation processor, Access access)
    {
      Processor = processor;
      Access = access;
    }

    /// <summary>A device, or <see cref="MemoryLocation.Host"/> for the CPU.</summary>
    public MemoryLocation Processor { get; }

    /// <summary>What it may do.</summary>
    public Access Access { get; }

    /// <summary>The processor and its access.</summary>
    public override string ToString()
    {
      return new Printed(nameof(ProcessorAccess)).Add(nameof(Processor), Processor).Add(nameof(Access), Access).ToString();
    }

    internal unsafe gpumem_access_desc Describe(GpuInstance instance)
    {
      gpumem_access_desc native = gpumem_access_desc.Sized();
      native.location = (int)Processor.Kind;
      native.location_id = Processor.IdIn(instance);
      native.access = (int)Access;
      return native;
    }
  }
}
