// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Copies a megabyte from pinned memory to the device and back. Every binding has the same sample.
using System;
using GpuMem;

static class Basic
{
  static int Main()
  {
    const int Size = 1 << 20;
    GpuInstance instance = GpuInstance.Default;
    GpuDevice device = instance.GetDevice(0);
    bool equal = true;

    using (PinnedMemory<byte> sent = device.AllocatePinned<byte>(Size))
    using (PinnedMemory<byte> received = device.AllocatePinned<byte>(Size))
    using (GpuMemory there = device.AllocateDevice(Size))
    {
      var numbers = new byte[Size];
      for (int i = 0; i < Size; ++i) numbers[i] = (byte)(i * 7);
      sent.CopyFrom(numbers);
      instance.Copy(there, sent);
      instance.Copy(received, there);
      byte[] back = received.ToArray();
      for (int i = 0; i < Size; ++i) equal &= back[i] == numbers[i];
    }
    Console.WriteLine("basic: {0} bytes to the device and back, content {1}", Size, equal ? "equal" : "different");
    Console.WriteLine("live objects: {0}", instance.Stats.LiveObjects);
    return equal ? 0 : 1;
  }
}
