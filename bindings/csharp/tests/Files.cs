// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests copies between files and memory.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Threading;

namespace GpuMem.Tests
{
  static class Files
  {
    internal static void Run()
    {
      Tap.Run("files: there and back", ThereAndBack);
      Tap.Run("files: parts", Parts);
      Tap.Run("files: progress and cancellation", Progress);
      Tap.Run("files: what was copied before a failure", Copied);
      Tap.Run("files: what was copied before a cancellation", CopiedBeforeCancellation);
      Tap.Run("files: what is refused", Refused);
    }

    // A file with a content, which is gone with its stream.
    static FileStream Make(byte[] content)
    {
      var file = new FileStream(Path.GetTempFileName(), FileMode.Open, FileAccess.ReadWrite, FileShare.ReadWrite, 4096,
                                System.IO.FileOptions.DeleteOnClose);
      file.Write(content, 0, content.Length);
      file.Flush();
      return file;
    }

    static byte[] Content(FileStream file)
    {
      using (var again = new FileStream(file.Name, FileMode.Open, FileAccess.Read, FileShare.ReadWrite | FileShare.Delete))
      {
        var content = new byte[again.Length];
        for (int done = 0; done < content.Length;) done += again.Read(content, done, content.Length - done);
        return content;
      }
    }

    static byte[] Numbered(int size) { return Enumerable.Range(0, size).Select(n => (byte)(n * 7 + (n >> 8))).ToArray(); }

    static void ThereAndBack(Scope scope)
    {
      GpuDevice device = scope.Device();
      const int Size = (9 << 20) + 5;
      byte[] sent = Numbered(Size);
      using (FileStream from = Make(new byte[] { 1, 2, 3 }.Concat(sent).ToArray()))
      using (FileStream to = Make(new byte[0]))
      using (GpuMemory memory = device.Create(MemoryKind.Device, Size))
      {
        FileCopied copied = device.Instance.ReadFile(memory, from.SafeFileHandle, 3);
        Check.Equal("" + Size + ",0", copied.Size + "," + copied.Direct, "read");
        copied = device.Instance.WriteFile(to.SafeFileHandle, memory, 0, new FileCopyOptions { Prefer = FileFlags.Direct });
        Check.Equal((long)Size, copied.Size, "written");
        Check.That(copied.Direct <= Size, copied.ToString());
        Check.That(Content(to).SequenceEqual(sent), "other bytes came back");
      }
    }

    static void Parts(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (FileStream file = Make(Numbered(10)))
      using (GpuMemory memory = device.Create(MemoryKind.Pinned, 100))
      {
        device.Instance.Fill(memory, 9);
        device.Instance.ReadFile(memory.Range.Slice(50, 2), file.SafeFileHandle, 4);
        device.Instance.WriteFile(file.SafeFileHandle, memory.Range.Slice(49, 4), 8);
        Check.Equal("0,7,14,21,28,35,42,49,9,28,35,9", string.Join(",", Content(file)), "the file");
        device.Instance.ReadFile(default(GpuRange), file.SafeFileHandle, 1000);
      }
    }

    static void Progress(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (FileStream file = Make(Numbered(1000)))
      using (GpuMemory memory = device.Create(MemoryKind.Device, 1000))
      {
        var told = new List<string>();
        var options = new FileCopyOptions
        {
          Progress = (done, total) =>
          {
            told.Add(done + "/" + total);
            return true;
          },
        };
        device.Instance.ReadFile(memory, file.SafeFileHandle, 0, options);
        Check.Equal("0/1000,1000/1000", string.Join(",", told), "progress");
        options.Progress = (done, total) => false;
        GpuMemException ended = Check.Throws<GpuMemException>(
            () => device.Instance.ReadFile(memory, file.SafeFileHandle, 0, options));
        Check.Equal(Status.Cancelled, ended.Status, "status");
        options.Progress = (done, total) => { throw new FormatException("of the test"); };
        Check.Throws<FormatException>(() => device.Instance.WriteFile(file.SafeFileHandle, memory, 0, options));
        var source = new CancellationTokenSource();
        options.Cancellation = source.Token;
        options.Progress = (done, total) =>
        {
          source.Cancel();
          return true;
        };
        var cancelled = Check.Throws<OperationCanceledException>(
            () => device.Instance.ReadFile(memory, file.SafeFileHandle, 0, options));
        Check.Equal(0L, ((GpuMemException)cancelled.InnerException).Copied ?? -1, "copied");
        // With neither function nor call.
        cancelled = Check.Throws<OperationCanceledException>(
            () => device.Instance.WriteFile(file.SafeFileHandle, memory, 0, new FileCopyOptions { Cancellation = source.Token }));
        var before = (GpuMemException)cancelled.InnerException;
        Check.Equal("Cancelled 0", before.Status + " " + before.Copied, "what was not begun");
        Check.Equal(source.Token, cancelled.CancellationToken, "token");
      }
    }

    static void Copied(Scope scope)
    {
      GpuDevice device = scope.Device();
      const int Size = 6 << 20, Cut = (5 << 20) + 5;
      byte[] sent = Numbered(Size);
      using (FileStream file = Make(sent))
      using (GpuMemory memory = device.Create(MemoryKind.Device, Size))
      {
        var options = new FileCopyOptions
        {
          Progress = (done, total) =>
          {
            file.SetLength(Cut);
            return true;
          },
        };
        GpuMemException failure = Check.Throws<GpuMemException>(
            () => device.Instance.ReadFile(memory, file.SafeFileHandle, 0, options));
        Check.Equal(Status.InvalidState, failure.Status, "status");
        Check.That(failure.Copied > 0 && failure.Copied <= Cut, "copied " + failure.Copied);
        Check.That(failure.ToString().Contains("[copied " + failure.Copied + " bytes]"), failure.ToString());
        int copied = (int)failure.Copied;
        using (FileStream back = Make(new byte[0]))
        {
          device.Instance.WriteFile(back.SafeFileHandle, memory.Range.Slice(0, copied));
          Check.That(Content(back).SequenceEqual(sent.Take(copied)), "other bytes were copied");
        }
        device.Instance.ReadFile(memory.Range.Slice(copied, Cut - copied), file.SafeFileHandle, copied);
        options.Progress = (done, total) => false;
        failure = Check.Throws<GpuMemException>(() => device.Instance.WriteFile(file.SafeFileHandle, memory, 0, options));
        Check.Equal(0L, failure.Copied ?? -1, "copied");
        failure = Check.Throws<GpuMemException>(() => device.Instance.Free((IntPtr)1));
        Check.That(failure.Copied == null, "copied");
      }
    }

    // Without threads it is known what is copied when progress is told for the second time. At the end nothing is cancelled.
    static void CopiedBeforeCancellation(Scope scope)
    {
      Check.Throws<ArgumentOutOfRangeException>(() => scope.Open(new InstanceOptions { TransferThreads = -2 }));
      GpuInstance instance = scope.Open(new InstanceOptions { TransferThreads = -1 });
      const int Size = 72 << 20, Step = 64 << 20;
      using (FileStream file = Make(new byte[0]))
      using (GpuMemory memory = instance.GetDevice(0).Create(MemoryKind.Device, Size))
      {
        file.SetLength(Size);
        ulong limit = 1, last = 0;
        var source = new CancellationTokenSource();
        var options = new FileCopyOptions
        {
          Cancellation = source.Token,
          Progress = (done, total) =>
          {
            if (done >= limit) source.Cancel();
            last = done;
            return true;
          },
        };
        OperationCanceledException ended = Check.Throws<OperationCanceledException>(
            () => instance.ReadFile(memory, file.SafeFileHandle, 0, options));
        Check.Equal((long)Step, ((GpuMemException)ended.InnerException).Copied ?? -1, "copied");
        string said = "the cancelled token ended the call at " + Step + " of " + Size + " bytes";
        Check.Equal(said, ended.Message, "message");
        Check.Equal(said, ended.InnerException.Message, "message inside");
        limit = Size;
        options.Cancellation = (source = new CancellationTokenSource()).Token;
        Check.Equal((long)Size, instance.ReadFile(memory, file.SafeFileHandle, 0, options).Size, "bytes");
        Check.Equal((ulong)Size, last, "what was told last");
      }
    }

    static void Refused(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (FileStream file = Make(Numbered(5)))
      using (FileStream readOnly = new FileStream(file.Name, FileMode.Open, FileAccess.Read, FileShare.ReadWrite | FileShare.Delete))
      using (GpuMemory memory = device.Create(MemoryKind.Device, 6))
      {
        GpuMemException failure = Check.Throws<GpuMemException>(
            () => device.Instance.ReadFile(memory, file.SafeFileHandle));
        Check.Equal(Status.InvalidArgument, failure.Status, "status");
        Check.That(failure.Message.Contains("has 5 bytes"), failure.Message);
        failure = Check.Throws<GpuMemException>(() => device.Instance.WriteFile(readOnly.SafeFileHandle, memory));
        Check.Equal(Status.NoAccess, failure.Status, "status");
        Check.Throws<ArgumentNullException>(() => device.Instance.ReadFile(memory, null));
        Check.Throws<ArgumentOutOfRangeException>(() => device.Instance.ReadFile(memory, file.SafeFileHandle, -1));
      }
    }
  }
}
