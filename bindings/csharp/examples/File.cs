// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Weights in a file behind a header, read into memory of a device. Every binding has the same sample.
using System;
using System.IO;
using System.Linq;
using GpuMem;

static class Program
{
  const int Header = 100;
  const int Size = 12 << 20;

  static int Main()
  {
    GpuInstance instance = GpuInstance.Default;
    GpuDevice device = instance.GetDevice(0);
    var content = new byte[Size];
    for (int i = 0; i < Size; ++i)
      content[i] = (byte)(i * 7 + i / 1000);
    bool right = false;
    long last = 0;
    string path = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
    using (var file = new FileStream(path, FileMode.CreateNew, FileAccess.ReadWrite, FileShare.Read, 4096, FileOptions.DeleteOnClose))
    using (GpuMemory weights = device.AllocateDevice(Size))
    using (PinnedMemory<byte> back = device.AllocatePinned<byte>(Size))
    {
      file.Position = Header;
      file.Write(content, 0, Size);
      file.Flush();

      var options = new FileCopyOptions { Progress = (done, total) => { last = (long)(100 * done / total); return true; } };
      instance.ReadFile(weights, file.SafeFileHandle, Header, options);
      instance.Copy(back, weights);
      bool same = back.ToArray().SequenceEqual(content);
      Console.WriteLine("{0} % are there, content {1}", last, same ? "equal" : "different");

      try
      {
        instance.ReadFile(weights, file.SafeFileHandle, Header + 1);  // more than the file has
      }
      catch (GpuMemException problem)
      {
        Console.WriteLine("{0}: {1}", problem.StatusName, problem.Message);
        right = same;
      }
    }
    Console.WriteLine("live objects: {0}", instance.Stats.LiveObjects);
    return right ? 0 : 1;
  }
}
