// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Options and results of exporting, sending and importing.

using System;
using System.Diagnostics.CodeAnalysis;
using System.Net.Sockets;
#if !NETCOREAPP3_0_OR_GREATER
using System.Reflection;
#endif
using System.Runtime.InteropServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>Options for an export.</summary>
  public struct ExportOptions
  {
    /// <summary>
    /// How the memory reaches the other process; by default the best way that it has. For <see cref="ShareWay.DmaBuf"/>
    /// there is <see cref="GpuInstance.ExportDmaBuf"/>.
    /// </summary>
    public ShareWay Way { get; set; }

    /// <summary>
    /// The most that importers get: <see cref="Access.Read"/> or <see cref="Access.ReadWrite"/>, which is the default.
    /// <see cref="ShareWay.Legacy"/> has only the latter.
    /// </summary>
    public Access Access { get; set; }

    /// <summary>How it is exported.</summary>
    public ExportFlags Flags { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(ExportOptions)).Add(nameof(Way), Way).Add(nameof(Access), Access)
          .Add(nameof(Flags), Flags).ToString();
    }
  }

  /// <summary>Options for sending a handle.</summary>
  public struct SendOptions
  {
    /// <summary>How long the receiver may take to import it; zero means 30 seconds. Then it is taken back.</summary>
    public TimeSpan Lease { get; set; }

    /// <summary>How long the call may wait for room in the socket; zero means 5 seconds.</summary>
    public TimeSpan Timeout { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(SendOptions)).Add(nameof(Lease), Lease).Add(nameof(Timeout), Timeout).ToString();
    }
  }

  /// <summary>Options for an import.</summary>
  public struct ImportOptions
  {
    /// <summary>Device that will use the memory; by default the one that has it.</summary>
    [AllowNull, MaybeNull]
    public GpuDevice Device { get; set; }

    /// <summary>
    /// <see cref="Access.Read"/> or <see cref="Access.ReadWrite"/>; by default what the exporter allows.
    /// </summary>
    public Access Access { get; set; }

    /// <summary>How it is imported.</summary>
    public ImportFlags Flags { get; set; }

    /// <summary>
    /// Where the memory should begin, if these addresses are free; zero means anywhere. Only for
    /// <see cref="ShareWay.PosixFd"/>.
    /// </summary>
    public IntPtr Address { get; set; }

    /// <summary>How long the exporter may take to answer; zero means 5 seconds.</summary>
    public TimeSpan Timeout { get; set; }

    /// <summary>For messages and reports, up to 63 bytes.</summary>
    [AllowNull, MaybeNull]
    public string Name { get; set; }

    /// <summary>Its options.</summary>
    public override string ToString()
    {
      return new Printed(nameof(ImportOptions)).Add(nameof(Device), Device).Add(nameof(Access), Access)
          .Add(nameof(Flags), Flags).Add(nameof(Address), Address).Add(nameof(Timeout), Timeout).Add(nameof(Name), Name)
          .ToString();
    }
  }

  /// <summary>Information about an import.</summary>
  public sealed unsafe class ImportInfo
  {
    internal ImportInfo(gpumem_import_info* info)
    {
      Way = (ShareWay)info->way;
      Access = (Access)info->access;
      State = (ImportState)info->state;
      ExporterProcess = info->exporter_pid;
      Count = Sizes.FromNative(info->count);
      ExporterBufferId = info->exporter_buffer_id;
    }

    /// <summary>How the memory is shared.</summary>
    public ShareWay Way { get; private set; }

    /// <summary>What may be done here.</summary>
    public Access Access { get; private set; }

    /// <summary>How it stands at this moment.</summary>
    public ImportState State { get; private set; }

    /// <summary>Number of the exporting process, as its own process namespace counts; of the publisher, not of a keeper.</summary>
    public int ExporterProcess { get; private set; }

    /// <summary>How often this process has imported it.</summary>
    public long Count { get; private set; }

    /// <summary>Number of the allocation in the exporter.</summary>
    public ulong ExporterBufferId { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(ImportInfo)).Add(nameof(Way), Way).Add(nameof(Access), Access).Add(nameof(State), State)
          .Add(nameof(ExporterProcess), ExporterProcess).Add(nameof(Count), Count)
          .Add(nameof(ExporterBufferId), ExporterBufferId).ToString();
    }
  }

  public sealed unsafe partial class ShareWayInfo
  {
    /// <summary>Whether the memory can be shared in this way.</summary>
    public bool IsPossible { get { return Status == Status.Success; } }
  }

  /// <summary>The numbers of descriptors, which stay open until this is disposed.</summary>
  sealed class HeldDescriptors : IDisposable
  {
    readonly SafeHandle[] handles;
    int held;

    internal HeldDescriptors(SafeHandle[] descriptors)
    {
      handles = descriptors ?? new SafeHandle[0];
      Numbers = new int[handles.Length];
      try
      {
        for (; held < handles.Length; ++held)
        {
          SafeHandle one = handles[held];
          if (one == null) throw new ArgumentNullException(nameof(descriptors));
          bool done = false;
          one.DangerousAddRef(ref done);
          Numbers[held] = (int)one.DangerousGetHandle();
        }
      }
      catch
      {
        Dispose();
        throw;
      }
    }

    internal int[] Numbers { get; private set; }

    /// <summary>The handle of a socket. Its number alone could be another's once the socket is disposed.</summary>
    internal static SafeHandle HandleOf(Socket socket)
    {
      if (socket == null) throw new ArgumentNullException(nameof(socket));
#if NETCOREAPP3_0_OR_GREATER
      return socket.SafeHandle;
#else
      // Public or internal, it is in every runtime that a netstandard2.0 assembly runs on.
      const BindingFlags Any = BindingFlags.Instance | BindingFlags.Public | BindingFlags.NonPublic;
      PropertyInfo property = typeof(Socket).GetProperty("SafeHandle", Any);
      var handle = property == null ? null : property.GetValue(socket, null) as SafeHandle;
      if (handle == null) throw new NotSupportedException("this runtime does not show the handle of a Socket; pass a SafeHandle");
      return handle;
#endif
    }

    public void Dispose()
    {
      while (held > 0) handles[--held].DangerousRelease();
    }
  }
}
