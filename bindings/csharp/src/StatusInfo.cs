// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Texts about statuses. They need no driver and no instance.

using System;
using System.Collections.Generic;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  public sealed unsafe partial class StatusInfo
  {
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
