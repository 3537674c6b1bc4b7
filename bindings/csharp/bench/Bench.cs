// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Measures calls through the binding against an empty P/Invoke. It prints nanoseconds and ratios, and judges nothing.

using System;
using System.Diagnostics;
using System.Linq;
using GpuMem.Interop;

namespace GpuMem.Bench
{
  static unsafe class Bench
  {
    static double empty;

    static int Main()
    {
      GpuMemLibrary.Load();
      Measure();
      return 0;
    }

    static void Measure()
    {
      const int Many = 2000000, Few = 20000;
      using (GpuInstance instance = GpuInstance.Open(Backend.Host))
      {
        GpuDevice device = instance.GetDevice(0);
        using (GpuStream stream = device.CreateStream())
        using (GpuEvent gpuEvent = device.CreateEvent())
        using (PinnedMemory<int> pinned = device.AllocatePinned<int>(1024))
        {
          IntPtr raw = RawStream(device);
          gpumem_error error = gpumem_error.Sized();
          gpumem_error* detail = &error;
          empty = Best(Many, count => { for (int i = 0; i < count; ++i) Native.gpumem_version(); });
          Print("empty P/Invoke (gpumem_version)", empty);
          Print("P/Invoke gpumem_feature_supported", Best(Many, count => { for (int i = 0; i < count; ++i) Native.gpumem_feature_supported(1); }));
          double query = Best(Many, count => { for (int i = 0; i < count; ++i) Native.gpumem_stream_query(raw, detail); });
          Print("P/Invoke gpumem_stream_query", query);
          Print("GpuStream.Query", Best(Many, count => { for (int i = 0; i < count; ++i) stream.Query(); }), query);
          Print("GpuEvent.Query", Best(Many, count => { for (int i = 0; i < count; ++i) gpuEvent.Query(); }), query);
          Print("PinnedMemory<int> element", Best(Many, count => { for (int i = 0; i < count; ++i) pinned[i & 1023] = i; }));
          double make = Best(Few, count => { for (int i = 0; i < count; ++i) RawMemory(device, instance); });
          Print("P/Invoke malloc and free, 4096 bytes of device memory", make);
          Print("GpuMemory create and dispose", Best(Few, count => { for (int i = 0; i < count; ++i) device.AllocateDevice(4096).Dispose(); }), make);
          Native.gpumem_stream_destroy(raw, detail);
        }
      }
    }

    static IntPtr RawStream(GpuDevice device)
    {
      // The binding has no public raw handles, so the benchmark opens another instance.
      gpumem_instance_desc desc = gpumem_instance_desc.Sized();
      desc.backend = (int)device.Instance.Info.Backend;
      IntPtr instance, nativeDevice, stream;
      if (Native.gpumem_instance_open(&desc, &instance, null) < 0 ||
          Native.gpumem_device_get(instance, 0, &nativeDevice, null) < 0 ||
          Native.gpumem_stream_create(nativeDevice, null, &stream, null) < 0)
      {
        throw new InvalidOperationException("no stream");
      }
      return stream;
    }

    static void RawMemory(GpuDevice device, GpuInstance instance)
    {
      instance.Free(device.Allocate(MemoryKind.Device, 4096));
    }

    static double Best(int count, Action<int> loop)
    {
      loop(count / 10);
      return Enumerable.Range(0, 7).Min(round =>
      {
        var watch = Stopwatch.StartNew();
        loop(count);
        return watch.Elapsed.TotalMilliseconds * 1e6 / count;
      });
    }

    static void Print(string name, double nanoseconds, double basis = 0)
    {
      Console.WriteLine("{0,-56}{1,10:F1} ns   {2:F2} of {3}", name, nanoseconds, nanoseconds / (basis == 0 ? empty : basis),
                        basis == 0 ? "an empty P/Invoke" : "the P/Invoke of it");
    }
  }
}
