// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Failures as exceptions, with the error detail of the C interface.

using System;
using System.Collections.Generic;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.InteropServices;
using System.Text;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>A call of gpumem failed. Decide by <see cref="Status"/>; the texts are for people.</summary>
  public sealed unsafe class GpuMemException : Exception
  {
    string reworded;

    /// <summary>Creates an exception.</summary>
    public GpuMemException(Status status, [AllowNull] string message) : base(message)
    {
      Status = status;
      NativeName = Function = EntryPoint = "";
    }

    internal GpuMemException(gpumem_error* error, int? failedRegion = null)
        : base(error->message[0] != 0 ? Words.Read(error->message, 512)
                                      : GpuMem.StatusInfo.NameOf((Status)error->status))
    {
      Status = (Status)error->status;
      NativeDomain = (NativeDomain)error->native_domain;
      NativeCode = error->native_code;
      NativeName = Text.Read(error->native_name, 56);
      Function = Text.Read(error->function, 48);
      EntryPoint = Text.Read(error->entry_point, 48);
      FailedRegion = failedRegion;
    }

    /// <summary>What went wrong, and often what to do, on one line.</summary>
    public override string Message { get { return reworded ?? base.Message; } }

    /// <summary>Says it in other words, where the library cannot know better.</summary>
    internal void Reword(string what, string with) { reworded = Message.Replace(what, with); }

    /// <summary>The same failure with another status and message.</summary>
    internal GpuMemException As(Status status, string message) { return new GpuMemException(status, message) { Function = Function }; }

    /// <summary>Says what the library cannot know.</summary>
    internal void Add(string more) { reworded = Message + more; }

    /// <summary>Status of the call.</summary>
    public Status Status { get; private set; }

    /// <summary>Name of the status in C, such as <c>GPUMEM_ERROR_BUSY</c>.</summary>
    public string StatusName { get { return GpuMem.StatusInfo.NameOf(Status); } }

    /// <summary>What <see cref="NativeCode"/> is a code of.</summary>
    public NativeDomain NativeDomain { get; private set; }

    /// <summary>Code of the driver or the operating system; 0 if there was none.</summary>
    public int NativeCode { get; private set; }

    /// <summary>Name of <see cref="NativeCode"/>, such as <c>ENOMEM</c>.</summary>
    public string NativeName { get; private set; }

    /// <summary>The function of the C interface that failed.</summary>
    public string Function { get; internal set; }

    /// <summary>The driver or system call that failed; empty if none was reached.</summary>
    public string EntryPoint { get; private set; }

    /// <summary>Index of the region that failed, if one region of a batch did.</summary>
    public int? FailedRegion { get; private set; }

    /// <summary>
    /// Bytes that a copy between a file and memory copied before it failed, from the start on with no gap: a call for the others
    /// goes on from there. Null if the failure is of another function.
    /// </summary>
    public long? Copied { get; internal set; }

    /// <summary>The message with all details, for a log.</summary>
    public override string ToString()
    {
      var text = new StringBuilder();
      text.Append(GetType().FullName).Append(": ").Append(Status).Append(": ").Append(Message);
      if (FailedRegion != null) text.Append(" [region ").Append(FailedRegion).Append(']');
      if (Copied != null) text.Append(" [copied ").Append(Copied).Append(" bytes]");
      if (!string.IsNullOrEmpty(Function)) text.Append(" [").Append(Words.Find(Function) ?? Function).Append(']');
      if (NativeDomain != NativeDomain.None)
      {
        text.Append(" [").Append(EntryPoint).Append(" failed with ").Append(NativeName);
        text.Append(", ").Append(NativeCode).Append(']');
      }
      return text.Append(Environment.NewLine).Append(StackTrace).ToString();
    }
  }

  /// <summary>A call of the library, which returns its status.</summary>
  unsafe delegate int NativeCall(gpumem_error* error);

  /// <summary>
  /// The error detail of the calling thread. Clearing such a large struct for each call would cost more than some
  /// calls; read it before the thread makes another call.
  /// </summary>
  sealed unsafe class Error
  {
    [ThreadStatic] static Error current;

    readonly gpumem_error* detail;

    Error()
    {
      detail = (gpumem_error*)Marshal.AllocHGlobal(sizeof(gpumem_error));
      *detail = gpumem_error.Sized();
    }

    // While the process ends, other threads may still be making calls.
    ~Error()
    {
      if (!Environment.HasShutdownStarted) Marshal.FreeHGlobal((IntPtr)detail);
    }

    internal static gpumem_error* Detail { get { return (current ?? (current = new Error())).detail; } }

    /// <summary>Throws if a call failed. Notes, which are positive, are not failures.</summary>
    internal static void Check(int status, gpumem_error* error)
    {
      if (status < 0) throw Failure(error);
    }

    internal delegate int EnumerateCall(uint index, int* found, gpumem_error* error);

    /// <summary>Lists the numbers that a function of the library has for the indices from 0 on.</summary>
    internal static IReadOnlyList<T> Enumerate<T>(Func<int, T> convert, EnumerateCall call)
    {
      GpuMemLibrary.Load();
      var list = new List<T>();
      while (true)
      {
        int found = 0;
        gpumem_error* error = Detail;
        int status = call((uint)list.Count, &found, error);
        if (status == Constants.GPUMEM_ERROR_NOT_FOUND) return list;
        Check(status, error);
        list.Add(convert(found));
      }
    }

    /// <summary>The exception of a failed call. While the process ends, it does not return.</summary>
    internal static GpuMemException Failure(gpumem_error* error, int? failedRegion = null)
    {
      const int Deinitialized = 4;  // CUDA_ERROR_DEINITIALIZED
      bool ending = error->native_domain == Constants.GPUMEM_NATIVE_CUDA && error->native_code == Deinitialized;
      // The driver is gone, and with it every ProcessExit handler has run. An exception would only be reported as
      // unhandled, so the thread waits for the end.
      if (ending) Thread.Sleep(System.Threading.Timeout.Infinite);
      return new GpuMemException(error, failedRegion);
    }
  }
}
