// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies and fills, with a stream or without one.

using System;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  static unsafe class Transfer
  {
    /// <summary>What a copy between ranges of different sizes would mean is a guess.</summary>
    static void RequireEqual(GpuRange destination, GpuRange source)
    {
      if (destination.Size != source.Size)
      {
        throw new ArgumentException("the destination has " + destination.Size + " bytes, the source " + source.Size);
      }
    }

    // Each of the four makes its call under the references that keep the operands: for the time of the call without a
    // stream, and with one until the work is observed complete.
    delegate int Call(IntPtr stream, gpumem_error* error);

    static void Run(InstanceHandle instance, StreamHandle stream, GpuRange first, GpuRange second, IKept array, Call call)
    {
      gpumem_error* error = Error.Detail;
      KeptMemory one = null, two = null;
      bool enqueued = false;
      try
      {
        if (first.Memory != null) one = new KeptMemory(first.Memory);
        if (second.Memory != null) two = new KeptMemory(second.Memory);
        if (stream == null)
        {
          Error.Check(call(IntPtr.Zero, error), error, instance, nameof(GpuInstance));
          return;
        }
        lock (stream.Pending.Lock)
        {
          Error.Check(call(stream.Value, error), error, stream, nameof(GpuStream));
          stream.Pending.Keep(one);
          stream.Pending.Keep(two);
          stream.Pending.Keep(array);
          enqueued = true;
        }
      }
      finally
      {
        if (!enqueued)
        {
          one?.LetGo();
          two?.LetGo();
          array?.LetGo();
        }
      }
    }

    internal static void Copy(
        InstanceHandle instance, StreamHandle stream, GpuRange destination, GpuRange source, CopyOptions options,
        IKept array = null)
    {
      try
      {
        RequireEqual(destination, source);
      }
      catch
      {
        array?.LetGo();
        throw;
      }
      Run(instance, stream, destination, source, array,
          (value, error) => Copy(instance.Raw, value, destination, source, options, error));
    }

    internal static void Copy2D(
        InstanceHandle instance, StreamHandle stream, GpuRange destination, ulong destinationPitch, GpuRange source,
        ulong sourcePitch, ulong width, ulong height, CopyOptions options)
    {
      RequireRectangle(destination, destinationPitch, width, height, nameof(destination));
      RequireRectangle(source, sourcePitch, width, height, nameof(source));
      Run(instance, stream, destination, source, null,
          (value, error) => Copy2D(instance.Raw, value, destination, destinationPitch, source, sourcePitch, width,
                                   height, options, error));
    }

    internal static void Fill(InstanceHandle instance, StreamHandle stream, GpuRange destination, uint number, int size)
    {
      Run(instance, stream, destination, default(GpuRange), null,
          (value, error) => Fill(instance.Raw, value, destination, number, size, error));
    }

    internal static void Fill2D(
        InstanceHandle instance, StreamHandle stream, GpuRange destination, ulong pitch, ulong width, ulong height,
        uint number, int size)
    {
      RequireRectangle(destination, pitch, width, height, nameof(destination));
      Run(instance, stream, destination, default(GpuRange), null,
          (value, error) => Fill2D(instance.Raw, value, destination, pitch, width, height, number, size, error));
    }

    /// <summary>A range is a promise of the caller, also where the library would see more memory behind it.</summary>
    static void RequireRectangle(GpuRange range, ulong pitch, ulong width, ulong height, string name)
    {
      if (width == 0 || height == 0) return;
      bool fits = width <= range.Size && (height == 1 || pitch <= (range.Size - width) / (height - 1));
      if (!fits) throw new ArgumentException("the rectangle leaves its range of " + range.Size + " bytes", name);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int Copy(
        IntPtr instance, IntPtr stream, GpuRange destination, GpuRange source, CopyOptions options, gpumem_error* error)
    {
      gpumem_copy_options native = Describe(options);
      return Native.gpumem_copy(instance, stream, destination.Pointer, source.Pointer, source.Size, &native, error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int Copy2D(
        IntPtr instance, IntPtr stream, GpuRange destination, ulong destinationPitch, GpuRange source, ulong sourcePitch,
        ulong width, ulong height, CopyOptions options, gpumem_error* error)
    {
      gpumem_copy_options native = Describe(options);
      return Native.gpumem_copy_2d(instance, stream, destination.Pointer, destinationPitch, source.Pointer, sourcePitch,
                                   width, height, &native, error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int Fill(IntPtr instance, IntPtr stream, GpuRange destination, uint number, int size, gpumem_error* error)
    {
      return Native.gpumem_fill(instance, stream, destination.Pointer, destination.Size, number, (uint)size, error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int Fill2D(
        IntPtr instance, IntPtr stream, GpuRange destination, ulong pitch, ulong width, ulong height, uint number, int size,
        gpumem_error* error)
    {
      return Native.gpumem_fill_2d(instance, stream, destination.Pointer, pitch, width, height, number, (uint)size, error);
    }

    static gpumem_copy_options Describe(CopyOptions options)
    {
      gpumem_copy_options native = default(gpumem_copy_options);
      native.struct_size = (UIntPtr)(uint)sizeof(gpumem_copy_options);
      native.direction = (int)options.Direction;
      native.source_order = (int)options.SourceOrder;
      return native;
    }
  }
}
