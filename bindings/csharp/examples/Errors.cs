// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Three mistakes and the library's answers. Every binding has the same sample.
using System;
using GpuMem;

static class Errors
{
  static bool Refused(Action mistake)
  {
    try
    {
      mistake();
      return false;
    }
    catch (GpuMemException problem)
    {
      Console.WriteLine("{0}: {1}", problem.StatusName, problem.Message);
      return true;
    }
  }

  static int Main()
  {
    GpuInstance instance = GpuInstance.Default;
    GpuDevice device = instance.GetDevice(0);

    bool right = Refused(() => device.AllocateDevice(0));
    right &= Refused(() => device.AllocateDevice(1L << 62));
    using (GpuMemory memory = device.AllocateDevice(4096))
    using (PinnedMemory<byte> source = device.AllocatePinned<byte>(16))
    {
      // Only 8 bytes are left there. Slice would refuse this itself, but a plain pointer has no bounds.
      var behind = new GpuRange((IntPtr)((long)memory.DevicePointer + 4088), 16);
      right &= Refused(() => instance.Copy(behind, source));
    }

    StatusInfo busy = StatusInfo.Of(Status.Busy);
    Console.WriteLine("{0}: {1}; {2}", busy.Name, busy.Cause, busy.Remedy);
    Console.WriteLine("live objects: {0}", instance.Stats.LiveObjects);
    return right ? 0 : 1;
  }
}
