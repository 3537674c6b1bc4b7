// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Information and counters that the library returns, as plain values.

using System;
using System.Collections.Generic;
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
      FallbackReason = Words.Read(info->fallback_reason, 256);
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

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(ProbeInfo)).Add(nameof(Backend), Backend).Add(nameof(DriverVersion), DriverVersion)
          .Add(nameof(DeviceCount), DeviceCount).Add(nameof(FallbackStatus), FallbackStatus)
          .Add(nameof(FallbackReason), FallbackReason).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>What a copy between a file and memory has done.</summary>
  public sealed class FileCopied
  {
    internal FileCopied(long size, long direct)
    {
      Size = size;
      Direct = direct;
    }

    /// <summary>All bytes.</summary>
    public long Size { get; private set; }

    /// <summary>Bytes of them that bypassed the system's page cache.</summary>
    public long Direct { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(FileCopied)).Add(nameof(Size), Size).Add(nameof(Direct), Direct).ToString();
    }
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
      PinBudget = Sizes.FromNative(info->pin_budget);
      FallbackStatus = (Status)info->fallback_status;
      FallbackReason = Words.Read(info->fallback_reason, 256);
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
    public long PinBudget { get; private set; }

    /// <summary>
    /// Why <see cref="Backend.Any"/> opened the host backend: the status of the cuda backend.
    /// <see cref="Status.Success"/> if it did not fall back, or if a backend was named.
    /// </summary>
    public Status FallbackStatus { get; private set; }

    /// <summary>The same as one line of text; empty if there was no fallback.</summary>
    public string FallbackReason { get; private set; }

    /// <summary>As given at open.</summary>
    public string Name { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(InstanceInfo)).Add(nameof(Backend), Backend).Add(nameof(DriverVersion), DriverVersion)
          .Add(nameof(DeviceCount), DeviceCount).Add(nameof(Strict), Strict).Add(nameof(PinBudget), PinBudget)
          .Add(nameof(FallbackStatus), FallbackStatus).Add(nameof(FallbackReason), FallbackReason)
          .Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Information about a device.</summary>
  public sealed unsafe class DeviceInfo
  {
    internal DeviceInfo(gpumem_device_info* info)
    {
      Ordinal = (int)info->ordinal;
      NumaNode = info->numa_node;
      TotalBytes = Sizes.FromNative(info->total_bytes);
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
    public long TotalBytes { get; private set; }

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

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(DeviceInfo)).Add(nameof(Ordinal), Ordinal).Add(nameof(NumaNode), NumaNode)
          .Add(nameof(TotalBytes), TotalBytes).Add(nameof(Uuid), Uuid).Add(nameof(PciDomain), PciDomain)
          .Add(nameof(PciBus), PciBus).Add(nameof(PciDevice), PciDevice).Add(nameof(ComputeMajor), ComputeMajor)
          .Add(nameof(ComputeMinor), ComputeMinor).Add(nameof(Lost), Lost).Add(nameof(PciId), PciId)
          .Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>The answer to a capability query.</summary>
  public sealed unsafe class CapabilityInfo
  {
    internal CapabilityInfo(gpumem_capability_info* info)
    {
      Capability = (Capability)info->capability;
      Type = (AnswerType)info->type;
      Value = Sizes.FromNative(info->value);
      Source = (AnswerSource)info->source;
      Status = (Status)info->status;
      NativeDomain = (NativeDomain)info->native_domain;
      NativeCode = info->native_code;
      Name = Text.Read(info->name, 48);
      Reason = Words.Read(info->reason, 256);
    }

    /// <summary>The capability that was queried.</summary>
    public Capability Capability { get; private set; }

    /// <summary>Type of <see cref="Value"/>.</summary>
    public AnswerType Type { get; private set; }

    /// <summary>The answer as a number.</summary>
    public long Value { get; private set; }

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

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(CapabilityInfo)).Add(nameof(Capability), Capability).Add(nameof(Type), Type)
          .Add(nameof(Value), Value).Add(nameof(Answer), Answer).Add(nameof(IsAvailable), IsAvailable)
          .Add(nameof(Source), Source).Add(nameof(Status), Status).Add(nameof(NativeDomain), NativeDomain)
          .Add(nameof(NativeCode), NativeCode).Add(nameof(Name), Name).Add(nameof(Reason), Reason).ToString();
    }
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
      Size = Sizes.FromNative(info->size);
      GrantedSize = Sizes.FromNative(info->granted_size);
      Alignment = Sizes.FromNative(info->alignment);
      RequestedFlags = (MemoryFlags)info->requested_flags;
      GrantedFlags = (MemoryFlags)info->granted_flags;
      BufferId = info->buffer_id;
      Name = Text.Read(info->name, 64);
    }

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
    public long Size { get; private set; }

    /// <summary>Bytes charged.</summary>
    public long GrantedSize { get; private set; }

    /// <summary>Alignment requested; 0 if none.</summary>
    public long Alignment { get; private set; }

    /// <summary>Required and preferred properties together.</summary>
    public MemoryFlags RequestedFlags { get; private set; }

    /// <summary>Properties of the memory; they contain the required ones.</summary>
    public MemoryFlags GrantedFlags { get; private set; }

    /// <summary>Number of this allocation, unique in the process and never reused.</summary>
    public ulong BufferId { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(MemoryInfo)).Add(nameof(Kind), Kind).Add(nameof(NumaNode), NumaNode)
          .Add(nameof(DeviceOrdinal), DeviceOrdinal).Add(nameof(HostPointer), HostPointer)
          .Add(nameof(DevicePointer), DevicePointer).Add(nameof(Size), Size).Add(nameof(GrantedSize), GrantedSize)
          .Add(nameof(Alignment), Alignment).Add(nameof(RequestedFlags), RequestedFlags)
          .Add(nameof(GrantedFlags), GrantedFlags).Add(nameof(BufferId), BufferId).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Information about an address.</summary>
  public sealed unsafe class PointerInfo
  {
    readonly IntPtr buffer;

    internal PointerInfo(gpumem_pointer_info* info)
    {
      Kind = (MemoryKind)info->kind;
      Location = (Location)info->location;
      LocationId = info->location_id;
      DeviceOrdinal = info->device_ordinal;
      HostPointer = info->host_pointer;
      DevicePointer = info->device_pointer;
      Base = info->@base;
      Size = Sizes.FromNative(info->size);
      BufferId = info->buffer_id;
      GrantedFlags = (MemoryFlags)info->granted_flags;
      // A range and a block are no gpumem_memory.
      IsOfInstance = info->memory != IntPtr.Zero || Kind == MemoryKind.Virtual || Kind == MemoryKind.Pool;
      buffer = info->buffer;
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
    public long Size { get; private set; }

    /// <summary>Number of the allocation, never reused; 0 if none.</summary>
    public ulong BufferId { get; private set; }

    /// <summary>Properties of the memory.</summary>
    public MemoryFlags GrantedFlags { get; private set; }

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
      return buffer.Handle.Value == this.buffer;
    }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(PointerInfo)).Add(nameof(Kind), Kind).Add(nameof(Location), Location)
          .Add(nameof(LocationId), LocationId).Add(nameof(DeviceOrdinal), DeviceOrdinal)
          .Add(nameof(HostPointer), HostPointer).Add(nameof(DevicePointer), DevicePointer).Add(nameof(Base), Base)
          .Add(nameof(Size), Size).Add(nameof(BufferId), BufferId).Add(nameof(GrantedFlags), GrantedFlags)
          .Add(nameof(IsOfInstance), IsOfInstance).ToString();
    }
  }

  /// <summary>
  /// Information about a range of managed memory: at one moment, and true of every page of the range.
  /// </summary>
  public sealed unsafe class UnifiedInfo
  {
    internal UnifiedInfo(gpumem_managed_info* info)
    {
      ReadMostly = info->read_mostly != 0;
      PreferredLocation = new MemoryLocation((Location)info->preferred_location, info->preferred_location_id);
      LastPrefetchLocation = new MemoryLocation((Location)info->last_prefetch_location, info->last_prefetch_location_id);
      AccessedByHost = info->accessed_by_host != 0;
      ulong mask = info->accessed_by_devices;
      var ordinals = new List<int>();
      for (int i = 0; i < 64; ++i) if ((mask >> i & 1) != 0) ordinals.Add(i);
      AccessedByDevices = ordinals.ToArray();
    }

    /// <summary>Every page is read-mostly.</summary>
    public bool ReadMostly { get; private set; }

    /// <summary>
    /// Preferred location that all pages share; of kind <see cref="Location.None"/> if they differ or have none.
    /// </summary>
    public MemoryLocation PreferredLocation { get; private set; }

    /// <summary>
    /// Location that all pages were last asked to move to; of kind <see cref="Location.None"/> if they differ or one
    /// never was.
    /// </summary>
    public MemoryLocation LastPrefetchLocation { get; private set; }

    /// <summary>The CPU is set as an accessor of every page.</summary>
    public bool AccessedByHost { get; private set; }

    /// <summary>Numbers of the devices that are set as accessors of every page.</summary>
    public IReadOnlyList<int> AccessedByDevices { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(UnifiedInfo)).Add(nameof(ReadMostly), ReadMostly)
          .Add(nameof(PreferredLocation), PreferredLocation).Add(nameof(LastPrefetchLocation), LastPrefetchLocation)
          .Add(nameof(AccessedByHost), AccessedByHost).Add(nameof(AccessedByDevices), AccessedByDevices).ToString();
    }
  }

  /// <summary>Information about physical memory.</summary>
  public sealed unsafe class PhysicalInfo
  {
    internal PhysicalInfo(gpumem_physical_info* info)
    {
      Location = new MemoryLocation((Location)info->location, info->location_id);
      DeviceOrdinal = (int)info->device_ordinal;
      Imported = info->imported != 0;
      Size = Sizes.FromNative(info->size);
      Granularity = Sizes.FromNative(info->granularity);
      BlockId = info->block_id;
      HandleTypes = (HandleTypes)info->handle_types;
      GrantedFlags = (PhysicalFlags)info->granted_flags;
      NativeHandle = info->native_handle;
      Name = Text.Read(info->name, 64);
    }

    /// <summary>Adds what physical memory prints of itself.</summary>
    internal Printed Print(Printed text)
    {
      return text.Add(nameof(Size), Size).Add(nameof(Location), Location).AddIf(nameof(Name), Name);
    }

    /// <summary>Where it lies.</summary>
    public MemoryLocation Location { get; private set; }

    /// <summary>Number of the device given at creation or import.</summary>
    public int DeviceOrdinal { get; private set; }

    /// <summary>It came from a file descriptor or a fabric handle.</summary>
    public bool Imported { get; private set; }

    /// <summary>Number of bytes.</summary>
    public long Size { get; private set; }

    /// <summary>Unit in which it is mapped, in bytes.</summary>
    public long Granularity { get; private set; }

    /// <summary>Number of the block behind the handle, unique in the process.</summary>
    public ulong BlockId { get; private set; }

    /// <summary>Ways in which it can be shared.</summary>
    public HandleTypes HandleTypes { get; private set; }

    /// <summary>Properties of the memory; they contain the required ones.</summary>
    public PhysicalFlags GrantedFlags { get; private set; }

    /// <summary>
    /// The <c>CUmemGenericAllocationHandle</c>, for use by other code; 0 on the host backend. The library owns it: do not
    /// release it. It is valid until the <see cref="PhysicalMemory"/> is disposed.
    /// </summary>
    public ulong NativeHandle { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(PhysicalInfo)).Add(nameof(Location), Location).Add(nameof(DeviceOrdinal), DeviceOrdinal)
          .Add(nameof(Imported), Imported).Add(nameof(Size), Size).Add(nameof(Granularity), Granularity)
          .Add(nameof(BlockId), BlockId).Add(nameof(HandleTypes), HandleTypes).Add(nameof(GrantedFlags), GrantedFlags)
          .Add(nameof(NativeHandle), NativeHandle).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Information about a range of addresses.</summary>
  public sealed unsafe class AddressRangeInfo
  {
    internal AddressRangeInfo(gpumem_range_info* info)
    {
      Base = info->@base;
      Size = Sizes.FromNative(info->size);
      Granularity = Sizes.FromNative(info->granularity);
      MappedSize = Sizes.FromNative(info->mapped_size);
      MappingCount = Sizes.FromNative(info->mapping_count);
      BufferId = info->buffer_id;
      Name = Text.Read(info->name, 64);
    }

    /// <summary>First byte.</summary>
    public IntPtr Base { get; private set; }

    /// <summary>Bytes reserved.</summary>
    public long Size { get; private set; }

    /// <summary>Offsets of mappings are multiples of this.</summary>
    public long Granularity { get; private set; }

    /// <summary>Bytes mapped.</summary>
    public long MappedSize { get; private set; }

    /// <summary>Number of mappings.</summary>
    public long MappingCount { get; private set; }

    /// <summary>Number of this reservation, unique in the process and never reused.</summary>
    public ulong BufferId { get; private set; }

    /// <summary>As given when it was reserved.</summary>
    public string Name { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(AddressRangeInfo)).Add(nameof(Base), Base).Add(nameof(Size), Size)
          .Add(nameof(Granularity), Granularity).Add(nameof(MappedSize), MappedSize)
          .Add(nameof(MappingCount), MappingCount).Add(nameof(BufferId), BufferId).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Information about a buffer, as it was when it was read.</summary>
  public sealed unsafe class BufferInfo
  {
    internal BufferInfo(gpumem_buffer_info* info)
    {
      Base = info->@base;
      Size = Sizes.FromNative(info->size);
      Capacity = Sizes.FromNative(info->capacity);
      ReservedSize = Sizes.FromNative(info->reserved_size);
      Granularity = Sizes.FromNative(info->granularity);
      BlockCount = Sizes.FromNative(info->block_count);
      Generation = Sizes.FromNative(info->generation);
      StoredSize = Sizes.FromNative(info->stored_size);
      StoreCapacity = Sizes.FromNative(info->store_capacity);
      Ahead = Sizes.FromNative(info->ahead);
      Registrations = Sizes.FromNative(info->registrations);
      Location = new MemoryLocation((Location)info->location, info->location_id);
      DeviceOrdinal = (int)info->device_ordinal;
      State = (BufferState)info->state;
      Range = info->range;
      BufferId = info->buffer_id;
      Name = Text.Read(info->name, 64);
      Tag = Text.Read(info->tag, 64);
    }

    /// <summary>Adds what a buffer prints of itself.</summary>
    internal Printed Print(Printed text)
    {
      text.Add(nameof(Size), Size).Add(nameof(Location), Location);
      if (State != BufferState.Awake) text.Add(nameof(State), State);
      return text.AddIf(nameof(Name), Name);
    }

    /// <summary>The range that it is mapped in; zero if it is an ordinary allocation.</summary>
    internal IntPtr Range { get; private set; }

    /// <summary>First byte.</summary>
    public IntPtr Base { get; private set; }

    /// <summary>Bytes, as last asked for: the only ones that may be used.</summary>
    public long Size { get; private set; }

    /// <summary>Bytes that have memory, or had when the buffer went to sleep.</summary>
    public long Capacity { get; private set; }

    /// <summary>Bytes of addresses: what the buffer can grow to in place.</summary>
    public long ReservedSize { get; private set; }

    /// <summary>Unit in which it grows, in bytes.</summary>
    public long Granularity { get; private set; }

    /// <summary>Blocks of physical memory that it is made of.</summary>
    public long BlockCount { get; private set; }

    /// <summary>
    /// How often it has woken or moved: what other code derived from it before, such as a registration, is out of date.
    /// </summary>
    public long Generation { get; private set; }

    /// <summary>Bytes of content that are kept while it sleeps.</summary>
    public long StoredSize { get; private set; }

    /// <summary>Bytes of host memory or file that it has for its content: prepared, in use or kept.</summary>
    public long StoreCapacity { get; private set; }

    /// <summary>Bytes that are kept ahead of its growth, as set by <see cref="GrowableBuffer.SetAhead"/>.</summary>
    public long Ahead { get; private set; }

    /// <summary>Number of registrations noted by <see cref="GrowableBuffer.NoteRegistration"/>.</summary>
    public long Registrations { get; private set; }

    /// <summary>Where its memory lies.</summary>
    public MemoryLocation Location { get; private set; }

    /// <summary>Number of the device given at creation.</summary>
    public int DeviceOrdinal { get; private set; }

    /// <summary>Whether it is awake or asleep.</summary>
    public BufferState State { get; private set; }

    /// <summary>Number of its reservation or allocation, unique in the process and never reused.</summary>
    public ulong BufferId { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }

    /// <summary>What it is in its group, as given at creation.</summary>
    public string Tag { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(BufferInfo)).Add(nameof(Base), Base).Add(nameof(Size), Size)
          .Add(nameof(Capacity), Capacity).Add(nameof(ReservedSize), ReservedSize).Add(nameof(Granularity), Granularity)
          .Add(nameof(BlockCount), BlockCount).Add(nameof(Generation), Generation).Add(nameof(StoredSize), StoredSize)
          .Add(nameof(StoreCapacity), StoreCapacity).Add(nameof(Ahead), Ahead).Add(nameof(Registrations), Registrations)
          .Add(nameof(Location), Location).Add(nameof(DeviceOrdinal), DeviceOrdinal).Add(nameof(State), State)
          .Add(nameof(BufferId), BufferId).Add(nameof(Name), Name).Add(nameof(Tag), Tag).ToString();
    }
  }

  /// <summary>Information about a group, or about its buffers with one tag, as it was when it was read.</summary>
  public sealed unsafe class BufferGroupInfo
  {
    internal BufferGroupInfo(gpumem_group_info* info)
    {
      BufferCount = Sizes.FromNative(info->buffer_count);
      AwakeCount = Sizes.FromNative(info->awake_count);
      AsleepCount = Sizes.FromNative(info->asleep_count);
      FailedCount = Sizes.FromNative(info->failed_count);
      Size = Sizes.FromNative(info->size);
      StoredSize = Sizes.FromNative(info->stored_size);
      StoreCapacity = Sizes.FromNative(info->store_capacity);
      Name = Text.Read(info->name, 64);
    }

    /// <summary>Number of buffers.</summary>
    public long BufferCount { get; private set; }

    /// <summary>How many are <see cref="BufferState.Awake"/>.</summary>
    public long AwakeCount { get; private set; }

    /// <summary>How many are <see cref="BufferState.Asleep"/>.</summary>
    public long AsleepCount { get; private set; }

    /// <summary>How many are <see cref="BufferState.Failed"/>.</summary>
    public long FailedCount { get; private set; }

    /// <summary>Sum of their sizes in bytes.</summary>
    public long Size { get; private set; }

    /// <summary>Sum of the bytes of content that are kept.</summary>
    public long StoredSize { get; private set; }

    /// <summary>Sum of the bytes of host memory or file for content.</summary>
    public long StoreCapacity { get; private set; }

    /// <summary>As given at creation.</summary>
    public string Name { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(BufferGroupInfo)).Add(nameof(BufferCount), BufferCount)
          .Add(nameof(AwakeCount), AwakeCount).Add(nameof(AsleepCount), AsleepCount)
          .Add(nameof(FailedCount), FailedCount).Add(nameof(Size), Size).Add(nameof(StoredSize), StoredSize)
          .Add(nameof(StoreCapacity), StoreCapacity).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Information about a mapping.</summary>
  public sealed unsafe class MappingInfo
  {
    readonly IntPtr range;

    internal MappingInfo(gpumem_mapping_info* info)
    {
      range = info->range;
      Base = info->@base;
      Size = Sizes.FromNative(info->size);
      BlockId = info->block_id;
      Location = new MemoryLocation((Location)info->location, info->location_id);
    }

    /// <summary>First byte of the mapping.</summary>
    public IntPtr Base { get; private set; }

    /// <summary>Bytes of the mapping.</summary>
    public long Size { get; private set; }

    /// <summary>Number of the physical memory; the same for every mapping and handle of it.</summary>
    public ulong BlockId { get; private set; }

    /// <summary>Where the memory lies.</summary>
    public MemoryLocation Location { get; private set; }

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

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(MappingInfo)).Add(nameof(Base), Base).Add(nameof(Size), Size)
          .Add(nameof(BlockId), BlockId).Add(nameof(Location), Location).ToString();
    }
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

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(StreamInfo)).Add(nameof(DeviceOrdinal), DeviceOrdinal).Add(nameof(Wrapped), Wrapped)
          .Add(nameof(Priority), Priority).Add(nameof(NativeStream), NativeStream).Add(nameof(Name), Name).ToString();
    }
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

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(EventInfo)).Add(nameof(DeviceOrdinal), DeviceOrdinal).Add(nameof(Wrapped), Wrapped)
          .Add(nameof(Flags), Flags).Add(nameof(NativeEvent), NativeEvent).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Counters of one kind of memory. Bytes of <see cref="MemoryKind.Virtual"/> are the addresses of ranges, mapped or not.
  /// </summary>
  public sealed unsafe class KindStats
  {
    internal KindStats(gpumem_kind_stats* stats)
    {
      LiveCount = Sizes.FromNative(stats->live_count);
      LiveBytes = Sizes.FromNative(stats->live_bytes);
      PeakCount = Sizes.FromNative(stats->peak_count);
      PeakBytes = Sizes.FromNative(stats->peak_bytes);
      TotalCount = Sizes.FromNative(stats->total_count);
      TotalBytes = Sizes.FromNative(stats->total_bytes);
    }

    /// <summary>Live objects.</summary>
    public long LiveCount { get; private set; }

    /// <summary>Their sizes, as requested.</summary>
    public long LiveBytes { get; private set; }

    /// <summary>Largest <see cref="LiveCount"/> since the instance was opened or the peaks were reset.</summary>
    public long PeakCount { get; private set; }

    /// <summary>Largest <see cref="LiveBytes"/> since then.</summary>
    public long PeakBytes { get; private set; }

    /// <summary>Objects created since the instance was opened.</summary>
    public long TotalCount { get; private set; }

    /// <summary>Their sizes.</summary>
    public long TotalBytes { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(KindStats)).Add(nameof(LiveCount), LiveCount).Add(nameof(LiveBytes), LiveBytes)
          .Add(nameof(PeakCount), PeakCount).Add(nameof(PeakBytes), PeakBytes).Add(nameof(TotalCount), TotalCount)
          .Add(nameof(TotalBytes), TotalBytes).ToString();
    }
  }

  /// <summary>Counters of an instance.</summary>
  public sealed unsafe class InstanceStats
  {
    internal InstanceStats(gpumem_stats* stats)
    {
      LiveCount = Sizes.FromNative(stats->live_count);
      LiveBytes = Sizes.FromNative(stats->live_bytes);
      ReservedBytes = Sizes.FromNative(stats->reserved_bytes);
      Streams = Sizes.FromNative(stats->streams);
      Events = Sizes.FromNative(stats->events);
    }

    /// <summary>Live memory objects of all kinds.</summary>
    public long LiveCount { get; private set; }

    /// <summary>Bytes of memory: sizes as requested, and each block of physical memory once, with those of buffers and pools.
    /// </summary>
    public long LiveBytes { get; private set; }

    /// <summary>Addresses of live ranges, mapped or not, with those of buffers and pools.</summary>
    public long ReservedBytes { get; private set; }

    /// <summary>Live streams, including wrapped ones.</summary>
    public long Streams { get; private set; }

    /// <summary>Live events, including wrapped ones.</summary>
    public long Events { get; private set; }

    /// <summary>Live memory objects, streams and events together.</summary>
    public long LiveObjects { get { return LiveCount + Streams + Events; } }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(InstanceStats)).Add(nameof(LiveCount), LiveCount).Add(nameof(LiveBytes), LiveBytes)
          .Add(nameof(ReservedBytes), ReservedBytes).Add(nameof(Streams), Streams).Add(nameof(Events), Events)
          .Add(nameof(LiveObjects), LiveObjects).ToString();
    }
  }
}
