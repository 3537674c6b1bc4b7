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
    StatusInfo(gpumem_status_info* info)
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
      return NativeInfo((int)status);
    }

    /// <summary>Lists the statuses of the loaded library.</summary>
    public static IReadOnlyList<Status> All()
    {
      GpuMemLibrary.Load();
      var list = new List<Status>();
      int status;
      for (uint index = 0; NativeEnumerate(index, out status); ++index) list.Add((Status)status);
      return list;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static string NativeName(int status) { return Text.Read(Native.gpumem_status_name(status)); }

    [MethodImpl(GpuMemLibrary.Bound)]
    static StatusInfo NativeInfo(int status)
    {
      gpumem_status_info info = gpumem_status_info.Sized();
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_status_get_info(status, &info, error), error);
      return new StatusInfo(&info);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static bool NativeEnumerate(uint index, out int status)
    {
      int found = 0;
      gpumem_error* error = Error.Detail;
      int result = Native.gpumem_status_enumerate(index, &found, error);
      status = found;
      if (result == Constants.GPUMEM_ERROR_NOT_FOUND) return false;
      Error.Check(result, error);
      return true;
    }
  }
}
