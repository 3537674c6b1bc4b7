// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Texts about statuses. They need no driver and no instance.

using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>Name, cause and remedy of a status.</summary>
  public sealed unsafe class StatusInfo
  {
    internal StatusInfo(gpumem_status_info* info)
    {
      Status = (Status)info->status;
      Name = Text.Read(info->name);
      Cause = Words.Read(info->cause);
      Remedy = Words.Read(info->remedy);
    }

    /// <summary>The status.</summary>
    public Status Status { get; private set; }

    /// <summary>Name of its constant, such as <c>GPUMEM_ERROR_BUSY</c>.</summary>
    public string Name { get; private set; }

    /// <summary>When it is returned, in one line.</summary>
    public string Cause { get; private set; }

    /// <summary>What to do about it, in one line.</summary>
    public string Remedy { get; private set; }

    /// <summary>All of it.</summary>
    public override string ToString()
    {
      return new Printed(nameof(StatusInfo)).Add(nameof(Status), Status).Add(nameof(Cause), Cause)
          .Add(nameof(Remedy), Remedy).ToString();
    }

    /// <summary>Gets the name of a status; <c>GPUMEM_ERROR_?</c> if no status has this number.</summary>
    public static string NameOf(Status status)
    {
      GpuMemLibrary.Load();
      return NativeName((int)status);
    }

    /// <summary>Gets the name, cause and remedy of a status.</summary>
    public static StatusInfo Of(Status status)
    {
      GpuMemLibrary.Load();
      return Calls.gpumem_status_get_info((int)status);
    }

    /// <summary>Lists the statuses of the loaded library.</summary>
    public static IReadOnlyList<Status> All()
    {
      return Error.Enumerate(
          number => (Status)number, (index, found, error) => Native.gpumem_status_enumerate(index, found, error));
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static string NativeName(int status) { return Text.Read(Native.gpumem_status_name(status)); }
  }
}
