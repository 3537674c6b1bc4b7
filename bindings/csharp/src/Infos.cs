// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Answers of the library, as plain values.

using System;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>What a probe found out about a backend.</summary>
  public sealed unsafe class ProbeInfo
  {
    internal ProbeInfo(gpumem_probe_info* info)
    {
      Backend = (Backend)info->backend;
      DriverVersion = info->driver_version;
      DeviceCount = (int)info->device_count;
      Name = Text.Read(info->name, 64);
    }

    /// <summary>The backend that an open would use.</summary>
    public Backend Backend { get; private set; }

    /// <summary>Version as the driver counts (13000 is 13.0); 0 for host.</summary>
    public int DriverVersion { get; private set; }

    /// <summary>Number of devices that an open would offer.</summary>
    public int DeviceCount { get; private set; }

    /// <summary>For people, such as <c>CUDA driver 13.0</c>.</summary>
    public string Name { get; private set; }
  }

  /// <summary>What is known about an open instance.</summary>
  public sealed unsafe class InstanceInfo
  {
    internal InstanceInfo(gpumem_instance_info* info)
    {
      Backend = (Backend)info->backend;
      DriverVersion = info->driver_version;
      DeviceCount = (int)info->device_count;
      Strict = info->strict != 0;
      PinBudget = info->pin_budget;
      Name = Text.Read(info->name, 64);
    }

    /// <summary>cuda or host.</summary>
    public Backend Backend { get; private set; }

    /// <summary>Version as the driver counts; 0 for host.</summary>
    public int DriverVersion { get; private set; }

    /// <summary>Number of devices.</summary>
    public int DeviceCount { get; private set; }

    /// <summary>The host backend enforces its rules by faults and tracking.</summary>
    public bool Strict { get; private set; }

    /// <summary>Page-locked bytes that may live at once; 0 means no limit.</summary>
    public ulong PinBudget { get; private set; }

    /// <summary>As given at open.</summary>
    public string Name { get; private set; }
  }

  /// <summary>What is known about a device.</summary>
  public sealed unsafe class DeviceInfo
  {
    internal DeviceInfo(gpumem_device_info* info)
    {
      Ordinal = (int)info->ordinal;
      NumaNode = info->numa_node;
      TotalBytes = info->total_bytes;
      Uuid = new byte[16];
      for (int i = 0; i < Uuid.Length; ++i) Uuid[i] = info->uuid[i];
      PciDomain = (int)info->pci_domain;
      PciBus = (int)info->pci_bus;
      PciDevice = (int)info->pci_device;
      ComputeMajor = info->compute_major;
      ComputeMinor = info->compute_minor;
      Lost = info->lost != 0;
      PciId = Text.Read(info->pci_id, 32);
      Name = Text.Read(info->name, 256);
    }

    /// <summary>Its number in the instance.</summary>
    public int Ordinal { get; private set; }

    /// <summary>Nearest NUMA node of the host; -1 if unknown.</summary>
    public int NumaNode { get; private set; }

    /// <summary>Memory of the device.</summary>
    public ulong TotalBytes { get; private set; }

    /// <summary>16 bytes, the same in every process.</summary>
    public byte[] Uuid { get; private set; }

    /// <summary>PCI domain; 0 for emulated devices.</summary>
    public int PciDomain { get; private set; }

    /// <summary>PCI bus; 0 for emulated devices.</summary>
    public int PciBus { get; private set; }

    /// <summary>PCI device; 0 for emulated devices.</summary>
    public int PciDevice { get; private set; }

    /// <summary>Major number of the compute capability; 0 for emulated devices.</summary>
    public int ComputeMajor { get; private set; }

    /// <summary>Minor number of the compute capability.</summary>
    public int ComputeMinor { get; private set; }

    /// <summary>The device is lost.</summary>
    public bool Lost { get; private set; }

    /// <summary>Such as <c>0000:65:00.0</c>; empty for emulated devices.</summary>
    public string PciId { get; private set; }

    /// <summary>Such as <c>NVIDIA H200</c>.</summary>
    public string Name { get; private set; }
  }

  /// <summary>The answer to a capability question.</summary>
  public sealed unsafe class CapabilityInfo
  {
    internal CapabilityInfo(gpumem_capability_info* info)
    {
      Capability = (Capability)info->capability;
      Type = (CapabilityType)info->type;
      Value = info->value;
      Source = (CapabilitySource)info->source;
      Status = (Status)info->status;
      NativeDomain = (NativeDomain)info->native_domain;
      NativeCode = info->native_code;
      Name = Text.Read(info->name, 48);
      Reason = Text.Read(info->reason, 256);
    }

    /// <summary>What was asked.</summary>
    public Capability Capability { get; private set; }

    /// <summary>What <see cref="Value"/> counts.</summary>
    public CapabilityType Type { get; private set; }

    /// <summary>The answer as a number.</summary>
    public ulong Value { get; private set; }

    /// <summary>It works, or is emulated; for numbers, the number is not 0.</summary>
    public bool IsAvailable { get { return Value != 0; } }

    /// <summary>How it was found.</summary>
    public CapabilitySource Source { get; private set; }

    /// <summary>What a call that needs it would return.</summary>
    public Status Status { get; private set; }

    /// <summary>Whose number <see cref="NativeCode"/> is.</summary>
    public NativeDomain NativeDomain { get; private set; }

    /// <summary>Code that the trial got.</summary>
    public int NativeCode { get; private set; }

    /// <summary>Such as <c>pin.map_host</c>.</summary>
    public string Name { get; private set; }

    /// <summary>How the answer was established, or why not.</summary>
    public string Reason { get; private set; }
  }

  /// <summary>What is known about an allocation or registration.</summary>
  public sealed unsafe class MemoryInfo
  {
    internal MemoryInfo(gpumem_memory_info* info)
    {
      Kind = (MemoryKind)info->kind;
      NumaNode = info->numa_node;
      DeviceOrdinal = (int)info->device_ordinal;
      HostPointer = info->host_pointer;
      DevicePointer = info->device_pointer;
      Size = info->size;
      GrantedSize = info->granted_size;
      Alignment = info->alignment;
      RequestedFlags = (MemoryFlags)info->requested_flags;
      GrantedFlags = (MemoryFlags)info->granted_flags;
      BufferId = info->buffer_id;
      Name = Text.Read(info->name, 64);
    }

    /// <summary>What it is.</summary>
    public MemoryKind Kind { get; private set; }

    /// <summary>Node that the pages lie on, if one was asked for; otherwise -1.</summary>
    public int NumaNode { get; private set; }

    /// <summary>Number of the device given at creation.</summary>
    public int DeviceOrdinal { get; private set; }

    /// <summary>Address for the CPU; zero for device memory.</summary>
    public IntPtr HostPointer { get; private set; }

    /// <summary>Address for devices; zero if the memory has none.</summary>
    public IntPtr DevicePointer { get; private set; }

    /// <summary>Bytes asked for: the only ones that may be used.</summary>
    public ulong Size { get; private set; }

    /// <summary>Bytes charged.</summary>
    public ulong GrantedSize { get; private set; }

    /// <summary>Alignment asked for; 0 if none.</summary>
    public ulong Alignment { get; private set; }

    /// <summary>Required and preferred properties together.</summary>
    public MemoryFlags RequestedFlags { get; private set; }

    /// <summary>What the memory really has.</summary>
    public MemoryFlags GrantedFlags { get; private set; }

    /// <summary>Number of this allocation; never used again in the process.</summary>
    public ulong BufferId { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }
  }

  /// <summary>What is known about an address.</summary>
  public sealed unsafe class PointerInfo
  {
    internal PointerInfo(gpumem_pointer_info* info)
    {
      Kind = (MemoryKind)info->kind;
      Location = (Location)info->location;
      LocationId = info->location_id;
      DeviceOrdinal = info->device_ordinal;
      HostPointer = info->host_pointer;
      DevicePointer = info->device_pointer;
      Base = info->@base;
      Size = info->size;
      BufferId = info->buffer_id;
      GrantedFlags = (MemoryFlags)info->granted_flags;
      Access = (Access)info->access;
      AccessDevices = info->access_devices;
      IsOfInstance = info->memory != IntPtr.Zero;
    }

    /// <summary>What it is.</summary>
    public MemoryKind Kind { get; private set; }

    /// <summary>Where its bytes lie.</summary>
    public Location Location { get; private set; }

    /// <summary>Device ordinal or NUMA node of the location; -1 if it has none.</summary>
    public int LocationId { get; private set; }

    /// <summary>Device of the allocation or registration; -1 if none.</summary>
    public int DeviceOrdinal { get; private set; }

    /// <summary>The same byte for the CPU; zero if none.</summary>
    public IntPtr HostPointer { get; private set; }

    /// <summary>The same byte for devices; zero if none.</summary>
    public IntPtr DevicePointer { get; private set; }

    /// <summary>First byte of the object; zero if unknown.</summary>
    public IntPtr Base { get; private set; }

    /// <summary>Bytes of the object; 0 if unknown.</summary>
    public ulong Size { get; private set; }

    /// <summary>Number of the allocation; 0 if none.</summary>
    public ulong BufferId { get; private set; }

    /// <summary>Its properties.</summary>
    public MemoryFlags GrantedFlags { get; private set; }

    /// <summary>What the devices in <see cref="AccessDevices"/> may do.</summary>
    public Access Access { get; private set; }

    /// <summary>Bit n stands for the device with ordinal n.</summary>
    public ulong AccessDevices { get; private set; }

    /// <summary>It was made through the instance that was asked.</summary>
    public bool IsOfInstance { get; private set; }
  }

  /// <summary>What is known about a stream.</summary>
  public sealed unsafe class StreamInfo
  {
    internal StreamInfo(gpumem_stream_info* info)
    {
      DeviceOrdinal = (int)info->device_ordinal;
      Wrapped = info->wrapped != 0;
      Priority = info->priority;
      NativeStream = info->native_stream;
      Name = Text.Read(info->name, 64);
    }

    /// <summary>Number of its device.</summary>
    public int DeviceOrdinal { get; private set; }

    /// <summary>Other code made it.</summary>
    public bool Wrapped { get; private set; }

    /// <summary>Priority granted.</summary>
    public int Priority { get; private set; }

    /// <summary>The <c>CUstream</c>, for use by other code.</summary>
    public IntPtr NativeStream { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }
  }

  /// <summary>What is known about an event.</summary>
  public sealed unsafe class EventInfo
  {
    internal EventInfo(gpumem_event_info* info)
    {
      DeviceOrdinal = (int)info->device_ordinal;
      Wrapped = info->wrapped != 0;
      Flags = (EventFlags)info->flags;
      NativeEvent = info->native_event;
      Name = Text.Read(info->name, 64);
    }

    /// <summary>Number of its device.</summary>
    public int DeviceOrdinal { get; private set; }

    /// <summary>Other code made it.</summary>
    public bool Wrapped { get; private set; }

    /// <summary>Flags granted.</summary>
    public EventFlags Flags { get; private set; }

    /// <summary>The <c>CUevent</c>, for use by other code; zero on host.</summary>
    public IntPtr NativeEvent { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }
  }

  /// <summary>Counts of one kind of memory.</summary>
  public struct KindStats
  {
    internal KindStats(gpumem_stats_kind kind) : this()
    {
      LiveCount = kind.live_count;
      LiveBytes = kind.live_bytes;
      PeakCount = kind.peak_count;
      PeakBytes = kind.peak_bytes;
      TotalCount = kind.total_count;
      TotalBytes = kind.total_bytes;
    }

    /// <summary>Objects that live.</summary>
    public ulong LiveCount { get; private set; }

    /// <summary>Their sizes, as asked for.</summary>
    public ulong LiveBytes { get; private set; }

    /// <summary>Most objects that lived at once since open or the last reset.</summary>
    public ulong PeakCount { get; private set; }

    /// <summary>Most bytes that lived at once.</summary>
    public ulong PeakBytes { get; private set; }

    /// <summary>Objects made since open.</summary>
    public ulong TotalCount { get; private set; }

    /// <summary>Bytes made since open.</summary>
    public ulong TotalBytes { get; private set; }
  }

  /// <summary>Counts of an instance.</summary>
  public sealed unsafe class InstanceStats
  {
    internal InstanceStats(gpumem_stats* stats)
    {
      Device = new KindStats(stats->device);
      Pinned = new KindStats(stats->pinned);
      Registered = new KindStats(stats->registered);
      Streams = stats->streams;
      Events = stats->events;
      FileDescriptors = stats->file_descriptors;
    }

    /// <summary>Device memory.</summary>
    public KindStats Device { get; private set; }

    /// <summary>Pinned allocations.</summary>
    public KindStats Pinned { get; private set; }

    /// <summary>Registered memory.</summary>
    public KindStats Registered { get; private set; }

    /// <summary>Streams that live.</summary>
    public ulong Streams { get; private set; }

    /// <summary>Events that live.</summary>
    public ulong Events { get; private set; }

    /// <summary>File descriptors that the instance holds open.</summary>
    public ulong FileDescriptors { get; private set; }

    /// <summary>Everything that lives.</summary>
    public ulong LiveObjects
    {
      get { return Device.LiveCount + Pinned.LiveCount + Registered.LiveCount + Streams + Events; }
    }
  }
}
