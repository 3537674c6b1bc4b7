// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Options of opening, allocating, registering and copying. The default of every property is the library's.

using System;
using System.Diagnostics.CodeAnalysis;
using System.Threading;

namespace GpuMem
{
  /// <summary>Options for opening an instance.</summary>
  public sealed class InstanceOptions
  {
    /// <summary>Backend to open.</summary>
    public Backend Backend { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    [AllowNull, MaybeNull]
    public string Name { get; set; }

    /// <summary>Limit on page-locked bytes that live at once, including registered ones; 0 means no limit.</summary>
    public long PinBudget { get; set; }

    /// <summary>Threads for each device that copy between it and ordinary memory, that of the caller included; 0 means as
    /// many as help, -1 none.</summary>
    public int TransferThreads { get; set; }

    /// <summary>Page-locked memory that these threads use for a device at most, in bytes; 0 means 4 MiB for each.</summary>
    public long TransferBytes { get; set; }

    /// <summary>Options of the host backend, or null for defaults. Ignored with <see cref="Backend.Cuda"/>.</summary>
    [AllowNull, MaybeNull]
    public HostOptions Host { get; set; }

    /// <summary>Options of the cuda backend, or null for defaults. Ignored with <see cref="Backend.Host"/>.</summary>
    [AllowNull, MaybeNull]
    public CudaOptions Cuda { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(InstanceOptions)).Add(nameof(Backend), Backend).Add(nameof(Name), Name)
          .Add(nameof(PinBudget), PinBudget).Add(nameof(TransferThreads), TransferThreads)
          .Add(nameof(TransferBytes), TransferBytes).Add(nameof(Host), Host).Add(nameof(Cuda), Cuda).ToString();
    }
  }

  /// <summary>Options for an instance of the cuda backend.</summary>
  public sealed class CudaOptions
  {
    /// <summary>
    /// <c>CUcontext</c> values to work in instead of the primary contexts of their devices, at most one for each
    /// device. They must outlive the instance.
    /// </summary>
    [AllowNull, MaybeNull]
    public IntPtr[] Contexts { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      string[] contexts = Array.ConvertAll(Contexts ?? new IntPtr[0], context => Printed.Format(context));
      return "CudaOptions { Contexts = [" + string.Join(", ", contexts) + "] }";
    }
  }

  /// <summary>Options for an instance of the host backend.</summary>
  public sealed class HostOptions
  {
    /// <summary>Emulated devices, 1 to 64; 0 means 2.</summary>
    public int DeviceCount { get; set; }

    /// <summary>Device memory faults when the CPU touches it, and unfinished work is tracked; on by default.</summary>
    public Toggle Strict { get; set; }

    /// <summary>Memory of each device in bytes, at least one granule; 0 means 4 GiB.</summary>
    public long DeviceBytes { get; set; }

    /// <summary>Unit in which device memory is charged: a power of two from 512 to 1 GiB; 0 means 512.</summary>
    public long Granularity { get; set; }

    /// <summary>Devices access pageable memory; off by default.</summary>
    public Toggle Pageable { get; set; }

    /// <summary>Registered memory has the same address for the CPU and for devices; off by default.</summary>
    public Toggle SamePointer { get; set; }

    /// <summary>When pages are locked.</summary>
    public HostLock LockMode { get; set; }

    /// <summary>Number of NUMA nodes to simulate, 1 to 64; 0 means those of the machine.</summary>
    public int NumaNodes { get; set; }

    /// <summary>Registrations (pieces) that may live at once; 0 means 65500.</summary>
    public long RegisterCountMax { get; set; }

    /// <summary>
    /// Size of the pieces in which memory is locked, in bytes: a multiple of the page size; 0 means 256 MiB.
    /// </summary>
    public long LockPiece { get; set; }

    /// <summary>
    /// Number of freed address ranges that stay inaccessible before they are reused, 1 to 65536; 0 means 64.
    /// </summary>
    public int Quarantine { get; set; }

    /// <summary>Fresh memory is filled with 0xA5; by default as <see cref="Strict"/>.</summary>
    public Toggle Fill { get; set; }

    /// <summary>
    /// Directed links between devices: <c>all</c>, <c>none</c>, or a list such as <c>0&gt;1,1&gt;0</c>; null means all.
    /// </summary>
    [AllowNull, MaybeNull]
    public string Peers { get; set; }

    /// <summary>
    /// Comma-separated entry points to treat as missing, such as <c>write_value</c>; null means none.
    /// </summary>
    [AllowNull, MaybeNull]
    public string Masked { get; set; }

    /// <summary>
    /// The CPU and devices use managed memory at the same time; on by default. Off, the rules of older GPUs hold: a touch
    /// of the CPU at the wrong time faults.
    /// </summary>
    public Toggle Concurrent { get; set; }

    /// <summary>Physical memory can be compressible; on by default.</summary>
    public Toggle Compressible { get; set; }

    /// <summary>
    /// Unit of physical memory and of mappings in bytes: a power of two from the page size to 1 GiB; 0 means 2 MiB.
    /// </summary>
    public long VmmGranularity { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(HostOptions)).Add(nameof(DeviceCount), DeviceCount).Add(nameof(Strict), Strict)
          .Add(nameof(DeviceBytes), DeviceBytes).Add(nameof(Granularity), Granularity).Add(nameof(Pageable), Pageable)
          .Add(nameof(SamePointer), SamePointer).Add(nameof(LockMode), LockMode).Add(nameof(NumaNodes), NumaNodes)
          .Add(nameof(RegisterCountMax), RegisterCountMax).Add(nameof(LockPiece), LockPiece)
          .Add(nameof(Quarantine), Quarantine).Add(nameof(Fill), Fill).Add(nameof(Peers), Peers)
          .Add(nameof(Masked), Masked).Add(nameof(Concurrent), Concurrent).Add(nameof(Compressible), Compressible)
          .Add(nameof(VmmGranularity), VmmGranularity).ToString();
    }
  }

  /// <summary>Options for an allocation.</summary>
  public struct MemoryOptions
  {
    /// <summary>Power of two in bytes, met exactly or refused; 0 means at least 256.</summary>
    public long Alignment { get; set; }

    /// <summary>Properties that the memory must have; otherwise the call fails.</summary>
    public MemoryFlags Require { get; set; }

    /// <summary>Properties that the memory should have if possible.</summary>
    public MemoryFlags Prefer { get; set; }

    /// <summary>Node for <see cref="MemoryFlags.NumaNode"/>.</summary>
    public int NumaNode { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    [AllowNull, MaybeNull]
    public string Name { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(MemoryOptions)).Add(nameof(Alignment), Alignment).Add(nameof(Require), Require)
          .Add(nameof(Prefer), Prefer).Add(nameof(NumaNode), NumaNode).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Options for registering existing memory.</summary>
  public struct RegisterOptions
  {
    /// <summary>Properties that the memory must have; otherwise the call fails.</summary>
    public MemoryFlags Require { get; set; }

    /// <summary>Properties that the memory should have if possible.</summary>
    public MemoryFlags Prefer { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    [AllowNull, MaybeNull]
    public string Name { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(RegisterOptions)).Add(nameof(Require), Require).Add(nameof(Prefer), Prefer)
          .Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Options for physical memory.</summary>
  public struct PhysicalOptions
  {
    /// <summary>
    /// Where it lies: the device of the call, unless set, <see cref="MemoryLocation.Host"/> or a NUMA node of the host.
    /// </summary>
    public MemoryLocation Location { get; set; }

    /// <summary>Ways of sharing that must be possible.</summary>
    public HandleTypes HandleTypes { get; set; }

    /// <summary>Properties that the memory must have; otherwise the call fails.</summary>
    public PhysicalFlags Require { get; set; }

    /// <summary>Properties that the memory should have if possible.</summary>
    public PhysicalFlags Prefer { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    [AllowNull, MaybeNull]
    public string Name { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(PhysicalOptions)).Add(nameof(Location), Location).Add(nameof(HandleTypes), HandleTypes)
          .Add(nameof(Require), Require).Add(nameof(Prefer), Prefer).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Options for a range of addresses.</summary>
  public struct RangeOptions
  {
    /// <summary>Power of two in bytes, met exactly or refused; 0 means the granularity.</summary>
    public long Alignment { get; set; }

    /// <summary>Where the range should begin; zero means anywhere.</summary>
    public IntPtr Address { get; set; }

    /// <summary>How it is reserved.</summary>
    public RangeFlags Flags { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    [AllowNull, MaybeNull]
    public string Name { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(RangeOptions)).Add(nameof(Alignment), Alignment).Add(nameof(Address), Address)
          .Add(nameof(Flags), Flags).Add(nameof(Name), Name).ToString();
    }
  }

  /// <summary>Options for a buffer.</summary>
  public struct BufferOptions
  {
    /// <summary>
    /// Bytes of addresses to reserve, rounded up; 0 means as much as the device, or the host, has memory, but at most a
    /// 64th of the addresses that the instance has not reserved of 128 TiB. If so much cannot be reserved, half of it is
    /// tried, and so on down to the size.
    /// </summary>
    public long Reserve { get; set; }

    /// <summary>
    /// Where it lies: the device of the call, unless set, <see cref="MemoryLocation.Host"/> or a NUMA node of the host.
    /// </summary>
    public MemoryLocation Location { get; set; }

    /// <summary>Ways of sharing that must be possible for its physical memory.</summary>
    public HandleTypes HandleTypes { get; set; }

    /// <summary>Properties that the memory must have; otherwise the call fails.</summary>
    public PhysicalFlags Require { get; set; }

    /// <summary>Properties that the memory should have if possible.</summary>
    public PhysicalFlags Prefer { get; set; }

    /// <summary>How it behaves.</summary>
    public BufferFlags Flags { get; set; }

    /// <summary>
    /// Who may access it. Null or empty means: the device of the call, and for memory of the host the CPU too, may read
    /// and write.
    /// </summary>
    [AllowNull, MaybeNull]
    public ProcessorAccess[] Accesses { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    [AllowNull, MaybeNull]
    public string Name { get; set; }

    /// <summary>The group that it belongs to while it lives, of the same instance; or null.</summary>
    [AllowNull, MaybeNull]
    public BufferGroup Group { get; set; }

    /// <summary>What it is in its group, such as <c>"weights"</c>, up to 63 bytes; or null.</summary>
    [AllowNull, MaybeNull]
    public string Tag { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(BufferOptions)).Add(nameof(Reserve), Reserve).Add(nameof(Location), Location)
          .Add(nameof(HandleTypes), HandleTypes).Add(nameof(Require), Require).Add(nameof(Prefer), Prefer)
          .Add(nameof(Flags), Flags).Add(nameof(Accesses), Accesses).Add(nameof(Name), Name).Add(nameof(Group), Group)
          .Add(nameof(Tag), Tag).ToString();
    }
  }

  /// <summary>Options for copies between files and memory.</summary>
  public struct FileCopyOptions
  {
    /// <summary>Properties that the copy should have if possible.</summary>
    public FileFlags Prefer { get; set; }

    /// <summary>
    /// Called on the thread of the call with the bytes that are done and all bytes: before the first byte, after about each
    /// 64 MiB and at the end. True goes on. False ends the call with <see cref="Status.Cancelled"/>, and bytes that are
    /// copied stay so; so does an exception, which comes out of the call.
    /// </summary>
    [AllowNull, MaybeNull]
    public Func<ulong, ulong, bool> Progress { get; set; }

    /// <summary>
    /// Ends the call as <see cref="Progress"/> can, at the same times, with an
    /// <see cref="OperationCanceledException"/>, whose inner exception has <see cref="GpuMemException.Copied"/>.
    /// </summary>
    public CancellationToken Cancellation { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(FileCopyOptions)).Add(nameof(Prefer), Prefer).Add(nameof(Progress), Progress != null)
          .Add(nameof(Cancellation), Cancellation.CanBeCanceled).ToString();
    }
  }

  /// <summary>Options for sleeping.</summary>
  public struct SleepOptions
  {
    /// <summary>What happens to the content.</summary>
    public Content Content { get; set; }

    /// <summary>How to sleep.</summary>
    public SleepFlags Flags { get; set; }

    /// <summary>For <see cref="GpuMem.Content.File"/>: directory of the file; otherwise null.</summary>
    [AllowNull, MaybeNull]
    public string Directory { get; set; }

    /// <summary>
    /// For a group: only the buffers with this tag; if none has it, nothing happens. Null means all. For one buffer null.
    /// </summary>
    [AllowNull, MaybeNull]
    public string Tag { get; set; }

    /// <summary>
    /// Wait for all work in this stream, and for what <see cref="Event"/> marks. With neither, and without
    /// <see cref="SleepFlags.Idle"/>, the call waits for all work of each device that may access the buffers, whoever
    /// enqueued it.
    /// </summary>
    [AllowNull, MaybeNull]
    public GpuStream Stream { get; set; }

    /// <summary>Wait for the work that it marks. See <see cref="Stream"/>.</summary>
    [AllowNull, MaybeNull]
    public GpuEvent Event { get; set; }

    /// <summary>
    /// Called on the thread of the call with the bytes that are done and all bytes, before the first byte and after each
    /// piece. True goes on. False ends the call with <see cref="Status.Cancelled"/>, and what it did is undone; so does an
    /// exception, which comes out of the call. Once all bytes are done the value means nothing.
    /// </summary>
    [AllowNull, MaybeNull]
    public Func<ulong, ulong, bool> Progress { get; set; }

    /// <summary>
    /// Ends the call as <see cref="Progress"/> can, at the same times, with an
    /// <see cref="OperationCanceledException"/>.
    /// </summary>
    public CancellationToken Cancellation { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(SleepOptions)).Add(nameof(Content), Content).Add(nameof(Flags), Flags)
          .Add(nameof(Directory), Directory).Add(nameof(Tag), Tag).Add(nameof(Stream), Stream).Add(nameof(Event), Event)
          .Add(nameof(Progress), Progress != null).Add(nameof(Cancellation), Cancellation.CanBeCanceled).ToString();
    }
  }

  /// <summary>Options for waking.</summary>
  public struct WakeOptions
  {
    /// <summary>
    /// Bytes of the store that each buffer keeps for its next sleep, rounded up to pieces; 0 frees it,
    /// <c>long.MaxValue</c> keeps all.
    /// </summary>
    public long Keep { get; set; }

    /// <summary>
    /// For a group: only the buffers with this tag; if none has it, nothing happens. Null means all. For one buffer null.
    /// </summary>
    [AllowNull, MaybeNull]
    public string Tag { get; set; }

    /// <summary>As in <see cref="SleepOptions"/>.</summary>
    [AllowNull, MaybeNull]
    public Func<ulong, ulong, bool> Progress { get; set; }

    /// <summary>As in <see cref="SleepOptions"/>.</summary>
    public CancellationToken Cancellation { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(WakeOptions)).Add(nameof(Keep), Keep).Add(nameof(Tag), Tag)
          .Add(nameof(Progress), Progress != null).Add(nameof(Cancellation), Cancellation.CanBeCanceled).ToString();
    }
  }

  /// <summary>Options for preparing a sleep.</summary>
  public struct PrepareOptions
  {
    /// <summary>
    /// What to prepare for. <see cref="GpuMem.Content.Zero"/> and <see cref="GpuMem.Content.Drop"/> need no store: an old
    /// one is freed.
    /// </summary>
    public Content Content { get; set; }

    /// <summary>For <see cref="GpuMem.Content.File"/>: directory of the file; otherwise null.</summary>
    [AllowNull, MaybeNull]
    public string Directory { get; set; }

    /// <summary>
    /// For a group: only the buffers with this tag; if none has it, nothing happens. Null means all. For one buffer null.
    /// </summary>
    [AllowNull, MaybeNull]
    public string Tag { get; set; }

    /// <summary>
    /// 0: the call returns once all is prepared. Otherwise it returns at once, and a thread of the library does it, at most
    /// so many bytes a second.
    /// </summary>
    public long BytesPerSecond { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(PrepareOptions)).Add(nameof(Content), Content).Add(nameof(Directory), Directory)
          .Add(nameof(Tag), Tag).Add(nameof(BytesPerSecond), BytesPerSecond).ToString();
    }
  }

  /// <summary>Options for a copy.</summary>
  public struct CopyOptions
  {
    /// <summary>Direction of the copy. One that contradicts the operands fails.</summary>
    public Direction Direction { get; set; }

    /// <summary>When the source of a copy in a stream is read.</summary>
    public SourceOrder SourceOrder { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(CopyOptions)).Add(nameof(Direction), Direction).Add(nameof(SourceOrder), SourceOrder)
          .ToString();
    }
  }
}
