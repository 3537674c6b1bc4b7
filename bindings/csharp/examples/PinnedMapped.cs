// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pinned memory and its flags, a registered array, and a copy between the two on a stream. Every binding has the same
// sample.
using System;
using System.Linq;
using GpuMem;

static class PinnedMapped
{
  static string YesOrNo(bool value) { return value ? "yes" : "no"; }

  static void PrintFlags(string name, MemoryFlags flags)
  {
    Console.WriteLine("{0}: portable {1}, mapped {2}, write_combined {3}", name,
                      YesOrNo((flags & MemoryFlags.Portable) != 0), YesOrNo((flags & MemoryFlags.Mapped) != 0),
                      YesOrNo((flags & MemoryFlags.WriteCombined) != 0));
  }

  static int Main()
  {
    GpuInstance instance = GpuInstance.Default;
    GpuDevice device = instance.GetDevice(0);
    int[] mine = Enumerable.Range(0, 16384).Select(i => i * i).ToArray();
    var shared = new MemoryOptions { Require = MemoryFlags.Portable | MemoryFlags.Mapped };
    var combined = new MemoryOptions { Require = MemoryFlags.WriteCombined };
    bool equal;

    using (PinnedMemory<int> pinned = device.AllocatePinned<int>(mine.Length, shared))
    using (PinnedMemory<int> writeOnly = device.AllocatePinned<int>(mine.Length, combined))
    using (GpuMemory registered = device.Register(mine))
    using (GpuStream stream = device.CreateStream())
    using (GpuEvent copied = device.CreateEvent())
    {
      PrintFlags("pinned", pinned.Allocation.GrantedFlags);
      PrintFlags("write-combined", writeOnly.Allocation.GrantedFlags);
      Console.WriteLine("device pointer: {0}", YesOrNo(pinned.DevicePointer != IntPtr.Zero));
      Console.WriteLine("registered: {0} bytes", registered.Size);

      stream.Copy(pinned, registered);
      copied.Record(stream);
      copied.Synchronize();
      equal = pinned.ToArray().SequenceEqual(mine);
      Console.WriteLine("pinned_mapped: {0} bytes on a stream, content {1}", pinned.Size, equal ? "equal" : "different");
    }
    Console.WriteLine("live objects: {0}", instance.Stats.LiveObjects);
    return equal ? 0 : 1;
  }
}
