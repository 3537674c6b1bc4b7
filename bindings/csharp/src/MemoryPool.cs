// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Pools, which allocate and free blocks fast, in the order of streams.

using System;
using System.Collections.Generic;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  public sealed unsafe partial class PoolBlockInfo
  {
    IntPtr pool;

    void Complete(gpumem_pool_block_info* info) { pool = info->pool; }

    /// <summary>Whether its pool was disposed.</summary>
    public bool IsOfDisposedPool { get { return pool == IntPtr.Zero; } }

    /// <summary>Whether it is a block of this pool.</summary>
    public bool IsOf(MemoryPool pool)
    {
      if (pool == null) throw new ArgumentNullException(nameof(pool));
      return this.pool != IntPtr.Zero && pool.Handle.Raw == this.pool;
    }
  }

  /// <summary>
  /// A source of blocks of memory, fast enough to allocate for every piece of work: it takes large pieces of one kind of
  /// memory and cuts blocks from them. Blocks are allocated and freed in the order of a stream, so that work of the stream
  /// may use them at once, and a free does not wait for the work before it.
  /// </summary>
  public sealed unsafe partial class MemoryPool : IDisposable
  {
    /// <summary>Allocates a block. Its contents are indeterminate.</summary>
    /// <param name="size">Bytes; a block of none needs no memory, and its pointer is zero.</param>
    /// <param name="stream">
    /// Stream in whose order the block is allocated and freed. Null: the block is freed when all work that uses it has been
    /// observed complete.
    /// </param>
    /// <param name="alignment">Power of two in bytes; 0 means 16 in memory of the host, 256 elsewhere.</param>
    public PoolBlock Allocate(long size, [AllowNull] GpuStream stream = null, long alignment = 0)
    {
      return Allocate(size, stream, alignment, null);
    }

    /// <summary>
    /// Allocates a block as <see cref="Allocate(long, GpuStream, long)"/> does if the pool has one free: it waits for nothing and takes no
    /// memory. Null if there is none, or another thread is changing the pool.
    /// </summary>
    /// <param name="size">Bytes.</param>
    /// <param name="stream">As for one block.</param>
    /// <param name="alignment">As for one block.</param>
    [return: MaybeNull]
    public PoolBlock TryAllocate(long size, [AllowNull] GpuStream stream = null, long alignment = 0)
    {
      PoolAttempt attempt;
      return TryAllocate(size, out attempt, stream, alignment);
    }

    /// <summary>
    /// Allocates a block as <see cref="TryAllocate(long, GpuStream, long)"/> does, and says what would help if there is none.
    /// </summary>
    /// <param name="size">Bytes.</param>
    /// <param name="attempt">What came of it.</param>
    /// <param name="stream">As for one block.</param>
    /// <param name="alignment">As for one block.</param>
    [return: MaybeNull]
    public PoolBlock TryAllocate(long size, out PoolAttempt attempt, [AllowNull] GpuStream stream = null, long alignment = 0)
    {
      gpumem_pool_attempt made = gpumem_pool_attempt.Sized();
      PoolBlock block = Allocate(size, stream, alignment, &made);
      attempt = new PoolAttempt(&made);
      return block;
    }

    // With `attempt` only what is free.
    PoolBlock Allocate(long size, GpuStream stream, long alignment, gpumem_pool_attempt* attempt)
    {
      Sizes.ToNative(size, nameof(size));
      Sizes.ToNative(alignment, nameof(alignment));
      var block = new BlockHandle(handle.Usable(), GpuStream.HandleOf(stream), size);
      try
      {
        IntPtr pointer;
        bool done = true;
        try
        {
          if (attempt == null) pointer = AllocateNative(size, alignment, stream);
          else done = TryAllocateNative(size, alignment, stream, &pointer, attempt);
        }
        catch (GpuMemException problem) when (attempt == null && Forgotten.MadeRoom(problem))
        {
          pointer = AllocateAgain(size, alignment, stream);
        }
        if (done)
        {
          block.Fill(pointer);
          return new PoolBlock(this, block, size);
        }
      }
      catch
      {
        block.AbandonAll();
        throw;
      }
      block.AbandonAll();
      return null;
    }

    /// <summary>Allocates several blocks, all or none.</summary>
    /// <param name="sizes">Bytes of each block.</param>
    /// <param name="stream">As for one block.</param>
    public PoolBlock[] Allocate(long[] sizes, [AllowNull] GpuStream stream = null)
    {
      handle.Usable();
      RequireSizes(sizes);
      var handles = new List<BlockHandle>();
      var blocks = new PoolBlock[sizes.Length];
      try
      {
        foreach (long size in sizes) handles.Add(new BlockHandle(handle, GpuStream.HandleOf(stream), size));
        for (int i = 0; i < blocks.Length; ++i) blocks[i] = new PoolBlock(this, handles[i], sizes[i]);
        IntPtr[] pointers = AllocatePointers(sizes, stream);
        for (int i = 0; i < pointers.Length; ++i) handles[i].Fill(pointers[i]);
      }
      catch
      {
        foreach (BlockHandle one in handles) one.AbandonAll();
        throw;
      }
      return blocks;
    }

    /// <summary>Allocates a block and returns only its pointer: for code that frees blocks itself.</summary>
    public IntPtr AllocatePointer(long size, [AllowNull] GpuStream stream = null, long alignment = 0)
    {
      handle.Usable();
      Sizes.ToNative(size, nameof(size));
      Sizes.ToNative(alignment, nameof(alignment));
      return Forgotten.Retry(() => AllocateNative(size, alignment, stream));
    }

    /// <summary>Allocates several blocks, all or none, and returns only their pointers.</summary>
    public IntPtr[] AllocatePointers(long[] sizes, [AllowNull] GpuStream stream = null)
    {
      handle.Usable();
      RequireSizes(sizes);
      ulong[] native = Array.ConvertAll(sizes, size => (ulong)size);
      return Forgotten.Retry(() => AllocateNative(native, stream));
    }

    /// <summary>
    /// Allocates a block in the order of a native stream, and returns only its pointer: for code that is handed a
    /// <c>cudaStream_t</c> at each call.
    /// </summary>
    /// <param name="size">Bytes; 0 gives zero.</param>
    /// <param name="nativeStream">A live stream of the pool's device; zero is the legacy default stream.</param>
    public IntPtr AllocateNative(long size, IntPtr nativeStream)
    {
      handle.Usable();
      Sizes.ToNative(size, nameof(size));
      return Forgotten.Retry(() => AllocateInNative(size, nativeStream));
    }

    /// <summary>
    /// Frees a block, as its <c>Dispose</c> does, but throws if that fails; the block lives then. While a call or work needs
    /// it, it is only disposed, and a later failure is logged.
    /// </summary>
    /// <param name="block">A block of this pool.</param>
    /// <param name="stream">
    /// Stream behind whose work, as enqueued now, the block is free; the work of the block's own stream is waited for as
    /// well. Null: the block's own stream.
    /// </param>
    public void Free(PoolBlock block, [AllowNull] GpuStream stream = null)
    {
      handle.Usable();
      if (block == null) throw new ArgumentNullException(nameof(block));
      if (block.Pool != this) throw new ArgumentException("the block is of another pool; call that", nameof(block));
      block.Handle.Free(GpuStream.HandleOf(stream));
      block.Dispose();
      GC.KeepAlive(stream);
    }

    /// <summary>Frees a block by its pointer, in the order of a stream. Zero does nothing.</summary>
    /// <param name="pointer">Pointer of <see cref="AllocatePointer"/>; that of a <see cref="PoolBlock"/> is refused.</param>
    /// <param name="stream">
    /// Stream behind whose work, as enqueued now, the block is free. Null: no work uses the block any more.
    /// </param>
    public void Free(IntPtr pointer, [AllowNull] GpuStream stream = null)
    {
      RefuseOwned(pointer, nameof(pointer));
      Calls.gpumem_pool_free(handle, pointer, GpuStream.HandleOf(stream));
    }

    /// <summary>The same, with the bytes that were asked for.</summary>
    public void Free(IntPtr pointer, long size, [AllowNull] GpuStream stream = null)
    {
      RefuseOwned(pointer, nameof(pointer));
      Calls.gpumem_pool_free_sized(handle, pointer, Sizes.ToNative(size, nameof(size)), GpuStream.HandleOf(stream));
    }

    /// <summary>
    /// Frees blocks by their pointers, one after the other, until one cannot be freed; the message has its index.
    /// </summary>
    public void Free(IntPtr[] pointers, [AllowNull] GpuStream stream = null)
    {
      handle.Usable();
      if (pointers == null) throw new ArgumentNullException(nameof(pointers));
      foreach (IntPtr pointer in pointers) RefuseOwned(pointer, nameof(pointers));
      Calls.gpumem_pool_free_batch(handle, pointers, GpuStream.HandleOf(stream));
    }

    /// <summary>Frees a block by its pointer, in the order of a native stream. Zero does nothing.</summary>
    public void FreeNative(IntPtr pointer, IntPtr nativeStream)
    {
      RefuseOwned(pointer, nameof(pointer));
      Calls.gpumem_pool_free_native(handle, pointer, nativeStream);
    }

    /// <summary>
    /// Records that work of a stream uses a block, besides the stream in whose order it will be freed: work of other code,
    /// such as a kernel. The free then waits for the work that the stream has by then, without holding up the caller.
    /// </summary>
    public void RecordUse(PoolBlock block, GpuStream stream)
    {
      handle.Usable();
      if (block == null) throw new ArgumentNullException(nameof(block));
      if (block.Size != 0) RecordUse(block.Pointer, stream);
      GC.KeepAlive(block);
    }

    /// <summary>The same by the block's pointer.</summary>
    public void RecordUse(IntPtr pointer, GpuStream stream)
    {
      handle.Usable();
      if (stream == null) throw new ArgumentNullException(nameof(stream));
      Calls.gpumem_pool_record_use(handle, pointer, stream.Handle);
    }

    /// <summary>
    /// Releases the part of the pool that belongs to a capture into a graph, when the graph is not launched any more. Blocks
    /// that live are ordinary blocks from then on.
    /// </summary>
    /// <param name="captureId">Number of <see cref="GpuStream.CaptureId"/>.</param>
    /// <param name="stream">
    /// Stream behind whose work, as enqueued now, the graph does not run any more. Null: it runs no more.
    /// </param>
    public void ReleaseCapture(long captureId, [AllowNull] GpuStream stream = null)
    {
      Calls.gpumem_pool_release_capture(handle, (ulong)captureId, GpuStream.HandleOf(stream));
    }

    /// <summary>
    /// Releases what is free, until the pool has no more than some bytes. Blocks that live stay, and so do those whose work
    /// is not complete.
    /// </summary>
    /// <param name="keep">Bytes that the pool may keep, live or free.</param>
    /// <returns>Bytes that were released.</returns>
    public long Trim(long keep = 0)
    {
      return Sizes.FromNative(Calls.gpumem_pool_trim(handle, Sizes.ToNative(keep, nameof(keep))));
    }

    /// <summary>
    /// Returns how many bytes a pool takes to hold blocks of these sizes at the same time, what rounding adds included. It does not
    /// depend on what the pool has. A pool with that as its <see cref="PoolOptions.InitialSize"/> serves them, to one thread
    /// in one stream, without taking more the first time.
    /// </summary>
    /// <param name="sizes">Bytes of each block.</param>
    public long CapacityFor(params long[] sizes)
    {
      handle.Usable();
      RequireSizes(sizes);
      return Sizes.FromNative(Calls.gpumem_pool_capacity_for(handle, Array.ConvertAll(sizes, size => (ulong)size)));
    }

    /// <summary>
    /// Sets how many bytes the pool takes at most; 0 means no limit. One below what it has releases nothing.
    /// </summary>
    public void SetLimit(long size) { Calls.gpumem_pool_set_limit(handle, Sizes.ToNative(size, nameof(size))); }

    /// <summary>Sets how many bytes the pool keeps when blocks are freed; 0 means that all is kept.</summary>
    public void SetReleaseThreshold(long size)
    {
      Calls.gpumem_pool_set_release_threshold(handle, Sizes.ToNative(size, nameof(size)));
    }

    /// <summary>
    /// Gets information about a size class; larger numbers have larger blocks. There are
    /// <see cref="PoolInfo.ClassCount"/> of them.
    /// </summary>
    public PoolClassInfo GetClassInfo(int index)
    {
      handle.Usable();
      if (index < 0) throw new ArgumentOutOfRangeException(nameof(index), index, "pass 0 or a positive number");
      return Calls.gpumem_pool_get_class_info(handle, (uint)index);
    }

    /// <summary>Resets the peaks to what the pool has now.</summary>
    public void ResetPeaks() { Calls.gpumem_pool_reset_peaks(handle); }

    /// <summary>
    /// Sets a function to call when the pool cannot get memory, before an allocation fails: the time to dispose blocks or
    /// other memory. It takes the place of the one set before, which is not running when this returns. It runs on the
    /// thread that allocates, on several at once if several do. What it throws comes out of the allocation.
    /// </summary>
    /// <param name="callback">
    /// Gets the pool and the bytes that it lacks; returns whether to try the allocation again. Or null for none. The pool
    /// keeps it alive until it is replaced or the pool is disposed.
    /// </param>
    public void SetCallback([AllowNull] Func<MemoryPool, long, bool> callback)
    {
      handle.Usable();
      handle.SetCallback(callback == null ? null : new PoolCallback(this, callback));
      GC.KeepAlive(this);
    }

    /// <summary>
    /// Destroys the pool, and waits for the work of its blocks, unlike <c>Dispose</c> of other objects. Blocks that live stay
    /// usable; the memory is freed with the last of them. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static MemoryPool Create(GpuDevice device, PoolOptions options)
    {
      gpumem_pool_desc desc = options.Describe();
      ProcessorAccess[] accesses = options.Accesses ?? new ProcessorAccess[0];
      desc.access_count = (ulong)accesses.Length;
      MemoryKind kind = options.Kind == 0 ? MemoryKind.Device : options.Kind;
      return Handles.Make(new PoolHandle(kind, device, options.Name), handle =>
      {
        gpumem_access_desc[] native = Array.ConvertAll(accesses, one => one.Describe(device.Instance));
        Forgotten.Retry(() =>
        {
          fixed (gpumem_access_desc* first = native)
          {
            desc.accesses = first;
            Calls.gpumem_pool_create(device, desc, options.Name, handle);
          }
        });
        return new MemoryPool(device, handle);
      });
    }

    // Apart, because a function that is made in the common case would cost more than the block.
    IntPtr AllocateAgain(long size, long alignment, GpuStream stream)
    {
      return Forgotten.Again(() => AllocateNative(size, alignment, stream));
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    IntPtr AllocateNative(long size, long alignment, GpuStream stream)
    {
      IntPtr pool = handle.Value, order = Value(stream), pointer;
      gpumem_error* error = Error.Detail;
      PoolCallback.Begin();
      int status = alignment == 0
          ? Native.gpumem_pool_alloc(pool, (ulong)size, order, &pointer, error)
          : Native.gpumem_pool_alloc_aligned(pool, (ulong)size, (ulong)alignment, order, &pointer, error);
      CheckCalling(status, error);
      GC.KeepAlive(stream);
      return pointer;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    bool TryAllocateNative(long size, long alignment, GpuStream stream, IntPtr* pointer, gpumem_pool_attempt* attempt)
    {
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_pool_try_alloc(handle.Value, (ulong)size, (ulong)alignment, Value(stream), pointer, attempt, error);
      Error.Check(status, error);
      GC.KeepAlive(stream);
      return status != Constants.GPUMEM_NOT_READY;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    IntPtr[] AllocateNative(ulong[] sizes, GpuStream stream)
    {
      // Not an empty array, whose address would be null.
      var pointers = new IntPtr[Math.Max(sizes.Length, 1)];
      gpumem_error* error = Error.Detail;
      PoolCallback.Begin();
      fixed (ulong* first = sizes)
      fixed (IntPtr* out_pointers = pointers)
      {
        CheckCalling(Native.gpumem_pool_alloc_batch(handle.Value, first, (ulong)sizes.Length, Value(stream), out_pointers,
                                                    error), error);
      }
      GC.KeepAlive(stream);
      Array.Resize(ref pointers, sizes.Length);
      return pointers;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    IntPtr AllocateInNative(long size, IntPtr nativeStream)
    {
      IntPtr pointer;
      gpumem_error* error = Error.Detail;
      PoolCallback.Begin();
      CheckCalling(Native.gpumem_pool_alloc_native(handle.Value, (ulong)size, nativeStream, &pointer, error), error);
      return pointer;
    }

    void RefuseOwned(IntPtr pointer, string name) { handle.Usable().Instance.Blocks.Refuse(pointer, name); }

    static IntPtr Value(GpuStream stream) { return stream == null ? IntPtr.Zero : stream.Handle.Value; }

    static void RequireSizes(long[] sizes)
    {
      if (sizes == null) throw new ArgumentNullException(nameof(sizes));
      foreach (long size in sizes) Sizes.ToNative(size, nameof(sizes));
    }

    // Of a call in which the callback may have run.
    void CheckCalling(int status, gpumem_error* error)
    {
      if (status < 0) PoolCallback.Rethrow();
      handle.Check(status, error);
    }
  }

  /// <summary>
  /// A block of a <see cref="MemoryPool"/>. <see cref="Dispose"/> frees it in the order of its stream, and does not wait:
  /// the work that was enqueued before still has the memory. Work of other streams that this binding enqueued is known to
  /// the pool, which waits for it, too. A block without a stream is freed when all such work has been observed complete.
  /// Name the streams of other code's work with <see cref="MemoryPool.RecordUse(PoolBlock, GpuStream)"/>.
  /// </summary>
  public sealed unsafe partial class PoolBlock : IDisposable
  {
    readonly MemoryPool pool;
    readonly BlockHandle handle;
    readonly long size;

    internal PoolBlock(MemoryPool pool, BlockHandle handle, long size)
    {
      this.pool = pool;
      this.handle = handle;
      this.size = size;
    }

    /// <summary>The pool that it was allocated from, which may be disposed.</summary>
    public MemoryPool Pool { get { return handle.IfUsable(pool); } }

    /// <summary>
    /// First byte: an address of the CPU for pinned and ordinary memory, otherwise one of devices.
    /// </summary>
    public IntPtr Pointer { get { return handle.IfUsable(handle.Raw); } }

    /// <summary>Bytes that were asked for.</summary>
    public long Size { get { return handle.IfUsable(size); } }

    /// <summary>Information about the block; null for one of no bytes.</summary>
    [MaybeNull]
    public PoolBlockInfo Info
    {
      get
      {
        handle.Usable();
        return size == 0 ? null : Calls.gpumem_pool_get_block_info(pool.Handle.Instance, handle.Raw);
      }
    }

    /// <summary>The whole block, as an operand of a copy or fill.</summary>
    public GpuRange Range { get { return handle.IfUsable(new GpuRange(handle, 0, handle.Raw, size)); } }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return handle.IsDisposed; } }

    internal BlockHandle Handle { get { return handle; } }

#if NETCOREAPP3_0_OR_GREATER
    /// <summary>
    /// Waits for the work of the block's stream, and gets the elements for the CPU. Do not use the span after
    /// <see cref="Dispose"/>, or while work uses the block; it does not keep the block alive (see <see cref="GC.KeepAlive"/>). Bytes that do not make a whole element are left out.
    /// </summary>
    /// <exception cref="InvalidOperationException">The pool is not of pinned or ordinary memory.</exception>
    /// <exception cref="OverflowException">There are more elements than a span can hold.</exception>
    public Span<T> GetSpan<T>()
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      handle.Usable();
      pool.Handle.Instance.RequireOpen();
      if (!handle.OnHost)
      {
        throw new InvalidOperationException(
            "the CPU has no such access to the block; use a pool of MemoryKind.Pinned or MemoryKind.Pageable, or copy");
      }
      handle.WaitForStream();
      GC.KeepAlive(this);
      return new Span<T>((void*)handle.Raw, checked((int)(size / Elements<T>.Size)));
    }
#endif

    /// <summary>
    /// Frees the block. It does not wait, unless it is the last of a disposed pool. It may be called repeatedly, and from any
    /// thread. <see cref="MemoryPool.Free(PoolBlock, GpuStream)"/> does the same, but throws if that fails.
    /// </summary>
    public void Dispose() { handle.Dispose(); }

    /// <summary>Its pointer, its size and the name of its pool.</summary>
    public override string ToString() { return handle.Text; }
  }

  sealed unsafe partial class PoolHandle
  {
    readonly PoolCallback.OfObject callbacks = new PoolCallback.OfObject();
    int blocks;

    internal InstanceHandle Instance { get { return (InstanceHandle)Parent; } }

    internal string Name { get { return name; } }

    /// <summary>Whether the CPU may use its blocks in place.</summary>
    internal bool OnHost { get { return kind == MemoryKind.Pinned || kind == MemoryKind.Pageable; } }

    /// <summary>Replaces the function that is called when memory is short; null for none.</summary>
    internal void SetCallback(PoolCallback function) { callbacks.Replace(function, SetCallbackNative); }

    void SetCallbackNative(PoolCallback function)
    {
      IntPtr pointer = function == null ? IntPtr.Zero : PoolCallback.Pointer;
      Calls.gpumem_pool_set_callback(this, pointer, function == null ? IntPtr.Zero : function.UserData);
    }

    /// <summary>Counts a block, after whose end a forgotten pool ends.</summary>
    internal void BlockBegins() { Interlocked.Increment(ref blocks); }

    internal void BlockEnds()
    {
      if (Interlocked.Decrement(ref blocks) == 0 && IsForgotten) Leftovers.Retry(this);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return IsForgotten && IsBusy(value, error) ? Constants.GPUMEM_NOT_READY : Native.gpumem_pool_destroy(value, error);
    }

    // Nobody waits for the work of a forgotten pool, least of all the finalizer thread. What no work needs can be trimmed.
    [MethodImpl(GpuMemLibrary.Bound)]
    bool IsBusy(IntPtr value, gpumem_error* error)
    {
      if (Volatile.Read(ref blocks) != 0) return true;
      ulong released;
      gpumem_pool_info info = gpumem_pool_info.Sized();
      return Native.gpumem_pool_trim(value, 0, &released, error) == Constants.GPUMEM_SUCCESS &&
             Native.gpumem_pool_get_info(value, &info, error) == Constants.GPUMEM_SUCCESS &&
             info.reserved_bytes > info.captured_bytes;
    }

    protected override void ReleaseKept() { callbacks.Release(); }
  }

  /// <summary>
  /// A block, whose value is its address. It holds its stream, in whose order it is freed. The collector is told nothing of
  /// its bytes, which the pool has either way.
  /// </summary>
  sealed unsafe class BlockHandle : GpuHandle
  {
    readonly PoolHandle pool;
    readonly StreamHandle stream;
    readonly long size;
    // Calls and work that need it; negative once it is freed.
    int users;
    // In whose order it is freed if it has no stream.
    StreamHandle order;

    internal BlockHandle(PoolHandle pool, StreamHandle stream, long size) : base(pool.Instance)
    {
      this.pool = pool;
      this.size = size;
      try
      {
        if (stream != null) stream.Hold();
      }
      catch
      {
        Abandon();
        throw;
      }
      this.stream = stream;
      pool.BlockBegins();
    }

    internal bool OnHost { get { return pool.OnHost; } }

    internal override long Bytes { get { return size; } }

    internal override string Noun { get { return nameof(PoolBlock); } }

    internal override Printed Print()
    {
      return base.Print().Add("Pointer", Raw).Add("Size", size).AddIf("Pool", pool.Name);
    }

    /// <summary>Takes what the library has allocated; for no bytes, that is nothing.</summary>
    internal void Fill(IntPtr pointer)
    {
      if (pointer != IntPtr.Zero)
      {
        Attach(pointer);
        pool.Instance.Blocks.Add(pointer);
        return;
      }
      ReleaseKept();
      ReleaseParent();
    }

    /// <summary>Releases everything after a failed allocation.</summary>
    internal void AbandonAll()
    {
      if (IsInvalid) ReleaseKept();
      Abandon();
    }

    /// <summary>
    /// Makes sure that the free comes after the work that a stream has, so that the work need not hold the block.
    /// </summary>
    internal override bool IsOrderedBehind(StreamHandle other)
    {
      if (other == stream) return true;
      // Who frees without a stream says that no work uses the block.
      return stream != null && RecordUse(other) >= 0;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    int RecordUse(StreamHandle other)
    {
      return Native.gpumem_pool_record_use(pool.Raw, Raw, other.Raw, Error.Detail);
    }

    /// <summary>Waits for the work of the stream, which may still use the memory, also for a block before.</summary>
    internal void WaitForStream()
    {
      if (stream != null && !IsInvalid) stream.SynchronizeHeld();
    }

    internal override void BeginWork()
    {
      base.BeginWork();
      int seen;
      do
      {
        seen = Volatile.Read(ref users);
        if (seen >= 0) continue;
        base.EndWork();
        throw new ObjectDisposedException(Noun);
      }
      while (Interlocked.CompareExchange(ref users, seen + 1, seen) != seen);
    }

    internal override void EndWork()
    {
      Interlocked.Decrement(ref users);
      base.EndWork();
    }

    /// <summary>
    /// Frees the block in the order of a stream, and of its own; what calls and work need is left to <c>Dispose</c>.
    /// </summary>
    internal void Free(StreamHandle other)
    {
      if (IsInvalid) return;
      Hold();
      try
      {
        int seen = Interlocked.CompareExchange(ref users, -1, 0);
        if (seen < 0) throw new ObjectDisposedException(Noun);
        if (seen > 0)
        {
          FreeLater(other);
          return;
        }
        try
        {
          if (other != null && stream != null && other != stream) Check(RecordUse(stream));
          Check(FreeNative(other ?? stream, Error.Detail));
        }
        catch
        {
          Volatile.Write(ref users, 0);
          throw;
        }
      }
      finally
      {
        DangerousRelease();
      }
    }

    // The free that comes is in the order of the block's own stream.
    void FreeLater(StreamHandle other)
    {
      if (other == null || other == stream) return;
      if (stream != null)
      {
        Check(RecordUse(other));
        return;
      }
      other.Hold();
      if (Interlocked.CompareExchange(ref order, other, null) != null) other.DangerousRelease();
    }

    void Check(int status) { Check(status, Error.Detail); }

    [MethodImpl(GpuMemLibrary.Bound)]
    int FreeNative(StreamHandle on, gpumem_error* error)
    {
      IntPtr order = on == null ? IntPtr.Zero : on.Raw;
      pool.Instance.Blocks.Remove(Raw);
      int status = Native.gpumem_pool_free_sized(pool.Raw, Raw, (ulong)size, order, error);
      // The pool may be destroyed.
      if (status == Constants.GPUMEM_ERROR_STALE_HANDLE)
      {
        status = Native.gpumem_pool_free_pointer(pool.Instance.Raw, Raw, order, error);
      }
      if (status < 0) pool.Instance.Blocks.Add(Raw);
      return status;
    }

    protected override int Destroy(IntPtr value, gpumem_error* error)
    {
      return Volatile.Read(ref users) < 0 ? Constants.GPUMEM_SUCCESS : FreeNative(stream ?? order, error);
    }

    // The last free of a disposed pool waits for the work before it.
    protected override bool MayWait { get { return pool.IsDisposed && !pool.IsForgotten; } }

    protected override void ReleaseKept()
    {
      if (stream != null) stream.DangerousRelease();
      if (order != null) order.DangerousRelease();
      pool.BlockEnds();
    }
  }
}
