// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests pools, their blocks, and the order of streams in which these are freed.

using System;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Threading;
using System.Threading.Tasks;

namespace GpuMem.Tests
{
  static unsafe class Pools
  {
    const int MiB = 1 << 20;

    internal static void Run()
    {
      Tap.Run("pools: the examples of the guide", Guide);
      Tap.Run("pools: blocks are counted", Counters);
      Tap.Run("pools: a block is reused in the order of its stream", OrderOfStream);
      Tap.Run("pools: work of another stream is waited for", OtherStreams);
      Tap.Run("pools: a block without a stream is kept for its work", WithoutStream);
      Tap.Run("pools: blocks are freed by a call that throws", ExplicitFree);
      Tap.Run("pools: a call that frees leaves a block to its work", FreeInUse);
      Tap.Run("pools: batches are all or none", Batches);
      Tap.Run("pools: the CPU uses blocks of host memory", HostAccess);
      Tap.Run("pools: a captured stream has blocks of its own", Captured);
      Tap.Run("pools: the callback makes room", Callback);
      Tap.Run("pools: addresses that are no blocks are refused", WrongAddresses);
      Tap.Run("pools: blocks outlive their pool and their stream", DisposedPool);
      Tap.Run("pools: blocks follow native streams", NativeStreams);
      Tap.Run("pools: debug pools find mistakes", DebugPools);
      Tap.Run("pools: a host function may not free", HostFunction);
      Tap.Run("pools: forgotten blocks and pools are freed", ForgottenBlocks);
      Tap.Run("pools: the finalizer thread does not wait for the work of forgotten ones", ForgottenWork);
      Tap.Run("pools: many threads use a pool", Threads);
    }

    /// <summary>A stream whose work waits until it is opened.</summary>
    sealed class Gate : IDisposable
    {
      readonly PinnedMemory<int> word;
      internal readonly GpuStream Stream;

      internal Gate(GpuDevice device)
      {
        word = device.AllocatePinned<int>(1);
        word[0] = 0;
        Stream = device.CreateStream();
        Stream.WaitValue(word, 1, WaitCondition.Equal);
      }

      internal void Open() { word[0] = 1; }

      public void Dispose()
      {
        Open();
        Stream.Synchronize();
        Stream.Dispose();
        word.Dispose();
      }
    }

    static void Guide(Scope scope)
    {
      GpuDevice device = scope.Device();
      const int Steps = 10, Size = 4096;
      using (MemoryPool pool = device.CreatePool())
      using (GpuStream stream = device.CreateStream())
      {
        for (int step = 0; step < Steps; ++step)
        {
          using (PoolBlock block = pool.Allocate(Size, stream))
          {
            stream.Fill(block, (uint)step, 4);
          }  // freed while the fill may run: the next step gets the same memory behind it
        }
        stream.Synchronize();
        Console.WriteLine("# " + pool.Info.TotalCount + " blocks from " + pool.Info.ReservedBytes + " bytes");
      }
      var cache = new Stack<PoolBlock>();
      using (MemoryPool pool = device.CreatePool(new PoolOptions { Kind = MemoryKind.Pinned, Limit = 32 << 20 }))
      {
        pool.SetCallback((lacking, bytes) =>
        {
          // Called when the pool lacks memory: dispose what can be made again.
          if (cache.Count == 0) return false;
          cache.Pop().Dispose();
          return true;
        });
        cache.Push(pool.Allocate(20 << 20));
        using (PoolBlock block = pool.Allocate(20 << 20))
        {
          block.CopyFrom(new[] { 1, 2, 3 });
        }
        Check.Equal(0, cache.Count, "cached");
      }
    }

    static void Counters(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuInstance instance = device.Instance;
      var options = new PoolOptions
      {
        Flags = PoolFlags.AllowInternalDependencies, Limit = 1 << 30, ReleaseThreshold = 1 << 29, InitialSize = 4 * MiB,
        SegmentSize = 8 * MiB, Name = "steps", LowWater = 1 << 28,
      };
      MemoryPool pool = device.CreatePool(options);
      Check.Equal("MemoryPool { Kind = Device, Device = 0, Name = \"steps\" }", pool.ToString(), "text");
      PoolInfo info = pool.Info;
      Check.Equal("Device 0 AllowInternalDependencies None 1073741824 536870912 268435456 0 0 steps", string.Join(" ",
          info.Kind, info.DeviceOrdinal, info.Flags, info.MemoryFlags, info.Limit, info.ReleaseThreshold, info.LowWater, info.LiveCount,
          info.TotalCount, info.Name), "info");
      Check.That(info.ReservedBytes >= 4 * MiB && info.CachedBytes == info.ReservedBytes && info.SegmentCount > 0, info.ToString());

      PoolBlock small = pool.Allocate(400), large = pool.Allocate(24 << 20), aligned = pool.Allocate(10, null, 1 << 16);
      Check.Equal(0L, (long)small.Pointer % 256 + (long)aligned.Pointer % (1 << 16), "alignment");
      using (MemoryPool fresh = device.CreatePool())
      {
        PoolAttempt attempt;
        Check.That(fresh.TryAllocate(1000, out attempt) == null, "a pool without memory has a block free");
        Check.Equal(PoolAnswer.NeedsMemory, attempt.Answer, "a pool without memory");
        fresh.Allocate(1000).Dispose();
        using (PoolBlock free = fresh.TryAllocate(1000, out attempt), none = fresh.TryAllocate(0), even = fresh.TryAllocate(100, null, 4096))
        {
          Check.Equal(PoolAnswer.Allocated, attempt.Answer, "a free block");
          Check.Equal("1000 0 0", free.Size + " " + (long)none.Pointer + " " + (long)even.Pointer % 4096, "free blocks");
        }
        long had = fresh.Info.ReservedBytes;
        fresh.SetLimit(had);
        Check.That(fresh.TryAllocate(had + 1, out attempt) == null && fresh.Info.ReservedBytes == had, "it took memory");
        Check.Equal("PoolAttempt { Answer = OverLimit, StreamId = 0 }", attempt.ToString(), "beyond the limit");
        Check.Fails(Status.InvalidArgument, () => fresh.TryAllocate(100, null, 3));
      }
      Check.That(small.Pool == pool && small.Size == 400 && small.Range.Size == 400, "block");
      Check.That(small.ToString().EndsWith(", Size = 400, Pool = \"steps\" }") && small.ToString().StartsWith("PoolBlock { Pointer = 0x"), small.ToString());
      PoolBlockInfo found = instance.GetPoolBlock(small.Pointer + 399);
      Check.Equal(found.ToString(), small.Info.ToString(), "block info");
      Check.That(found.Base == small.Pointer && found.UsableSize >= 400 && found.RequestedSize == 0, found.ToString());
      Check.That(found.IsOf(pool) && !found.IsOfDisposedPool, "its pool");
      PointerInfo at = instance.GetPointerInfo(small.Pointer);
      Check.That(at.Kind == MemoryKind.Pool && at.IsOfInstance, at.ToString());
      info = pool.Info;
      Check.Equal("3 3", info.LiveCount + " " + info.TotalCount, "counts");
      Check.Equal(found.UsableSize + large.Info.UsableSize + aligned.Info.UsableSize, info.LiveBytes, "live bytes");

      PoolClassInfo[] classes = Enumerable.Range(0, info.ClassCount).Select(index => pool.GetClassInfo(index)).ToArray();
      for (int i = 1; i < classes.Length; ++i) Check.That(classes[i].BlockSize > classes[i - 1].BlockSize, "order of classes");
      PoolClassInfo own = classes.Single(one => one.BlockSize == found.UsableSize);
      Check.That(own.LiveCount >= 1 && own.TotalCount >= 1 && own.BlockCount >= 1, own.ToString());
      Check.Equal(classes.Sum(one => one.BlockCount), classes.Sum(one => one.CutCount), "blocks that were cut");
      Check.Equal(classes.Sum(one => one.CutCount) + 1, info.CutCount, "with the large block");
      Check.Fails(Status.InvalidArgument, () => pool.GetClassInfo(info.ClassCount));
      Check.Throws<ArgumentOutOfRangeException>(() => pool.GetClassInfo(-1));

      using (PoolBlock none = pool.Allocate(0))
      {
        Check.That(none.Pointer == IntPtr.Zero && none.Info == null && none.Size == 0, "an empty block");
        instance.Fill(none, 1);
        none.CopyFrom(new int[0]);
      }
      small.Dispose();
      small.Dispose();
      Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(small.Pointer));
      large.Dispose();
      aligned.Dispose();
      info = pool.Info;
      Check.Equal("0 0 3", info.LiveCount + " " + info.LiveBytes + " " + info.TotalCount, "counts at the end");
      pool.ResetPeaks();
      // What this thread keeps of small blocks still counts.
      Check.That(pool.Info.PeakLiveBytes < info.PeakLiveBytes, "peak");
      Check.Equal("0 " + (4L << 20), pool.CapacityFor() + " " + pool.CapacityFor(4L << 20, 0), "capacity");
      Check.Fails(Status.InvalidArgument, () => pool.CapacityFor(1L << 62, 1L << 62));
      Check.Throws<ArgumentOutOfRangeException>(() => pool.CapacityFor(1, -1));
      Check.Throws<ArgumentNullException>(() => pool.CapacityFor(null));
      pool.SetLimit(1L << 31);
      pool.SetReleaseThreshold(0);
      Check.Equal((1L << 31) + " 0", pool.Info.Limit + " " + pool.Info.ReleaseThreshold, "limits");
      long reserved = pool.Info.ReservedBytes;
      Check.Equal(reserved, pool.Trim(), "trimmed");
      Check.Equal("0 0", pool.Info.ReservedBytes + " " + pool.Info.SegmentCount, "after the trim");
      pool.Dispose();
      pool.Dispose();
      Check.Throws<ObjectDisposedException>(() => pool.Allocate(1));
      Check.Throws<ArgumentOutOfRangeException>(() => device.CreatePool(new PoolOptions { Limit = -1 }));
      Check.Fails(Status.InvalidArgument, () => device.CreatePool(new PoolOptions { Kind = MemoryKind.Registered }));
    }

    static void OrderOfStream(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      using (GpuStream other = device.CreateStream())
      using (var gate = new Gate(device))
      {
        PoolBlock first = pool.Allocate(4000, gate.Stream);
        IntPtr address = first.Pointer;
        gate.Stream.Fill(first, 1, 4);
        first.Dispose();
        Check.Equal(0L, pool.Info.LiveCount, "live blocks");
        // The same stream may have it, another one and nobody's order may not.
        using (PoolBlock second = pool.Allocate(4000, gate.Stream))
        {
          Check.Equal(address, second.Pointer, "address in the same stream");
          gate.Stream.Fill(second, 2, 4);
        }
        using (PoolBlock elsewhere = pool.Allocate(4000, other))
        using (PoolBlock nowhere = pool.Allocate(4000))
        using (PoolBlock third = pool.Allocate(4000, gate.Stream))
        {
          Check.That(elsewhere.Pointer != address && nowhere.Pointer != address, "too early");
          Check.Equal(address, third.Pointer, "address in the same stream");
          gate.Open();
          var values = new int[1000];
          third.CopyTo(values);  // waits for the stream
          Check.That(values.All(value => value == 2), "values");
        }
      }
    }

    static void OtherStreams(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      using (GpuStream own = device.CreateStream())
      using (var gate = new Gate(device))
      {
        foreach (Action<PoolBlock> enqueue in new Action<PoolBlock>[]
        {
          block => gate.Stream.Fill(block, 3),
          block => gate.Stream.Copy(block.Slice(0, 10), block.Slice(10, 10)),
          block => gate.Stream.CopyRegions(new CopyRegion(block.Slice(0, 10), block.Slice(10, 10), 10)),
          block => gate.Stream.WriteValue(block.Slice(0, 4), 1),
          block => pool.RecordUse(block, gate.Stream),
        })
        {
          PoolBlock used = pool.Allocate(4000, own);
          IntPtr address = used.Pointer;
          enqueue(used);
          used.Dispose();
          PoolBlock[] next = Enumerable.Range(0, 100).Select(index => pool.Allocate(4000, own)).ToArray();
          Check.That(next.All(block => block.Pointer != address), "reused before the work is complete");
          Check.Equal(100L, pool.Info.LiveCount, "the block is held");
          foreach (PoolBlock block in next) block.Dispose();
        }
      }
    }

    static void WithoutStream(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      using (var gate = new Gate(device))
      {
        PoolBlock block = pool.Allocate(4000);
        gate.Stream.Fill(block, 3);
        block.Dispose();
        Check.Equal(1L, pool.Info.LiveCount, "live while work uses it");
        gate.Open();
        gate.Stream.Synchronize();
        Check.Equal(0L, pool.Info.LiveCount, "live after the work");
      }
    }

    static void ExplicitFree(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      using (MemoryPool otherPool = device.CreatePool())
      using (GpuStream other = device.CreateStream())
      using (var gate = new Gate(device))
      {
        PoolBlock block = pool.Allocate(4000, gate.Stream);
        IntPtr address = block.Pointer;
        gate.Stream.Fill(block, 1);
        Check.Throws<ArgumentException>(() => otherPool.Free(block));
        Check.Throws<ArgumentNullException>(() => pool.Free((PoolBlock)null));
        pool.Free(block, other);
        Check.That(block.IsDisposed, "disposed");
        Check.Equal(0L, pool.Info.LiveCount, "live");
        Check.Throws<ObjectDisposedException>(() => pool.Free(block));
        // Its own stream is not done with it.
        using (PoolBlock next = pool.Allocate(4000, other)) Check.That(next.Pointer != address, "too early");
        PoolBlock plain = pool.Allocate(100);
        pool.Free(plain);
        Check.Equal(0L, pool.Info.LiveCount, "live");
        pool.Free(pool.Allocate(0));
      }
    }

    static void FreeInUse(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      using (GpuStream other = device.CreateStream())
      {
        // Work that is enqueued, of a block without a stream.
        foreach (bool ordered in new[] { false, true })
        {
          using (var gate = new Gate(device))
          {
            PoolBlock block = pool.Allocate(4000);
            gate.Stream.Fill(block, 3);
            pool.Free(block, ordered ? other : null);
            Check.That(block.IsDisposed, "disposed");
            Check.Equal(1L, pool.Info.LiveCount, "live while work uses it");
            Check.Throws<ObjectDisposedException>(() => pool.Free(block));
            gate.Open();
            gate.Stream.Synchronize();
            Check.Equal(0L, pool.Info.LiveCount, "live after the work");
          }
        }
        // A call that runs, of a block with a stream.
        foreach (GpuStream order in new[] { null, other })
        {
          using (GpuStream own = device.CreateStream())
          {
            PoolBlock block = pool.Allocate(4 * MiB, own);
            string path = Path.GetTempFileName();
            try
            {
              using (var file = new FileStream(path, FileMode.Open))
              {
                file.SetLength(4 * MiB);
                // The call tells its progress while it uses the block.
                bool once = false;
                var options = new FileCopyOptions
                {
                  Progress = (done, total) =>
                  {
                    if (once) return true;
                    once = true;
                    pool.Free(block, order);
                    Check.Equal(1L, pool.Info.LiveCount, "live during the call");
                    return true;
                  },
                };
                device.Instance.ReadFile(block, file.SafeFileHandle, 0, options);
                Check.That(once, "the progress was told");
              }
            }
            finally
            {
              File.Delete(path);
            }
            Check.That(block.IsDisposed, "disposed");
            Check.Equal(0L, pool.Info.LiveCount, "live after the call");
          }
        }
      }
    }

    static void Batches(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool(new PoolOptions { Limit = 64 * MiB }))
      using (GpuStream stream = device.CreateStream())
      {
        PoolBlock[] blocks = pool.Allocate(new long[] { 40, 0, 4000, 400000 }, stream);
        Check.Equal("40 0 4000 400000", string.Join(" ", blocks.Select(block => block.Size)), "sizes");
        Check.Equal(3L, pool.Info.LiveCount, "live");
        foreach (PoolBlock block in blocks)
        {
          stream.Fill(block, 1);
          block.Dispose();
        }
        Check.Fails(Status.LimitExceeded, () => pool.Allocate(new long[] { 10, 65 * MiB }));
        Check.Throws<ArgumentNullException>(() => pool.Allocate(null));
        Check.Throws<ArgumentOutOfRangeException>(() => pool.Allocate(new long[] { 1, -1 }));
        Check.Equal(0, pool.Allocate(new long[0]).Length, "an empty batch");
        Check.Equal(0L, pool.Info.LiveCount, "live");

        IntPtr[] raw = pool.AllocatePointers(new long[] { 100, 0, 200 });
        Check.That(raw[0] != IntPtr.Zero && raw[1] == IntPtr.Zero && raw[2] != IntPtr.Zero, "pointers");
        pool.Free(new[] { raw[0], raw[1] }, stream);
        GpuMemException problem = Check.Fails(Status.NotFound, () => pool.Free(new[] { raw[2], raw[0] }));
        Check.That(problem.Message.Contains("1"), problem.Message);
        pool.Free(new IntPtr[0]);
        Check.Equal(0L, pool.Info.LiveCount, "live");
      }
    }

    static void HostAccess(Scope scope)
    {
      GpuDevice device = scope.Device();
      foreach (MemoryKind kind in new[] { MemoryKind.Pinned, MemoryKind.Pageable, MemoryKind.Managed, MemoryKind.Device })
      {
        using (MemoryPool pool = device.CreatePool(new PoolOptions { Kind = kind }))
        using (GpuStream stream = device.CreateStream())
        using (PoolBlock block = pool.Allocate(12, stream))
        {
          block.CopyFrom(new[] { 1, 2, 3 });
          stream.Fill(block.Slice(4, 4), 7);
          var values = new int[3];
          block.CopyTo(values);
          Check.Equal("1 117901063 3", string.Join(" ", values), "values");
          Check.Throws<ArgumentOutOfRangeException>(() => block.CopyFrom(new int[4]));
#if NETCOREAPP3_0_OR_GREATER
          if (kind == MemoryKind.Pinned || kind == MemoryKind.Pageable)
          {
            block.GetSpan<int>().Slice(2, 1).Fill(9);
            Check.Equal(9, *(int*)(block.Pointer + 8), "element");
            Check.Equal(1, block.GetSpan<long>().Length, "elements");
          }
          else
          {
            Check.Throws<InvalidOperationException>(() => block.GetSpan<int>());
          }
#endif
        }
      }
#if NETCOREAPP3_0_OR_GREATER
      using (MemoryPool pool = device.CreatePool(new PoolOptions { Kind = MemoryKind.Pinned }))
      {
        PoolBlock gone = pool.Allocate(4);
        gone.Dispose();
        Check.Throws<ObjectDisposedException>(() => gone.GetSpan<int>());
      }
      using (GpuInstance instance = scope.Open())
      {
        PoolBlock gone = instance.GetDevice(0).CreatePool(new PoolOptions { Kind = MemoryKind.Pinned }).Allocate(4);
        instance.Close(CloseMode.Force);
        Check.Throws<ObjectDisposedException>(() => gone.GetSpan<int>());
      }
#endif
    }

    static void Captured(Scope scope)
    {
      Scope.HostOnly();
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      using (GpuStream stream = device.CreateStream())
      using (PoolBlock block = pool.Allocate(1000))
      {
        Check.Equal(0L, stream.CaptureId, "no capture");
        HostSimulation.SetCapturing(stream, true);
        long capture = stream.CaptureId;
        Check.That(capture != 0, "no number");
        IntPtr pointer = pool.AllocatePointer(1000, stream);
        pool.Free(pointer, stream);
        Check.Equal(pointer, pool.AllocatePointer(1000, stream), "the order of the capture");
        pool.Free(pointer, stream);
        pool.RecordUse(block, stream);
        HostSimulation.SetCapturing(stream, false);
        Check.Equal(1L, pool.Info.CaptureCount, "captures");
        Check.Equal(1024L, pool.Info.CapturedBytes, "bytes of captures");
        PoolBlock[] others = Enumerable.Range(0, 200).Select(index => pool.Allocate(1000, stream)).ToArray();
        Check.That(others.All(other => other.Pointer != pointer), "the block is of the graph");
        foreach (PoolBlock other in others) other.Dispose();
        using (GpuStream launches = device.CreateStream())
        {
          pool.ReleaseCapture(capture, launches);
          launches.Synchronize();
        }
        pool.Trim();
        Check.Equal(0L, pool.Info.CaptureCount, "captures");
        Check.Equal(0L, pool.Info.CapturedBytes, "bytes of captures");
        Check.Fails(Status.NotFound, () => pool.ReleaseCapture(capture));
        Check.Equal(1L, pool.Info.LiveCount, "live");
      }
    }

    static void Callback(Scope scope)
    {
      GpuDevice device = scope.Device();
      MemoryPool pool = device.CreatePool(new PoolOptions { Limit = 32 * MiB });
      PoolBlock kept = pool.Allocate(20 * MiB);
      int calls = 0;
      pool.SetCallback((lacking, bytes) =>
      {
        Check.That(lacking == pool && bytes > 0, "arguments");
        ++calls;
        Check.Fails(Status.InvalidState, () => pool.SetCallback(null));
        Check.Fails(Status.InvalidState, () => pool.Trim());
        if (kept.IsDisposed) return false;
        kept.Dispose();
        return true;
      });
      PoolBlock block = pool.Allocate(20 * MiB);
      Check.Equal(1, calls, "calls");
      Check.Fails(Status.LimitExceeded, () => pool.Allocate(20 * MiB));
      Check.Fails(Status.LimitExceeded, () => pool.AllocatePointers(new long[] { 20 * MiB }));
      Check.That(calls >= 3, "calls");
      // What it throws comes out, with its own type.
      pool.SetCallback((lacking, bytes) => { throw new FormatException("in the callback"); });
      Check.Collect();
      Check.Equal("in the callback", Check.Throws<FormatException>(() => pool.Allocate(20 * MiB)).Message, "message");
      Check.Throws<FormatException>(() => pool.AllocatePointer(20 * MiB));
      pool.SetCallback(null);
      Check.Fails(Status.LimitExceeded, () => pool.Allocate(20 * MiB));
      block.Dispose();
      pool.Dispose();
    }

    static void WrongAddresses(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuInstance instance = device.Instance;
      using (MemoryPool pool = device.CreatePool())
      using (MemoryPool other = device.CreatePool())
      using (GpuStream stranger = scope.Device().CreateStream())
      {
        Check.Fails(Status.InvalidArgument, () => pool.Allocate(1, stranger));
        IntPtr pointer = pool.AllocatePointer(1000);
        Check.Fails(Status.InvalidArgument, () => pool.Free(pointer + 16));
        Check.Fails(Status.NotFound, () => pool.Free((IntPtr)0x1000));
        Check.Fails(Status.InvalidArgument, () => pool.Free(pointer, stranger));
        Check.Throws<GpuMemException>(() => other.Free(pointer));
        Check.Fails(Status.InvalidArgument, () => instance.FreePoolBlock(pointer + 16));
        Check.Fails(Status.NotFound, () => instance.FreePoolBlock((IntPtr)0x1000));
        Check.Fails(Status.InvalidArgument, () => pool.RecordUse(pointer, stranger));
        Check.Throws<ArgumentNullException>(() => pool.RecordUse(pointer, null));
        Check.Throws<ArgumentNullException>(() => pool.RecordUse(null, stranger));
        PoolBlock owned = pool.Allocate(1000);
        IntPtr address = owned.Pointer;
        foreach (Action free in new Action[]
        {
          () => pool.Free(address), () => pool.Free(address, 1000), () => pool.Free(new[] { pointer, address }),
          () => pool.FreeNative(address, IntPtr.Zero), () => instance.FreePoolBlock(address),
        })
        {
          var refused = Check.Throws<ArgumentException>(free);
          Check.That(refused.Message.Contains("is the block of a PoolBlock; dispose that instead"), refused.Message);
        }
        Check.Equal(2L, pool.Info.LiveCount, "live");
        owned.Dispose();
        Check.Fails(Status.NotFound, () => pool.Free(address));
        pool.Free(pointer, 1000);
        Check.Fails(Status.NotFound, () => pool.Free(pointer));
        Check.Fails(Status.NotFound, () => instance.GetPoolBlock(pointer));
        Check.Fails(Status.InvalidArgument, () => instance.GetPoolBlock(IntPtr.Zero));
        pool.Free(IntPtr.Zero);
        instance.FreePoolBlock(IntPtr.Zero);
        Check.Throws<ArgumentNullException>(() => pool.Free((IntPtr[])null));
      }
    }

    static void DisposedPool(Scope scope)
    {
      GpuDevice device = scope.Device();
      GpuInstance instance = device.Instance;
      GpuStream stream = device.CreateStream();
      MemoryPool pool = device.CreatePool();
      PoolBlock block = pool.Allocate(4000, stream), second = pool.Allocate(4000);
      IntPtr pointer = pool.AllocatePointer(100);
      Check.Fails(Status.Busy, () => instance.Close(CloseMode.Check));
      pool.Dispose();
      Check.That(block.Pool.IsDisposed && block.Info.IsOfDisposedPool && !block.Info.IsOf(pool), "pool");
      Check.Throws<ObjectDisposedException>(() => pool.Free(block));
      stream.Fill(block, 6);
      var values = new byte[4000];
      block.CopyTo(values);
      Check.That(values.All(value => value == 6), "values");
      using (GpuStream other = device.CreateStream())
      {
        other.Fill(block, 7);
        other.Fill(second, 7);
        second.Dispose();
        other.Synchronize();
      }
      // The block keeps its stream.
      stream.Dispose();
      Check.Equal(1L, instance.Stats.Streams, "streams");
      block.Dispose();
      GpuMemDiagnostics.ReleaseWaiting();
      Check.Equal(0L, instance.Stats.Streams, "streams");
      instance.FreePoolBlock(pointer);

      // After the instance was closed by force, everything may still be disposed.
      GpuInstance forced = scope.Open();
      MemoryPool lost = forced.GetDevice(0).CreatePool();
      PoolBlock gone = lost.Allocate(100);
      forced.Close(CloseMode.Force);
      Check.Throws<ObjectDisposedException>(() => lost.Allocate(100));
      gone.Dispose();
      lost.Dispose();
    }

    static void NativeStreams(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      using (GpuStream stream = device.CreateStream())
      {
        IntPtr native = stream.Info.NativeStream;
        IntPtr pointer = pool.AllocateNative(1000, native);
        Check.Equal(1L, pool.Info.LiveCount, "live");
        pool.FreeNative(pointer, native);
        // The same stream, in whichever form it is named.
        IntPtr again = pool.AllocatePointer(1000, stream);
        Check.Equal(pointer, again, "address");
        pool.Free(again, stream);
        Check.Fails(Status.NotFound, () => pool.FreeNative(again, native));
        pool.FreeNative(pool.AllocateNative(1000, IntPtr.Zero), IntPtr.Zero);
        Check.Equal(0L, pool.Info.LiveCount, "live");
      }
    }

    static void DebugPools(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool(new PoolOptions { Kind = MemoryKind.Pageable, Flags = PoolFlags.Debug }))
      {
        using (PoolBlock block = pool.Allocate(100)) Check.Equal(100L, block.Info.RequestedSize, "requested");
        IntPtr pointer = pool.AllocatePointer(100);
        Check.Fails(Status.InvalidArgument, () => pool.Free(pointer, 99));
        pool.Free(pointer, 100);
      }
    }

    static void HostFunction(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      using (GpuStream stream = device.CreateStream())
      {
        PoolBlock block = pool.Allocate(1000, stream), second = pool.Allocate(1000, stream);
        stream.Launch(() =>
        {
          second.Dispose();
          Check.Fails(Status.InvalidState, () => pool.Free(block));
        });
        stream.Synchronize();
        GpuMemDiagnostics.ReleaseWaiting();
        Check.Equal(1L, pool.Info.LiveCount, "live");
        pool.Free(block);
      }
    }

    static void ForgottenBlocks(Scope scope)
    {
      GpuDevice device = scope.Device();
      long before = Check.FinalizedObjects();
      Check.Elsewhere(() => Forget(device));
      Check.Eventually(() => device.Instance.Stats.LiveObjects == 0, "the finalizers");
      Check.Equal(13L, Check.FinalizedObjects() - before, "finalized objects");
      // Forgotten blocks make room.
      using (MemoryPool pool = device.CreatePool(new PoolOptions { Limit = 32 * MiB }))
      {
        Check.Elsewhere(() => { for (int i = 0; i < 100; ++i) pool.Allocate(MiB); });
        Check.Eventually(() => pool.Info.LiveCount == 0, "the finalizers");
      }
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Forget(GpuDevice device)
    {
      MemoryPool pool = device.CreatePool(), other = device.CreatePool();
      GpuStream stream = device.CreateStream();
      other.SetCallback((lacking, bytes) => lacking == pool);
      for (int i = 0; i < 10; ++i)
      {
        PoolBlock block = pool.Allocate(1000, i % 2 == 0 ? stream : null);
        if (i % 3 == 0) stream.Fill(block, 1);
      }
      stream.Synchronize();
    }

    // The work ends when the test says so, so a finalizer that waited for it would never return.
    static void ForgottenWork(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      {
        long before = Check.FinalizedObjects();
        Behaviour.Gate gate = null;
        Check.Elsewhere(() => gate = ForgetWorking(device, stream));
        using (gate)
        {
          Task finalizers = Task.Factory.StartNew(() =>
          {
            Check.Eventually(() => GpuMemDiagnostics.FinalizedObjects - before >= 4, "the finalizers");
            // A device that is full collects, too.
            Check.Fails(Status.OutOfDeviceMemory, () => device.AllocateDevice(1L << 40));
          }, TaskCreationOptions.LongRunning);
          Check.That(finalizers.Wait(TimeSpan.FromMinutes(4)), "a finalizer waits");
          Check.That(!stream.Query(), "the work is complete");
        }
        Check.Eventually(() =>
        {
          GpuMemDiagnostics.ReleaseWaiting();
          return instance.Stats.LiveObjects == 1 && GpuMemDiagnostics.WaitingObjects == 0;
        }, "the end of the pools");
      }
    }

    // Each block in a way of its own: of a pool that was disposed before, one that lives, one without a stream, and one that is
    // disposed.
    [MethodImpl(MethodImplOptions.NoInlining)]
    static Behaviour.Gate ForgetWorking(GpuDevice device, GpuStream stream)
    {
      MemoryPool disposed = device.CreatePool();
      PoolBlock orphan = disposed.Allocate(1000, stream);
      disposed.Dispose();
      var gate = new Behaviour.Gate(stream);
      stream.Fill(orphan, 1);
      stream.Fill(device.CreatePool().Allocate(1000, stream), 1);
      stream.Fill(device.CreatePool().Allocate(1000), 1);
      using (PoolBlock block = device.CreatePool().Allocate(1000, stream)) stream.Fill(block, 1);
      return gate;
    }

    static void Threads(Scope scope)
    {
      GpuDevice device = scope.Device();
      using (MemoryPool pool = device.CreatePool())
      {
        var passed = new ConcurrentQueue<PoolBlock>();
        var live = new ConcurrentDictionary<IntPtr, bool>();
        Exception problem = null;
        Thread[] threads = Enumerable.Range(0, 4).Select(number => new Thread(() =>
        {
          try
          {
            using (GpuStream stream = device.CreateStream())
            {
              for (int round = 0; round < 200; ++round)
              {
                PoolBlock block = pool.Allocate(1 + (round * 37 + number * 11) % 12000, round % 3 == 0 ? null : stream);
                Check.That(live.TryAdd(block.Pointer, true), "a block that lives already");
                stream.Fill(block, (uint)number);
                passed.Enqueue(block);
                // Blocks are freed by whichever thread comes.
                PoolBlock other;
                bool ignored;
                if (round % 8 == 0 || !passed.TryDequeue(out other)) continue;
                live.TryRemove(other.Pointer, out ignored);
                other.Dispose();
              }
              stream.Synchronize();
            }
          }
          catch (Exception caught)
          {
            problem = caught;
          }
        })).ToArray();
        foreach (Thread thread in threads) thread.Start();
        foreach (Thread thread in threads) thread.Join();
        if (problem != null) throw new TestFailure("on a thread: " + problem);
        foreach (PoolBlock block in passed) block.Dispose();
        GpuMemDiagnostics.ReleaseWaiting();
        Check.Equal("0 800", pool.Info.LiveCount + " " + pool.Info.TotalCount, "blocks");
      }
    }
  }
}
