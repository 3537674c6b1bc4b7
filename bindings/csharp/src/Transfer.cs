// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies and fills. With a stream they are enqueued; without one they return when they are done.

using System;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  static unsafe class Transfer
  {
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
        array?.Release();
        throw;
      }
      Run(instance, stream, destination, source, array,
          error => Copy(instance, stream, destination, source, options, error));
    }

    /// <summary>Copies an array to an offset of a range, and returns when it is copied.</summary>
    internal static void FromArray<T>(InstanceHandle instance, GpuRange destination, long offset, T[] source)
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      using (var array = new PinnedArray<T>(source, nameof(source), false))
      {
        Copy(instance, null, destination.Slice(offset, array.Size, nameof(source)), array.Range, default(CopyOptions));
      }
    }

    /// <summary>Copies from an offset of a range to an array, and returns when it is copied.</summary>
    internal static void ToArray<T>(InstanceHandle instance, T[] destination, GpuRange source, long offset)
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      using (var array = new PinnedArray<T>(destination, nameof(destination), true))
      {
        Copy(instance, null, array.Range, source.Slice(offset, array.Size, nameof(destination)), default(CopyOptions));
      }
    }

    internal static void Copy2D(
        InstanceHandle instance, StreamHandle stream, GpuRange destination, long destinationPitch, GpuRange source,
        long sourcePitch, long width, long height, CopyOptions options)
    {
      RequireRectangle(destination, destinationPitch, width, height, nameof(destination), nameof(destinationPitch));
      RequireRectangle(source, sourcePitch, width, height, nameof(source), nameof(sourcePitch));
      Run(instance, stream, destination, source, null,
          error => Copy2D(instance, stream, destination, destinationPitch, source, sourcePitch, width, height, options,
                          error));
    }

    internal static void Fill(InstanceHandle instance, StreamHandle stream, GpuRange destination, uint value, int valueSize)
    {
      valueSize = SizeOf(destination, value, valueSize);
      Run(instance, stream, destination, default(GpuRange), null,
          error => Fill(instance, stream, destination, value, valueSize, error));
    }

    internal static void Fill2D(
        InstanceHandle instance, StreamHandle stream, GpuRange destination, long pitch, long width, long height,
        uint value, int valueSize)
    {
      valueSize = SizeOf(destination, value, valueSize);
      RequireRectangle(destination, pitch, width, height, nameof(destination), nameof(pitch));
      Run(instance, stream, destination, default(GpuRange), null,
          error => Fill2D(instance, stream, destination, pitch, width, height, value, valueSize, error));
    }

    internal static void CopyRegions(InstanceHandle instance, StreamHandle stream, CopyRegion[] regions)
    {
      if (regions == null) throw new ArgumentNullException(nameof(regions));
      for (int i = 0; i < regions.Length; ++i) regions[i].Check(i);
      var kept = new KeptBatch(regions);
      bool enqueued = false;
      try
      {
        if (stream == null)
        {
          CopyRegions(instance, null, regions, nameof(GpuInstance));
          return;
        }
        lock (stream.Pending.Lock)
        {
          try
          {
            CopyRegions(null, stream, regions, nameof(GpuStream));
          }
          finally
          {
            // A batch that fails midway may have enqueued some of its regions.
            enqueued = !stream.IsDisposed;
            if (enqueued) stream.Pending.Keep(kept, stream);
          }
        }
      }
      finally
      {
        if (!enqueued) kept.Release();
      }
    }

    // The operands stay valid during a call without a stream, and otherwise until the work has been observed complete.
    static void Run(InstanceHandle instance, StreamHandle stream, GpuRange first, GpuRange second, IKept array, NativeCall call)
    {
      gpumem_error* error = Error.Detail;
      KeptMemory one = null, two = null;
      bool enqueued = false;
      try
      {
        one = KeptMemory.Of(first);
        two = KeptMemory.Of(second);
        if (stream == null)
        {
          instance.Check(call(error), error);
          return;
        }
        lock (stream.Pending.Lock)
        {
          stream.Check(call(error), error);
          stream.Pending.Keep(one, stream);
          stream.Pending.Keep(two, stream);
          stream.Pending.Keep(array);
          enqueued = true;
        }
      }
      catch (GpuMemException problem) when (problem.Status == Status.NoAccess)
      {
        RequireNotAccessed(problem, instance ?? stream.Instance, first);
        RequireNotAccessed(problem, instance ?? stream.Instance, second);
        throw;
      }
      finally
      {
        if (!enqueued)
        {
          one?.Release();
          two?.Release();
          array?.Release();
        }
      }
    }

    // To the library the memory is attached to the CPU, which is not what the program has done.
    static void RequireNotAccessed(GpuMemException problem, InstanceHandle instance, GpuRange range)
    {
      if (!instance.Turns.IsAccessed(instance, range)) return;
      throw problem.As(Status.Busy, "the CPU is accessing the managed memory at " + Printed.Format(range.Pointer) +
                                    "; dispose its HostAccess or view first");
    }

    // The library takes the low bytes of a value, and would fill with another one.
    static int SizeOf(GpuRange destination, uint value, int valueSize)
    {
      if (valueSize < 0) throw new ArgumentOutOfRangeException(nameof(valueSize), valueSize, "pass 1, 2 or 4, or 0 for the default");
      if (valueSize == 0)
      {
        Type element = destination.Element;
        valueSize = Math.Max(destination.FillSize, 1);
        bool whole = element == null || element.IsEnum || element.IsPrimitive;
        if (!whole || element == typeof(float) || element == typeof(double) || valueSize > 4)
        {
          if (value != 0)
          {
            throw new ArgumentException("the elements are of " + element.Name + ": cast the value to that, or pass its " +
                                        "bits and their valueSize", nameof(value));
          }
          valueSize = 1;
        }
      }
      if (valueSize == 1 && value > byte.MaxValue || valueSize == 2 && value > ushort.MaxValue)
      {
        throw new ArgumentOutOfRangeException(
            nameof(valueSize), valueSize, "the value " + value + " does not fit into " + valueSize +
            (valueSize == 1 ? " byte; pass 2 or 4" : " bytes; pass 4"));
      }
      return valueSize;
    }

    static void RequireEqual(GpuRange destination, GpuRange source)
    {
      if (destination.Size != source.Size)
      {
        throw new ArgumentException("the destination has " + destination.Size + " bytes, but the source " + source.Size +
                                    "; slice the larger one", nameof(source));
      }
    }

    // The range may be a slice, and the library would not see its end.
    static void RequireRectangle(
        GpuRange range, long pitch, long width, long height, string name, string pitchName)
    {
      Sizes.ToNative(pitch, pitchName);
      Sizes.ToNative(width, nameof(width));
      Sizes.ToNative(height, nameof(height));
      if (width == 0 || height == 0) return;
      bool fits = width <= range.Size && (height == 1 || pitch <= (range.Size - width) / (height - 1));
      if (!fits) throw new ArgumentException("the rectangle leaves its range of " + range.Size + " bytes", name);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int Copy(InstanceHandle instance, StreamHandle stream, GpuRange destination, GpuRange source,
                    CopyOptions options, gpumem_error* error)
    {
      gpumem_copy_options native = options.Describe();
      return stream == null
          ? Native.gpumem_copy(instance.Raw, destination.Pointer, source.Pointer, (ulong)source.Size, &native, error)
          : Native.gpumem_copy_async(stream.Value, destination.Pointer, source.Pointer, (ulong)source.Size, &native, error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int Copy2D(InstanceHandle instance, StreamHandle stream, GpuRange destination, long destinationPitch,
                      GpuRange source, long sourcePitch, long width, long height, CopyOptions options,
                      gpumem_error* error)
    {
      gpumem_copy_options native = options.Describe();
      return stream == null
          ? Native.gpumem_copy_2d(instance.Raw, destination.Pointer, (ulong)destinationPitch, source.Pointer,
                                  (ulong)sourcePitch, (ulong)width, (ulong)height, &native, error)
          : Native.gpumem_copy_2d_async(stream.Value, destination.Pointer, (ulong)destinationPitch, source.Pointer,
                                        (ulong)sourcePitch, (ulong)width, (ulong)height, &native, error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static void CopyRegions(InstanceHandle instance, StreamHandle stream, CopyRegion[] regions, string name)
    {
      var native = new gpumem_copy_region[regions.Length];
      for (int i = 0; i < regions.Length; ++i) native[i] = regions[i].Describe();
      ulong failed = ulong.MaxValue;
      gpumem_error* error = Error.Detail;
      int status;
      fixed (gpumem_copy_region* first = native)
      {
        status = stream == null
            ? Native.gpumem_copy_regions(instance.Raw, first, (ulong)native.Length, &failed, error)
            : Native.gpumem_copy_regions_async(stream.Value, first, (ulong)native.Length, &failed, error);
      }
      GpuHandle handle = stream == null ? (GpuHandle)instance : stream;
      handle.Check(status, error, failed == ulong.MaxValue ? (int?)null : (int)failed);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int Fill(InstanceHandle instance, StreamHandle stream, GpuRange destination, uint number, int size,
                    gpumem_error* error)
    {
      return stream == null
          ? Native.gpumem_fill(instance.Raw, destination.Pointer, (ulong)destination.Size, number, (uint)size, error)
          : Native.gpumem_fill_async(stream.Value, destination.Pointer, (ulong)destination.Size, number, (uint)size, error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int Fill2D(InstanceHandle instance, StreamHandle stream, GpuRange destination, long pitch, long width,
                      long height, uint number, int size, gpumem_error* error)
    {
      return stream == null
          ? Native.gpumem_fill_2d(instance.Raw, destination.Pointer, (ulong)pitch, (ulong)width, (ulong)height, number,
                                  (uint)size, error)
          : Native.gpumem_fill_2d_async(stream.Value, destination.Pointer, (ulong)pitch, (ulong)width, (ulong)height,
                                        number, (uint)size, error);
    }
  }
}
