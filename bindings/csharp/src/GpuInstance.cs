// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// An open backend with its devices and everything created through it.

using System;
using System.Collections.Generic;
using System.Diagnostics.CodeAnalysis;
using System.Net.Sockets;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// An open backend. <see cref="Dispose"/> closes it once nothing created through it lives, so the order of disposal
  /// does not matter. <see cref="Close"/> closes it at once.
  /// </summary>
  public sealed unsafe partial class GpuInstance : IDisposable
  {
    readonly InstanceHandle handle;
    readonly bool ofProcess;

    GpuInstance(InstanceHandle handle, bool ofProcess)
    {
      this.handle = handle;
      this.ofProcess = ofProcess;
    }

    /// <summary>
    /// The default instance of the process, for programs and plug-ins that do not open their own. The environment
    /// configures it. It belongs to the process: <see cref="Dispose"/> does nothing.
    /// </summary>
    public static GpuInstance Default
    {
      get
      {
        GpuMemLibrary.Load();
        return OpenDefault();
      }
    }

    /// <summary>Finds out whether a backend can be opened here, without opening it.</summary>
    /// <exception cref="GpuMemException">It cannot be opened; the message says why.</exception>
    public static ProbeInfo Probe(Backend backend)
    {
      GpuMemLibrary.Load();
      return Calls.gpumem_instance_probe((int)backend);
    }

    /// <summary>Opens a backend with the library's defaults.</summary>
    public static GpuInstance Open(Backend backend) { return Open(new InstanceOptions { Backend = backend }); }

    /// <summary>
    /// Opens a backend. With <see cref="Backend.Any"/>, a cuda backend that cannot be opened is not a failure: the host
    /// backend is opened instead, and <see cref="InstanceInfo.FallbackReason"/> says why.
    /// </summary>
    public static GpuInstance Open(InstanceOptions options)
    {
      if (options == null) throw new ArgumentNullException(nameof(options));
      GpuMemLibrary.Load();
      Leftovers.Sweep();
      using (var peers = new CText(options.Host?.Peers, nameof(HostOptions.Peers)))
      using (var masked = new CText(options.Host?.Masked, nameof(HostOptions.Masked)))
      {
        return OpenNative(options, peers.Pointer, masked.Pointer);
      }
    }

    /// <summary>Information about the instance.</summary>
    public InstanceInfo Info { get { return Calls.gpumem_instance_get_info(handle); } }

    /// <summary>Counters of live objects. <see cref="GetStats"/> reads those of one kind of memory.</summary>
    public InstanceStats Stats { get { return Calls.gpumem_stats_get(handle); } }

    /// <summary>The devices.</summary>
    public IReadOnlyList<GpuDevice> Devices
    {
      get
      {
        var list = new List<GpuDevice>();
        for (int ordinal = 0, count = Info.DeviceCount; ordinal < count; ++ordinal) list.Add(GetDevice(ordinal));
        return list;
      }
    }

    /// <summary>Whether the instance was closed or disposed.</summary>
    public bool IsClosed { get { return handle.IsDisposed; } }

    internal InstanceHandle Handle { get { return handle; } }

    /// <summary>Gets a device by its number.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public GpuDevice GetDevice(int ordinal)
    {
      handle.Usable();
      if (ordinal < 0) throw new ArgumentOutOfRangeException(nameof(ordinal), ordinal, "devices are numbered from 0");
      IntPtr device;
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_device_get(handle.Value, (uint)ordinal, &device, error);
      handle.Check(status, error);
      return new GpuDevice(this, device, ordinal);
    }

    /// <summary>
    /// Closes the instance at once. <see cref="CloseMode.Check"/> fails while objects live, and the message lists them;
    /// <see cref="CloseMode.Force"/> waits for the streams, and for calls of other threads that touch memory, and destroys
    /// everything.
    /// </summary>
    /// <returns>Number of objects that were destroyed.</returns>
    /// <exception cref="InvalidOperationException">
    /// Views of its memory live, which the program could still use.
    /// </exception>
    [MethodImpl(GpuMemLibrary.Bound)]
    public long Close(CloseMode mode)
    {
      Leftovers.Sweep();
      // The instance of the process is never closed.
      bool force = mode == CloseMode.Force && !ofProcess;
      handle.RequireNoViews();
      if (force) handle.BeginClose();
      try
      {
        handle.RequireNoViews();  // one may have begun before the close
        ulong destroyed = 0;
        gpumem_error* error = Error.Detail;
        int status = Native.gpumem_instance_close(handle.Value, (int)mode, &destroyed, error);
        if (status == Constants.GPUMEM_ERROR_BUSY && mode == CloseMode.Check && Leftovers.Count != 0)
        {
          GpuMemException failure = Error.Failure(error);
          failure.Add("; what is disposed lives until its work is complete: see GpuMemDiagnostics.WaitingObjects");
          throw failure;
        }
        handle.Check(status, error);
        handle.Forget();
        return Sizes.FromNative(destroyed);
      }
      finally
      {
        if (force) handle.EndClose();
      }
    }

    /// <summary>
    /// Closes the instance once nothing in it lives. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose()
    {
      Leftovers.Sweep();
      if (!ofProcess) handle.Dispose();
    }

    /// <summary>Reads the counters of one kind of memory that an instance makes or registers.</summary>
    public KindStats GetStats(MemoryKind kind) { return Calls.gpumem_stats_get_kind(handle, (int)kind); }

    /// <summary>Resets the peaks, of every kind and of all memory, to what is live now.</summary>
    public void ResetPeaks() { Calls.gpumem_stats_reset_peaks(handle); }

    /// <summary>Lists the live objects, a line for each. Call it before closing to find leaks.</summary>
    public string Report() { return Text(false); }

    /// <summary>The counters and the live objects as JSON, as the page of <c>gpumem_stats_snapshot</c> describes it.</summary>
    public string Snapshot() { return Text(true); }

    [MethodImpl(GpuMemLibrary.Bound)]
    string Text(bool snapshot)
    {
      gpumem_error* error = Error.Detail;
      ulong capacity = 0;
      while (true)
      {
        ulong required = 0;
        IntPtr buffer = capacity == 0 ? IntPtr.Zero : Marshal.AllocHGlobal((IntPtr)(long)capacity);
        try
        {
          int status = snapshot ? Native.gpumem_stats_snapshot(handle.Value, buffer, capacity, &required, error)
                                : Native.gpumem_stats_report(handle.Value, buffer, capacity, &required, error);
          handle.Check(status, error);
          // Another thread may create something between the two calls.
          if (required <= capacity) return snapshot ? GpuMem.Text.Read(buffer) : Words.Read(buffer);
        }
        finally
        {
          if (buffer != IntPtr.Zero) Marshal.FreeHGlobal(buffer);
        }
        capacity = required;
      }
    }

    /// <summary>Gets information about any address, whether gpumem made it or not.</summary>
    public PointerInfo GetPointerInfo(IntPtr pointer) { return Calls.gpumem_pointer_get_info(handle, pointer); }

    /// <summary>
    /// Gets what the CPU may do, in place, with the memory at an address. <see cref="GpuDevice.GetAccess"/> does the
    /// same for a device.
    /// </summary>
    public Access GetHostAccess(IntPtr pointer) { return GetAccess(pointer, Constants.GPUMEM_LOCATION_HOST, -1); }

    internal Access GetAccess(IntPtr pointer, int location, int id)
    {
      return (Access)Calls.gpumem_pointer_get_access(handle, pointer, location, id);
    }

    /// <summary>
    /// Frees memory by the pointer that <see cref="GpuDevice.Allocate(MemoryKind, long)"/> returned.
    /// </summary>
    /// <exception cref="ArgumentException">It is the memory of an object.</exception>
    public void Free(IntPtr pointer)
    {
      handle.Usable().Memories.Refuse(pointer, nameof(pointer));
      ulong number = handle.Turns.NumberOf(handle, pointer);
      Calls.gpumem_free(handle, pointer);
      handle.Turns.Remove(number);
    }

    /// <summary>
    /// Frees a block of any pool by its pointer alone, in the order of a stream; also of a pool that is disposed. Zero does
    /// nothing.
    /// </summary>
    /// <param name="pointer">
    /// Pointer of <see cref="MemoryPool.AllocatePointer"/>; that of a <see cref="PoolBlock"/> is refused.
    /// </param>
    /// <param name="stream">
    /// Stream behind whose work, as enqueued now, the block is free. Null: no work uses the block any more.
    /// </param>
    public void FreePoolBlock(IntPtr pointer, [AllowNull] GpuStream stream = null)
    {
      handle.Usable().Blocks.Refuse(pointer, nameof(pointer));
      Calls.gpumem_pool_free_pointer(handle, pointer, GpuStream.HandleOf(stream));
    }

    /// <summary>Gets information about the block of a pool that has an address.</summary>
    public PoolBlockInfo GetPoolBlock(IntPtr pointer) { return Calls.gpumem_pool_get_block_info(handle, pointer); }

    /// <summary>Undoes <see cref="GpuDevice.RegisterPointer"/>.</summary>
    /// <exception cref="ArgumentException">It is the memory of an object.</exception>
    public void UnregisterPointer(IntPtr pointer)
    {
      handle.Usable().Memories.Refuse(pointer, nameof(pointer));
      Calls.gpumem_unregister(handle, pointer);
    }

    /// <summary>
    /// Copies a batch of regions, and returns when they are copied. They are copied in any order, also at the same
    /// time, so no region may write bytes that another one reads or writes. If a region fails its check, nothing is
    /// copied.
    /// </summary>
    /// <exception cref="GpuMemException">
    /// <see cref="GpuMemException.FailedRegion"/> is the index of the region that failed. If the backend failed midway,
    /// the regions before it are copied, and it may be copied in part.
    /// </exception>
    public void CopyRegions(params CopyRegion[] regions) { Transfer.CopyRegions(handle.Usable(), null, regions); }

    /// <summary>
    /// Reads bytes of a file, from an offset on, into a range of memory of any kind, and returns when they are there.
    /// Threads of the library read on while the device copies what they have read. Where the file stands does not change.
    /// If it fails midway, any byte of the range may have been written; <see cref="GpuMemException.Copied"/> says how many from the
    /// start on are copied.
    /// </summary>
    /// <param name="destination">The range, which is filled.</param>
    /// <param name="file">The file: <see cref="System.IO.FileStream.SafeFileHandle"/>, for example. What a stream holds in
    /// a buffer of its own is not looked at.</param>
    /// <param name="offset">First byte in the file.</param>
    /// <param name="options">Progress, cancellation, and whether to bypass the page cache.</param>
    public FileCopied ReadFile(GpuRange destination, SafeHandle file, long offset = 0,
                               FileCopyOptions options = default(FileCopyOptions))
    {
      return CopyFile(FileDirection.ToMemory, destination, file, offset, options);
    }

    /// <summary>
    /// Writes a range of memory of any kind to a file, from an offset on, and returns when it is written: it is with the
    /// system then, not yet on the disk.
    /// </summary>
    /// <param name="file">The file, as for <see cref="ReadFile"/>. Its stream should be flushed first.</param>
    /// <param name="source">The range.</param>
    /// <param name="offset">First byte in the file.</param>
    /// <param name="options">Progress, cancellation, and whether to bypass the page cache.</param>
    public FileCopied WriteFile(SafeHandle file, GpuRange source, long offset = 0,
                                FileCopyOptions options = default(FileCopyOptions))
    {
      return CopyFile(FileDirection.FromMemory, source, file, offset, options);
    }

    FileCopied CopyFile(FileDirection direction, GpuRange range, SafeHandle file, long offset, FileCopyOptions options)
    {
      handle.Usable();
      if (file == null) throw new ArgumentNullException(nameof(file));
      gpumem_copy_file_desc desc = options.Describe();
      desc.direction = (int)direction;
      desc.file_offset = Sizes.ToNative(offset, nameof(offset));
      desc.pointer = range.Pointer;
      desc.size = (ulong)range.Size;
      bool held = false;
      KeptMemory kept = KeptMemory.Of(range);
      try
      {
        file.DangerousAddRef(ref held);
        desc.file_descriptor = (int)file.DangerousGetHandle();
        return SleepCall.CopyFile(handle, options, desc, call => call(), CopyFile);
      }
      finally
      {
        kept?.Release();
        if (held) file.DangerousRelease();
      }
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    int CopyFile(gpumem_copy_file_desc* desc, gpumem_copy_file_info* info, gpumem_error* error)
    {
      return Native.gpumem_copy_file(handle.Value, desc, info, error);
    }

    /// <summary>Advises how managed memory will be used. No byte changes, and nothing moves now.</summary>
    /// <param name="range">The memory; the advice is about every page that has a byte in it.</param>
    /// <param name="advice">The advice.</param>
    /// <param name="location">The location that it names; ignored by advice about read-mostly memory.</param>
    /// <returns>False if the device or the driver cannot use the advice, so that nothing changed.</returns>
    [MethodImpl(GpuMemLibrary.Bound)]
    public bool Advise(GpuRange range, Advice advice, MemoryLocation location = default(MemoryLocation))
    {
      handle.Usable();
      int id = location.IdIn(this);
      if (range.IsOfNothing) return true;
      return KeptMemory.While(range, handle, error => Native.gpumem_managed_advise(
          handle.Value, range.Pointer, (ulong)range.Size, (int)advice, (int)location.Kind, id, error));
    }

    /// <summary>Gets the advice and the last prefetch of managed memory.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public UnifiedInfo GetUnifiedInfo(GpuRange range)
    {
      handle.Usable();
      gpumem_managed_info info = gpumem_managed_info.Sized();
      gpumem_managed_info* written = &info;
      if (range.IsOfNothing) return new UnifiedInfo(written);
      KeptMemory.While(range, handle, error =>
          Native.gpumem_managed_get_info(handle.Value, range.Pointer, (ulong)range.Size, written, error));
      return new UnifiedInfo(written);
    }

    /// <summary>
    /// Begins an access of the CPU to managed memory by its address. <see cref="UnifiedMemory{T}.BeginHostAccess"/> says
    /// what it waits for.
    /// </summary>
    public HostAccess<byte> BeginHostAccess(GpuRange range)
    {
      return new HostAccess<byte>(HostAccessHandle.Begin(handle.Usable(), range), range.Pointer, range.Size);
    }

    /// <summary>
    /// Gets one more handle of the physical memory that is mapped at an address, with the same
    /// <see cref="PhysicalMemory.BlockId"/>.
    /// </summary>
    public PhysicalMemory RetainPhysical(IntPtr pointer)
    {
      handle.Usable();
      return PhysicalMemory.Retain(this, pointer);
    }

    /// <summary>
    /// Reserves addresses, far more than there is memory if wished. No processor can access them before something is
    /// mapped.
    /// </summary>
    /// <param name="size">Bytes, a multiple of the granularity of every device.</param>
    /// <param name="options">Alignment, address and name.</param>
    public AddressRange ReserveRange(long size, RangeOptions options = default(RangeOptions))
    {
      handle.Usable();
      return AddressRange.Reserve(this, size, options);
    }

    /// <summary>
    /// Makes an empty group, whose buffers sleep and wake as one. A buffer enters it by
    /// <see cref="BufferOptions.Group"/>.
    /// </summary>
    /// <param name="name">For messages and reports, up to 63 bytes.</param>
    public BufferGroup CreateGroup([AllowNull] string name = null)
    {
      handle.Usable();
      return BufferGroup.Create(this, name);
    }

    /// <summary>
    /// Gets what is mapped at an address. <see cref="GpuDevice.GetAccess"/> and <see cref="GetHostAccess"/> get what
    /// processors may do there.
    /// </summary>
    public MappingInfo GetMapping(IntPtr pointer) { return Calls.gpumem_range_get_mapping(handle, pointer); }

    /// <summary>
    /// Exports memory. Exporting it again gives the same bytes and costs little. The first byte of the range is recorded in
    /// the handle. Device memory is shared as a whole; of an <see cref="AddressRange"/>, all blocks around that byte that are
    /// mapped one behind the other; a buffer with all its capacity; of a <see cref="PoolBlock"/>, the whole pieces of the pool
    /// that it lies in. What was imported cannot be exported.
    /// </summary>
    /// <remarks>
    /// The export ends when the memory is freed, when one of its blocks is unmapped (as when a buffer shrinks or sleeps), and
    /// with <see cref="Revoke"/>. While others have imported it by <see cref="ShareWay.Legacy"/>, the memory is not freed when
    /// it is disposed, but later.
    /// <para>
    /// A block of a pool needs <see cref="ExportFlags.Neighbours"/>, because importers see what else is in these pieces, now or
    /// later. Exports of blocks that lie in the same pieces, with the same access, share one import. Dispose a block only after
    /// its importers have stopped using it: the pool then hands out the same bytes again.
    /// </para>
    /// </remarks>
    [MethodImpl(GpuMemLibrary.Bound)]
    public ShareHandle Export(GpuRange memory, ExportOptions options = default(ExportOptions))
    {
      handle.Usable();
      gpumem_export_desc desc = options.Describe();
      gpumem_export_desc* given = &desc;
      gpumem_share_handle share;
      gpumem_share_handle* written = &share;
      KeptMemory.While(memory, handle, error => Native.gpumem_share_export(handle.Value, memory.Pointer, given, written, error));
      return new ShareHandle(share);
    }

    /// <summary>
    /// Ends an export. Whoever imports the handle from now on gets <see cref="Status.StaleHandle"/>; what has been imported
    /// stays.
    /// </summary>
    public void Revoke(ShareHandle share) { Calls.gpumem_share_revoke(handle.Usable(), ShareHandle.ToNative(share)); }

    /// <summary>
    /// Gets the file descriptors of an export, for a transport of the program's own;
    /// <see cref="Send(ShareHandle, SafeHandle, SendOptions)"/> is one. They keep the memory alive, also after this process
    /// has ended.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public FileDescriptorHandle[] GetDescriptors(ShareHandle share)
    {
      handle.Usable();
      gpumem_share_handle native = ShareHandle.ToNative(share);
      uint count;
      gpumem_error* error = Error.Detail;
      int status = Native.gpumem_share_get_fds(handle.Value, &native, null, 0, &count, error);
      handle.Check(status, error);
      var numbers = new int[count];
      var descriptors = new FileDescriptorHandle[count];
      if (count == 0) return descriptors;
      fixed (int* first = numbers)
      {
        status = Native.gpumem_share_get_fds(handle.Value, &native, first, count, &count, error);
        handle.Check(status, error);
      }
      for (int i = 0; i < numbers.Length; ++i) descriptors[i] = new FileDescriptorHandle(numbers[i]);
      return descriptors;
    }

    /// <summary>
    /// Says whether memory can be shared in one way, and why not. It changes nothing, and <see cref="Export"/> does what it
    /// says. It answers from here; <see cref="Link.GetShareWay"/> asks the other process.
    /// </summary>
    /// <param name="memory">Any part of the memory.</param>
    /// <param name="way">The way; not <see cref="ShareWay.Any"/>.</param>
    /// <param name="peer">Whom it would be shared with.</param>
    [MethodImpl(GpuMemLibrary.Bound)]
    public ShareWayInfo GetShareWay(GpuRange memory, ShareWay way, SharePeer peer = SharePeer.OtherProcess)
    {
      handle.Usable();
      gpumem_way_info info = gpumem_way_info.Sized();
      gpumem_way_info* written = &info;
      KeptMemory.While(memory, handle, error => Native.gpumem_share_get_way(handle.Value, memory.Pointer, (int)way, (int)peer, written, error));
      return new ShareWayInfo(written);
    }

    /// <summary>
    /// Sends a handle over a Unix socket, with its descriptors and a connection to this process. It needs no right to inspect
    /// processes and no common namespace. The message is sent whole, between two messages of the program's own. Calls for one
    /// socket must not overlap.
    /// </summary>
    /// <param name="share">Handle that this instance exported.</param>
    /// <param name="socket">A connected Unix socket.</param>
    /// <param name="options">Lease and timeout.</param>
    public void Send(ShareHandle share, SafeHandle socket, SendOptions options = default(SendOptions))
    {
      handle.Usable();
      gpumem_share_handle native = ShareHandle.ToNative(share);
      if (socket == null) throw new ArgumentNullException(nameof(socket));
      using (var held = new HeldDescriptors(new[] { socket }))
      {
        Calls.gpumem_share_send(handle, native, held.Numbers[0], options.Describe());
      }
    }

    /// <summary>The same for a socket of the runtime.</summary>
    public void Send(ShareHandle share, Socket socket, SendOptions options = default(SendOptions))
    {
      handle.Usable();
      ShareHandle.ToNative(share);
      Send(share, HeldDescriptors.HandleOf(socket), options);
      GC.KeepAlive(socket);
    }

    /// <summary>
    /// Receives a handle that <see cref="Send(ShareHandle, SafeHandle, SendOptions)"/> sent, and waits for it. Its descriptors
    /// and connection are kept until it is imported, or for the sender's lease. Calls for one socket must not overlap.
    /// </summary>
    /// <param name="socket">A connected Unix socket.</param>
    public ShareHandle Receive(SafeHandle socket) { return Timeout.Never(timeout => Receive(socket, timeout)); }

    /// <summary>The same with a timeout. Null if nothing came in time.</summary>
    public ShareHandle Receive(SafeHandle socket, TimeSpan timeout)
    {
      handle.Usable();
      if (socket == null) throw new ArgumentNullException(nameof(socket));
      ulong limit = Timeout.ToNanoseconds(timeout, nameof(timeout));
      using (var held = new HeldDescriptors(new[] { socket }))
      {
        return Calls.gpumem_share_receive(handle, held.Numbers[0], limit);
      }
    }

    /// <summary>The same for a socket of the runtime.</summary>
    public ShareHandle Receive(Socket socket)
    {
      handle.Usable();
      ShareHandle received = Receive(HeldDescriptors.HandleOf(socket));
      GC.KeepAlive(socket);
      return received;
    }

    /// <summary>The same for a socket of the runtime, with a timeout. Null if nothing came in time.</summary>
    public ShareHandle Receive(Socket socket, TimeSpan timeout)
    {
      handle.Usable();
      ShareHandle received = Receive(HeldDescriptors.HandleOf(socket), timeout);
      GC.KeepAlive(socket);
      return received;
    }

    /// <summary>
    /// Imports memory of another process, with the descriptors that came with the handle through
    /// <see cref="Receive(SafeHandle)"/> or <see cref="Link.Fetch"/>; otherwise the exporter is asked for them.
    /// </summary>
    public ImportedMemory Import(ShareHandle share, ImportOptions options = default(ImportOptions))
    {
      return Import(share, null, options);
    }

    /// <summary>
    /// The same with the descriptors of <see cref="GetDescriptors"/>, in their order. They stay the caller's, and are not
    /// needed afterwards. Null is the same as none.
    /// </summary>
    public ImportedMemory Import(
        ShareHandle share, [AllowNull] SafeHandle[] descriptors, ImportOptions options = default(ImportOptions))
    {
      handle.Usable();
      return ImportedMemory.Import(this, share, descriptors, options);
    }

    /// <summary>
    /// Sets how long imports are kept mapped after they were disposed. At the beginning they are not. What is kept keeps the
    /// exporter's memory alive, and goes before a call of this instance fails for lack of memory. Only
    /// <see cref="ShareWay.PosixFd"/> is kept.
    /// </summary>
    /// <param name="idle">How long one is kept; zero means not at all.</param>
    /// <param name="bytesMax">Bytes that are kept at most; 0 means no limit.</param>
    public void SetImportCache(TimeSpan idle, long bytesMax = 0)
    {
      gpumem_import_cache_desc desc = gpumem_import_cache_desc.Sized();
      desc.idle_ns = Timeout.ToNanoseconds(idle, nameof(idle));
      desc.bytes_max = Sizes.ToNative(bytesMax, nameof(bytesMax));
      Calls.gpumem_share_set_cache(handle, desc);
    }

    /// <summary>Unmaps all imports that were disposed and are kept.</summary>
    public void FlushImportCache() { Calls.gpumem_share_flush_cache(handle); }

    /// <summary>
    /// Makes a dma-buf of device memory, which drivers of other devices import: of network cards, say. Address and size are
    /// multiples of the page size. A part of a range must be exported again after it was mapped anew.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public FileDescriptorHandle ExportDmaBuf(GpuRange memory, DmaBufFlags flags = DmaBufFlags.None)
    {
      handle.Usable();
      int descriptor;
      int* written = &descriptor;
      KeptMemory.While(memory, handle, error => Native.gpumem_share_export_dma_buf(
          handle.Value, memory.Pointer, (ulong)memory.Size, (ulong)flags, written, error));
      return new FileDescriptorHandle(descriptor);
    }

    /// <summary>
    /// Opens a hub, in which this process publishes what the instance exported. A socket file that a dead process has left at
    /// the path is replaced.
    /// </summary>
    public Hub OpenHub(HubOptions options = default(HubOptions))
    {
      handle.Usable();
      return Hub.Open(this, options);
    }

    /// <summary>The same with the other options at their defaults.</summary>
    public Hub OpenHub([AllowNull] string path) { return OpenHub(new HubOptions { Path = path }); }

    /// <summary>
    /// Connects to a hub. It does not wait for one to be opened: on <see cref="Status.NotFound"/>, pause and try again. This
    /// instance imports what is fetched.
    /// </summary>
    public Link Connect(LinkOptions options = default(LinkOptions))
    {
      handle.Usable();
      return Link.Connect(this, options);
    }

    /// <summary>The same with the other options at their defaults.</summary>
    public Link Connect([AllowNull] string path) { return Connect(new LinkOptions { Path = path }); }

    /// <summary>
    /// Opens a ring of another process, to use its messages. Every message that is published after this has returned is seen.
    /// </summary>
    /// <param name="share">Handle of the ring.</param>
    /// <param name="options">Time limit and name.</param>
    public RingConsumer OpenRing(ShareHandle share, RingOpenOptions options = default(RingOpenOptions))
    {
      handle.Usable();
      return new RingConsumer(Ring.Make(this, nameof(RingConsumer), options.Name,
                                        handle => Ring.Open(this, handle, share, options)));
    }

    /// <summary>Its name, backend and devices.</summary>
    public override string ToString()
    {
      var text = new Printed(nameof(GpuInstance));
      if (IsClosed) return text.Add(nameof(IsClosed), true).ToString();
      try
      {
        InstanceInfo info = Info;
        return text.AddIf(nameof(info.Name), info.Name).Add(nameof(info.Backend), info.Backend)
            .Add(nameof(info.DeviceCount), info.DeviceCount).ToString();
      }
      catch (Exception problem) when (problem is GpuMemException || problem is ObjectDisposedException)
      {
        return text.ToString();
      }
    }

    static GpuInstance OpenDefault()
    {
      var handle = new InstanceHandle(false);
      Calls.gpumem_instance_default(handle);
      return new GpuInstance(handle, true);
    }

    static GpuInstance OpenNative(InstanceOptions options, IntPtr peers, IntPtr masked)
    {
      gpumem_instance_desc desc = options.Describe();
      if (options.TransferThreads < -1)
      {
        throw new ArgumentOutOfRangeException(
            nameof(options.TransferThreads), options.TransferThreads, "pass -1 for none, or 0 for as many as help");
      }
      desc.transfer_threads = unchecked((uint)options.TransferThreads);
      gpumem_host_options host = default(gpumem_host_options);
      if (options.Host != null)
      {
        host = options.Host.Describe();
        host.peers = peers;
        host.masked = masked;
        desc.host = &host;
      }
      gpumem_cuda_options cuda = gpumem_cuda_options.Sized();
      IntPtr[] array = options.Cuda?.Contexts;
      var handle = new InstanceHandle(true);
      fixed (IntPtr* contexts = array)
      {
        if (options.Cuda != null)
        {
          cuda.contexts = contexts;
          cuda.context_count = array == null ? 0 : (ulong)array.Length;
          desc.cuda = &cuda;
        }
        Calls.gpumem_instance_open(desc, options.Name, handle);
      }
      return new GpuInstance(handle, false);
    }
  }
}
