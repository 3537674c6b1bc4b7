// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Failures as exceptions, with all that the C interface tells about them.

using System;
using System.Runtime.InteropServices;
using System.Text;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>A call of gpumem failed. Programs decide by <see cref="Status"/>; the texts are for people.</summary>
  public sealed unsafe class GpuMemException : Exception
  {
    /// <summary>Makes an exception.</summary>
    public GpuMemException(Status status, string message) : base(message)
    {
      Status = status;
      NativeName = Function = EntryPoint = "";
    }

    internal GpuMemException(gpumem_error* error)
        : base(error->message[0] != 0 ? Text.Read(error->message, 512) : GpuMem.StatusInfo.NameOf((Status)error->status))
    {
      Status = (Status)error->status;
      NativeDomain = (NativeDomain)error->native_domain;
      NativeCode = error->native_code;
      NativeName = Text.Read(error->native_name, 56);
      Function = Text.Read(error->function, 48);
      EntryPoint = Text.Read(error->entry_point, 48);
    }

    /// <summary>What the call returned.</summary>
    public Status Status { get; private set; }

    /// <summary>Name of the status, such as <c>GPUMEM_ERROR_BUSY</c>.</summary>
    public string StatusName { get { return GpuMem.StatusInfo.NameOf(Status); } }

    /// <summary>Whose number <see cref="NativeCode"/> is.</summary>
    public NativeDomain NativeDomain { get; private set; }

    /// <summary>Code of the driver or operating system; 0 if there was none.</summary>
    public int NativeCode { get; private set; }

    /// <summary>Name of <see cref="NativeCode"/>, such as <c>ENOMEM</c>.</summary>
    public string NativeName { get; private set; }

    /// <summary>The function of gpumem that failed.</summary>
    public string Function { get; private set; }

    /// <summary>The driver or system call that failed; empty if none was reached.</summary>
    public string EntryPoint { get; private set; }

    /// <summary>Everything, for a log.</summary>
    public override string ToString()
    {
      var text = new StringBuilder();
      text.Append(GetType().FullName).Append(": ").Append(StatusName).Append(": ").Append(Message);
      if (!string.IsNullOrEmpty(Function)) text.Append(" [").Append(Function).Append(']');
      if (NativeDomain != NativeDomain.None)
      {
        text.Append(" [").Append(EntryPoint).Append(" said ").Append(NativeName).Append(", ").Append(NativeCode).Append(']');
      }
      return text.Append(Environment.NewLine).Append(StackTrace).ToString();
    }
  }

  /// <summary>
  /// The detail that a call fills, one for each thread: the struct is large, and clearing it would cost more than some
  /// calls do. It is read before the thread makes another call.
  /// </summary>
  sealed unsafe class Error
  {
    [ThreadStatic] static Error current;

    readonly gpumem_error* detail;

    Error()
    {
      detail = (gpumem_error*)Marshal.AllocHGlobal(sizeof(gpumem_error));
      *detail = default(gpumem_error);
      detail->struct_size = (UIntPtr)(uint)sizeof(gpumem_error);
    }

    // While the process ends, finalizers run beside code that still makes calls.
    ~Error()
    {
      if (!Environment.HasShutdownStarted) Marshal.FreeHGlobal((IntPtr)detail);
    }

    internal static gpumem_error* Detail { get { return (current ?? (current = new Error())).detail; } }

    /// <summary>Throws if a call failed.</summary>
    internal static void Check(int status, gpumem_error* error)
    {
      if (status < 0) throw new GpuMemException(error);
    }

    /// <summary>Throws if a call failed; one that met a handle which was closed meanwhile found a disposed object.</summary>
    internal static void Check(int status, gpumem_error* error, GpuHandle handle, string name)
    {
      if (status >= 0) return;
      if (status == Constants.GPUMEM_ERROR_STALE_HANDLE && handle.IsDisposed) throw new ObjectDisposedException(name);
      throw new GpuMemException(error);
    }
  }
}
