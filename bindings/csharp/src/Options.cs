// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What can be told at creation. The default of every property is the library's.

using System;

namespace GpuMem
{
  /// <summary>How an instance is opened.</summary>
  public sealed class InstanceOptions
  {
    /// <summary>Who does the work.</summary>
    public Backend Backend { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    public string Name { get; set; }

    /// <summary>Page-locked bytes that may live at once; 0 means no limit.</summary>
    public ulong PinBudget { get; set; }

    /// <summary>Options of the host backend, used only if that backend is opened.</summary>
    public HostOptions Host { get; set; }

    /// <summary><c>CUcontext</c> values to work in instead of the primary contexts; they must outlive the instance.</summary>
    public IntPtr[] CudaContexts { get; set; }
  }

  /// <summary>How an instance of the host backend behaves.</summary>
  public sealed class HostOptions
  {
    /// <summary>Emulated devices, 1 to 64; 0 means 2.</summary>
    public int DeviceCount { get; set; }

    /// <summary>Device memory faults when the CPU touches it, and unfinished work is tracked; default on.</summary>
    public Toggle Strict { get; set; }

    /// <summary>Memory of each device; 0 means 64 MiB.</summary>
    public ulong DeviceBytes { get; set; }

    /// <summary>Unit in which device memory is charged; 0 means 2 MiB.</summary>
    public ulong Granularity { get; set; }

    /// <summary>Devices reach ordinary pageable memory; default off.</summary>
    public Toggle Pageable { get; set; }

    /// <summary>Registered memory has one address for CPU and devices; default off.</summary>
    public Toggle SamePointer { get; set; }

    /// <summary>Whether pinned pages are locked.</summary>
    public HostLock LockMode { get; set; }

    /// <summary>Pretend that this many NUMA nodes exist; 0 means those of the machine.</summary>
    public int NumaNodes { get; set; }

    /// <summary>Registrations that may live at once; 0 means 65500.</summary>
    public ulong RegisterCountMax { get; set; }

    /// <summary>Locking works in pieces of this many bytes; 0 means 256 MiB.</summary>
    public ulong LockPiece { get; set; }

    /// <summary>Freed address ranges that stay inaccessible; 0 means 64.</summary>
    public int Quarantine { get; set; }

    /// <summary>Fresh memory is filled with 0xA5; default as <see cref="Strict"/>.</summary>
    public Toggle Fill { get; set; }

    /// <summary>Links between devices: <c>all</c>, <c>none</c>, or a list such as <c>0&gt;1,1&gt;0</c>.</summary>
    public string Peers { get; set; }

    /// <summary>Entry points to treat as missing, with commas.</summary>
    public string Masked { get; set; }
  }

  /// <summary>What else can be told about an allocation or registration.</summary>
  public struct MemoryOptions
  {
    /// <summary>Power of two in bytes, met exactly or refused; 0 means at least 256.</summary>
    public ulong Alignment { get; set; }

    /// <summary>Properties without which the call shall fail.</summary>
    public MemoryFlags Require { get; set; }

    /// <summary>Properties that may be missing from what is granted.</summary>
    public MemoryFlags Prefer { get; set; }

    /// <summary>Node for <see cref="MemoryFlags.NumaNode"/>.</summary>
    public int NumaNode { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    public string Name { get; set; }
  }

  /// <summary>What else a copy can be told.</summary>
  public struct CopyOptions
  {
    /// <summary>Between which sides it goes; a contradiction to the pointers is refused.</summary>
    public Direction Direction { get; set; }

    /// <summary>When the source is read.</summary>
    public SourceOrder SourceOrder { get; set; }
  }
}
