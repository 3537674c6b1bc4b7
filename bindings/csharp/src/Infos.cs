// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Information and counters that the library returns, as plain values.

using System;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>Result of a probe.</summary>
  public sealed unsafe class ProbeInfo
  {
    internal ProbeInfo(gpumem_probe_info* info)
    {
      Backend = (Backend)info->backend;
      DriverVersion = info->driver_version;
      DeviceCount = (int)info->device_count;
      FallbackStatus = (Status)info->fallback_status;
      FallbackReason = Text.Read(info->fallback_reason, 256);
      Name = Text.Read(info->name, 64);
    }

    /// <summary>The backend that an open would use.</summary>
    public Backend Backend { get; private set; }

    /// <summary>Driver version in the driver's own counting (13000 is 13.0); 0 for host.</summary>
    public int DriverVersion { get; private set; }

    /// <summary>Number of devices that an open would find.</summary>
    public int DeviceCount { get; private set; }

    /// <summary>
    /// Why <see cref="Backend.Any"/> would use the host backend: the status of the cuda backend.
    /// <see cref="Status.Success"/> if it would not fall back, or if a backend was named.
    /// </summary>
    public Status FallbackStatus { get; private set; }

    /// <summary>The same as one line of text; empty if there is no fallback.</summary>
    public string FallbackReason { get; private set; }

    /// <summary>For people, such as <c>CUDA driver 13.0</c>.</summary>
    public string Name { get; private set; }
  }

  /// <summary>Information about an open instance.</summary>
  public sealed unsafe class InstanceInfo
  {
    internal InstanceInfo(gpumem_instance_info* info)
    {
      Backend = (Backend)info->backend;
      DriverVersion = info->driver_version;
      DeviceCount = (int)info->device_count;
      Strict = info->strict != 0;
      PinBudget = info->pin_budget;
      FallbackStatus = (Status)info->fallback_status;
      FallbackReason = Text.Read(info->fallback_reason, 256);
      Name = Text.Read(info->name, 64);
    }

    /// <summary>The backend that is open: cuda or host.</summary>
    public Backend Backend { get; private set; }

    /// <summary>Driver version in the driver's own counting; 0 for host.</summary>
    public int DriverVersion { get; private set; }

    /// <summary>Number of devices.</summary>
    public int DeviceCount { get; private set; }

    /// <summary>The host backend enforces its rules with faults and tracking.</summary>
    public bool Strict { get; private set; }

    /// <summary>Limit on page-locked bytes that live at once; 0 means no limit.</summary>
    public ulong PinBudget { get; private set; }

    /// <summary>
    /// Why <see cref="Backend.Any"/> opened the host backend: the status of the cuda backend.
    /// <see cref="Status.Success"/> if it did not fall back, or if a backend was named.
    /// </summary>
    public Status FallbackStatus { get; private set; }

    /// <summary>The same as one line of text; empty if there was no fallback.</summary>
    public string FallbackReason { get; private set; }

    /// <summary>As given at open.</summary>
    public string Name { get; private set; }
  }

  /// <summary>Information about a device.</summary>
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

  /// <summary>The answer to a capability query.</summary>
  public sealed unsafe class CapabilityInfo
  {
    internal CapabilityInfo(gpumem_capability_info* info)
    {
      Capability = (Capability)info->capability;
      Type = (AnswerType)info->type;
      Value = info->value;
      Source = (AnswerSource)info->source;
      Status = (Status)info->status;
      NativeDomain = (NativeDomain)info->native_domain;
      NativeCode = info->native_code;
      Name = Text.Read(info->name, 48);
      Reason = Text.Read(info->reason, 256);
    }

    /// <summary>The capability that was queried.</summary>
    public Capability Capability { get; private set; }

    /// <summary>Type of <see cref="Value"/>.</summary>
    public AnswerType Type { get; private set; }

    /// <summary>The answer as a number.</summary>
    public ulong Value { get; private set; }

    /// <summary>The answer as yes, no or emulated; null if it is a number.</summary>
    public CapabilityAnswer? Answer
    {
      get { return Type == AnswerType.YesNo ? (CapabilityAnswer?)Value : null; }
    }

    /// <summary>Whether it works, possibly emulated; for a number, whether it is not 0.</summary>
    public bool IsAvailable { get { return Value != 0; } }

    /// <summary>How the library found the answer.</summary>
    public AnswerSource Source { get; private set; }

    /// <summary>Status of a call that needs the capability.</summary>
    public Status Status { get; private set; }

    /// <summary>What <see cref="NativeCode"/> is a code of.</summary>
    public NativeDomain NativeDomain { get; private set; }

    /// <summary>Native code of a failed trial; 0 if there was none.</summary>
    public int NativeCode { get; private set; }

    /// <summary>Such as <c>pin.map_host</c>.</summary>
    public string Name { get; private set; }

    /// <summary>One line: what the answer is based on, or why not.</summary>
    public string Reason { get; private set; }
  }

  /// <summary>Information about an allocation or registration.</summary>
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

    /// <summary>Kind of memory.</summary>
    public MemoryKind Kind { get; private set; }

    /// <summary>Node that the pages lie on, with <see cref="MemoryFlags.NumaNode"/>; otherwise -1.</summary>
    public int NumaNode { get; private set; }

    /// <summary>Number of the device given at creation.</summary>
    public int DeviceOrdinal { get; private set; }

    /// <summary>Address for the CPU; zero for device memory.</summary>
    public IntPtr HostPointer { get; private set; }

    /// <summary>Address for devices; zero if the memory has none.</summary>
    public IntPtr DevicePointer { get; private set; }

    /// <summary>Bytes requested: the only ones that may be used.</summary>
    public ulong Size { get; private set; }

    /// <summary>Bytes charged.</summary>
    public ulong GrantedSize { get; private set; }

    /// <summary>Alignment requested; 0 if none.</summary>
    public ulong Alignment { get; private set; }

    /// <summary>Required and preferred properties together.</summary>
    public MemoryFlags RequestedFlags { get; private set; }

    /// <summary>Properties of the memory; they contain the required ones.</summary>
    public MemoryFlags GrantedFlags { get; private set; }

    /// <summary>Number of this allocation, unique in the process and never reused.</summary>
    public ulong BufferId { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }
  }

  /// <summary>Information about an address.</summary>
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
      IsOfInstance = info->memory != IntPtr.Zero;
    }

    /// <summary>Kind of memory.</summary>
    public MemoryKind Kind { get; private set; }

    /// <summary>Where its bytes lie.</summary>
    public Location Location { get; private set; }

    /// <summary>Device ordinal or NUMA node of the location; -1 if it has none.</summary>
    public int LocationId { get; private set; }

    /// <summary>Device that the memory was allocated or registered for; -1 if none.</summary>
    public int DeviceOrdinal { get; private set; }

    /// <summary>Address of the same byte for the CPU; zero if none.</summary>
    public IntPtr HostPointer { get; private set; }

    /// <summary>Address of the same byte for devices; zero if none.</summary>
    public IntPtr DevicePointer { get; private set; }

    /// <summary>First byte of the object, in the address range of the query; zero if unknown.</summary>
    public IntPtr Base { get; private set; }

    /// <summary>Size of the object in bytes; 0 if unknown.</summary>
    public ulong Size { get; private set; }

    /// <summary>Number of the allocation, never reused; 0 if none.</summary>
    public ulong BufferId { get; private set; }

    /// <summary>Properties of the memory.</summary>
    public MemoryFlags GrantedFlags { get; private set; }

    /// <summary>Whether the memory was made through the instance of the query.</summary>
    public bool IsOfInstance { get; private set; }
  }

  /// <summary>Information about a stream.</summary>
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

    /// <summary>Whether it wraps one that other code created.</summary>
    public bool Wrapped { get; private set; }

    /// <summary>Priority granted.</summary>
    public int Priority { get; private set; }

    /// <summary>The <c>CUstream</c>, for use by other code.</summary>
    public IntPtr NativeStream { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }
  }

  /// <summary>Information about an event.</summary>
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

    /// <summary>Whether it wraps one that other code created.</summary>
    public bool Wrapped { get; private set; }

    /// <summary>Its flags.</summary>
    public EventFlags Flags { get; private set; }

    /// <summary>The <c>CUevent</c>, for use by other code; zero on host.</summary>
    public IntPtr NativeEvent { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }
  }

  /// <summary>Counters of one kind of memory.</summary>
  public sealed unsafe class KindStats
  {
    internal KindStats(gpumem_kind_stats* stats)
    {
      LiveCount = stats->live_count;
      LiveBytes = stats->live_bytes;
      PeakCount = stats->peak_count;
      PeakBytes = stats->peak_bytes;
      TotalCount = stats->total_count;
      TotalBytes = stats->total_bytes;
    }

    /// <summary>Live objects.</summary>
    public ulong LiveCount { get; private set; }

    /// <summary>Their sizes, as requested.</summary>
    public ulong LiveBytes { get; private set; }

    /// <summary>Largest <see cref="LiveCount"/> since the instance was opened or the peaks were reset.</summary>
    public ulong PeakCount { get; private set; }

    /// <summary>Largest <see cref="LiveBytes"/> since then.</summary>
    public ulong PeakBytes { get; private set; }

    /// <summary>Objects created since the instance was opened.</summary>
    public ulong TotalCount { get; private set; }

    /// <summary>Their sizes.</summary>
    public ulong TotalBytes { get; private set; }
  }

  /// <summary>Counters of an instance.</summary>
  public sealed unsafe class InstanceStats
  {
    internal InstanceStats(gpumem_stats* stats)
    {
      LiveCount = stats->live_count;
      LiveBytes = stats->live_bytes;
      Streams = stats->streams;
      Events = stats->events;
    }

    /// <summary>Live memory objects of all kinds.</summary>
    public ulong LiveCount { get; private set; }

    /// <summary>Their sizes, as requested.</summary>
    public ulong LiveBytes { get; private set; }

    /// <summary>Live streams, including wrapped ones.</summary>
    public ulong Streams { get; private set; }

    /// <summary>Live events, including wrapped ones.</summary>
    public ulong Events { get; private set; }

    /// <summary>Live memory objects, streams and events together.</summary>
    public ulong LiveObjects { get { return LiveCount + Streams + Events; } }
  }
}
