// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Buffers that grow and shrink in place and can sleep, and views of them for the CPU.

using System;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// A buffer that grows and shrinks in place: it reserves addresses once, and maps physical memory behind one another.
  /// Nothing in it is copied or touched, and work on it may be in flight while it grows. A buffer that sleeps gives its
  /// memory back and keeps its address. Calls that change it run one after the other, and take effect at the call, not
  /// in the order of a stream.
  /// </summary>
  public sealed unsafe partial class GrowableBuffer : IDisposable
  {
    readonly BufferGroup group;

    GrowableBuffer(GpuDevice device, BufferGroup group, BufferHandle handle) : this(device, handle) { this.group = group; }

    /// <summary>Group given at creation, or null.</summary>
    [MaybeNull]
    public BufferGroup Group { get { return handle.IfUsable(group); } }

    /// <summary>
    /// Information about the buffer as it is now. It waits for nothing, and can also be read in functions of
    /// <see cref="SetCallbacks"/>. The object does not change with the buffer.
    /// </summary>
    public BufferInfo Info
    {
      get
      {
        gpumem_buffer_info now = Read();
        return new BufferInfo(&now);
      }
    }

    /// <summary>
    /// First byte. Only a buffer with <see cref="BufferFlags.Movable"/> or <see cref="BufferFlags.Copyable"/> can change
    /// it, when it grows or wakes.
    /// </summary>
    public IntPtr Pointer { get { return Read().@base; } }

    /// <summary>Bytes that may be used.</summary>
    public long Size { get { return Sizes.FromNative(Read().size); } }

    /// <summary>Bytes that have memory, or had when the buffer went to sleep.</summary>
    public long Capacity { get { return Sizes.FromNative(Read().capacity); } }

    /// <summary>Whether it is awake or asleep.</summary>
    public BufferState State { get { return (BufferState)Read().state; } }

    /// <summary>
    /// The whole buffer, as an operand of a copy or fill. A range that the buffer has moved or shrunk away from since is
    /// refused.
    /// </summary>
    public GpuRange Range
    {
      get
      {
        gpumem_buffer_info now = Read();
        return new GpuRange(handle, 0, now.@base, Sizes.FromNative(now.size));
      }
    }

    /// <summary>
    /// Grows or shrinks the buffer. The bytes that remain are not touched. Before it shrinks or moves, all work on what
    /// is freed, or on a buffer that moves, must have been observed complete. If the call fails, nothing has changed.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void Resize(long size)
    {
      ulong bytes = Argument(size, nameof(size));
      Change(error => Native.gpumem_buffer_resize(handle.Value, bytes, error));
    }

    /// <summary>
    /// Makes sure that so many bytes have memory, ahead of growth, and frees whole blocks behind them. The size stays.
    /// </summary>
    /// <param name="capacity">Bytes, at least the size; 0 means no more than the size needs.</param>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void SetCapacity(long capacity)
    {
      ulong bytes = Argument(capacity, nameof(capacity));
      Change(error => Native.gpumem_buffer_set_capacity(handle.Value, bytes, error));
    }

    /// <summary>Frees the memory that the size does not need.</summary>
    public void Trim() { SetCapacity(0); }

    /// <summary>
    /// Has memory made ahead of growth, on a thread of the library: as soon as less than half of it lies behind the
    /// size, more is mapped. <see cref="Resize"/> makes no driver call then, and waits for nobody.
    /// </summary>
    /// <param name="size">Bytes to keep ahead; 0, as at creation, ends it and leaves what is there.</param>
    public void SetAhead(long size)
    {
      ulong bytes = Argument(size, nameof(size));
      Calls.gpumem_buffer_set_ahead(handle, bytes);
    }

    /// <summary>
    /// Sets what processors may do with the buffer, now and as it grows. Processors that are not named keep what they
    /// have. Before access is taken away, all work that uses it must have been observed complete.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void SetAccess(params ProcessorAccess[] accesses)
    {
      handle.Usable();
      if (accesses == null) throw new ArgumentNullException(nameof(accesses));
      gpumem_access_desc[] native = Array.ConvertAll(accesses, one => one.Describe(device.Instance));
      Change(error =>
      {
        fixed (gpumem_access_desc* first = Elements.WithAddress(native))
        {
          return Native.gpumem_buffer_set_access(handle.Value, first, (ulong)native.Length, error);
        }
      });
    }

    /// <summary>The same for one processor: a device, or <see cref="MemoryLocation.Host"/> for the CPU.</summary>
    public void SetAccess(MemoryLocation processor, Access access)
    {
      SetAccess(new ProcessorAccess(processor, access));
    }

    /// <summary>
    /// Frees the memory and keeps the addresses until <see cref="Wake"/>. It waits for all work on the devices, unless
    /// the options say for what, and refuses while something is noted by <see cref="NoteRegistration"/>. If the call
    /// fails, the buffer is awake, with its content.
    /// </summary>
    /// <param name="options">Where its content is kept, what to wait for, progress and cancellation.</param>
    /// <exception cref="OperationCanceledException">The token of the options was cancelled.</exception>
    public void Sleep(SleepOptions options = default(SleepOptions))
    {
      handle.Usable();
      SleepCall.Sleep(handle, options, change => handle.Change(change, false),
                      (desc, error) => Native.gpumem_buffer_sleep(handle.Value, desc, error));
      GC.KeepAlive(this);
    }

    /// <summary>The same with the other options at their defaults.</summary>
    /// <param name="content">Where its content is kept, or that it is not.</param>
    public void Sleep(Content content) { Sleep(new SleepOptions { Content = content }); }

    /// <summary>
    /// Wakes the buffer: at the same address, with its size, the access of each processor, and the content that was kept.
    /// One that is an ordinary allocation (<see cref="BufferFlags.Copyable"/>) gets a new address. If the call fails, the
    /// buffer sleeps on, and nothing is lost.
    /// </summary>
    /// <param name="options">What to keep for the next sleep, progress and cancellation.</param>
    /// <exception cref="OperationCanceledException">The token of the options was cancelled.</exception>
    public void Wake(WakeOptions options = default(WakeOptions))
    {
      handle.Usable();
      SleepCall.Wake(handle, options, change => handle.Change(change, false),
                     (desc, error) => Native.gpumem_buffer_wake(handle.Value, desc, error));
      GC.KeepAlive(this);
    }

    /// <summary>
    /// Makes the store for the content ahead of a sleep, so that <see cref="Sleep(SleepOptions)"/> with the same content
    /// only copies. A store for another content is replaced.
    /// </summary>
    /// <param name="options">The content, and how fast to prepare in the background.</param>
    public void Prepare(PrepareOptions options = default(PrepareOptions))
    {
      handle.Usable();
      SleepCall.Prepare(handle, options, (desc, error) => Native.gpumem_buffer_prepare(handle.Value, desc, error));
      handle.Refresh();
      GC.KeepAlive(this);
    }

    /// <summary>
    /// Notes that something outside the library holds the memory: a network card, a communicator, a process that imported
    /// it. The buffer does not sleep before the result is disposed; the collector does not do that. It may be called in
    /// functions of <see cref="SetCallbacks"/>.
    /// </summary>
    /// <param name="name">What holds it, for messages, 1 to 63 bytes.</param>
    public BufferRegistration NoteRegistration(string name)
    {
      handle.Usable();
      if (name == null) throw new ArgumentNullException(nameof(name));
      return new BufferRegistration(handle, Calls.gpumem_buffer_note_registration(handle, name), name);
    }

    /// <summary>Ends a registration, as its <c>Dispose</c> does, but throws if that fails.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public void ForgetRegistration(BufferRegistration registration)
    {
      handle.Usable();
      if (registration == null) throw new ArgumentNullException(nameof(registration));
      if (registration.Buffer != handle)
      {
        throw new ArgumentException("the registration is of another buffer; dispose it", nameof(registration));
      }
      gpumem_error* error = Error.Detail;
      handle.Check(handle.ForgetRegistration(registration.Number, error), error);
      registration.Dispose();
    }

    /// <summary>
    /// Sets functions to call when the buffer sleeps and wakes, alone or with its group, in place of those set before. They
    /// run on the thread that puts it to sleep or wakes it. They may read <see cref="Info"/>, and note and end
    /// registrations; they must not change the buffer otherwise, or get or use views of it. What they throw comes out of
    /// that call.
    /// </summary>
    /// <param name="beforeSleep">
    /// Called before the buffer sleeps: the time to end registrations. False refuses, and the call fails with
    /// <see cref="Status.Busy"/>; so does an exception. Or null.
    /// </param>
    /// <param name="afterWake">
    /// Called with the <see cref="BufferInfo.Generation"/> after the buffer has woken, and after a sleep that did not
    /// happen; then the generation is as before. Or null.
    /// </param>
    public void SetCallbacks([AllowNull] Func<GrowableBuffer, bool> beforeSleep,
                             [AllowNull] Action<GrowableBuffer, long> afterWake)
    {
      handle.Usable();
      handle.SetCallbacks(new BufferCallbacks(this, beforeSleep, afterWake));
      GC.KeepAlive(this);
    }

    /// <summary>
    /// Gets the elements for the CPU, which must have the right to read and write. The view is valid until the buffer is
    /// changed: by <see cref="Resize"/>, <see cref="SetCapacity"/>, <see cref="SetAccess(ProcessorAccess[])"/>,
    /// <see cref="Sleep(SleepOptions)"/> or <see cref="Wake"/>, or by its group. Bytes that do not make a whole element are
    /// left out.
    /// </summary>
    /// <exception cref="InvalidOperationException">
    /// The CPU may not read and write the buffer, or it sleeps, or such a call has not returned yet: that is so in functions
    /// of <see cref="SetCallbacks"/> and in progress functions.
    /// </exception>
    public BufferView<T> GetView<T>()
#if GPUMEM_MCS
        where T : struct
#else
        where T : unmanaged
#endif
    {
      handle.Usable();
      int size = Elements<T>.Size;
      // Counted first: if a change comes between, the view is not current.
      long changes = handle.ChangeCount;
      BufferInfo info = Info;
      const string Changing = "a call is changing the buffer; get the view when that has returned";
      string problem = handle.IsChanging ? Changing : HostAccessProblem(info);
      // What is said of a buffer that has changed meanwhile need not be true.
      if (problem != null && !handle.Usable().IsCurrent(changes)) problem = Changing;
      if (problem != null) throw new InvalidOperationException(problem);
      return new BufferView<T>(handle, changes, info.Base, info.Size / size);
    }

    /// <summary>
    /// Frees the buffer, awake or asleep, as soon as no work that this binding enqueued can still use it. Wait for other
    /// work first. It may be called repeatedly, and from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static GrowableBuffer Create(GpuDevice device, long size, BufferOptions options)
    {
      gpumem_buffer_desc desc = options.Describe();
      desc.size = Sizes.ToNative(size, nameof(size));
      desc.location = (int)options.Location.Kind;
      desc.location_id = options.Location.IdFor(device);
      ProcessorAccess[] accesses = options.Accesses ?? new ProcessorAccess[0];
      desc.access_count = (ulong)accesses.Length;
      GroupHandle group = options.Group == null ? null : options.Group.Handle;
      return Handles.Make(new BufferHandle(device.Instance.Handle, group, options.Tag), handle =>
      {
        gpumem_access_desc[] native = Array.ConvertAll(accesses, one => one.Describe(device.Instance));
        Forgotten.Retry(() =>
        {
          fixed (gpumem_access_desc* first = native)
          {
            desc.accesses = first;
            Calls.gpumem_buffer_create(device, desc, options.Name, options.Tag, handle);
          }
        });
        handle.Refresh();
        var buffer = new GrowableBuffer(device, options.Group, handle);
        handle.Own(buffer);
        return buffer;
      });
    }

    gpumem_buffer_info Read()
    {
      handle.Usable();
      gpumem_buffer_info now;
      gpumem_error* error = Error.Detail;
      handle.Check(handle.Read(&now, error), error);
      return now;
    }

    void Change(NativeCall call)
    {
      Action change = () =>
      {
        gpumem_error* error = Error.Detail;
        handle.Check(call(error), error);
      };
      Forgotten.Retry(() => handle.Change(change, true));
      GC.KeepAlive(this);
    }

    /// <summary>Why the CPU may not use the buffer in place; null if it may.</summary>
    string HostAccessProblem(BufferInfo info)
    {
      if (info.State != BufferState.Awake) return "the buffer is asleep; wake it first";
      if (info.Location.Kind == Location.Device)
      {
        return "the CPU cannot access memory of a device; copy it, or create the buffer with MemoryLocation.Host";
      }
      if (info.Size != 0 && device.Instance.GetHostAccess(info.Base) != Access.ReadWrite)
      {
        return "the CPU may not read and write the buffer; call SetAccess(MemoryLocation.Host, Access.ReadWrite), or copy";
      }
      return null;
    }

    ulong Argument(long value, string name)
    {
      handle.Usable();
      return Sizes.ToNative(value, name);
    }
  }

  /// <summary>
  /// Something outside the library that holds the memory of a buffer, which does not sleep before this is disposed. See
  /// <see cref="GrowableBuffer.NoteRegistration"/>.
  /// </summary>
  public sealed unsafe class BufferRegistration : IDisposable
  {
    readonly string name;
    int disposed;

    internal BufferRegistration(BufferHandle buffer, ulong number, string name)
    {
      Buffer = buffer;
      Number = number;
      this.name = name;
    }

    /// <summary>Whether it was disposed.</summary>
    public bool IsDisposed { get { return Volatile.Read(ref disposed) != 0; } }

    internal BufferHandle Buffer { get; private set; }

    internal ulong Number { get; private set; }

    /// <summary>
    /// Ends the registration. It may be called repeatedly, from any thread, and after the buffer was disposed.
    /// </summary>
    public void Dispose()
    {
      if (Interlocked.Exchange(ref disposed, 1) == 0) Buffer.ForgetRegistration(Number, Error.Detail);
    }

    /// <summary>Its name.</summary>
    public override string ToString()
    {
      return new Printed(nameof(BufferRegistration)).Add("Name", name).AddIf(nameof(IsDisposed), IsDisposed).ToString();
    }
  }

  /// <summary>
  /// The elements of a buffer for the CPU, from <see cref="GrowableBuffer.GetView{T}"/> until the buffer is changed or
  /// disposed. All members but <see cref="IsCurrent"/> refuse use after that; do not use a span or the pointer then.
  /// </summary>
  public sealed partial class BufferView<T> : IHostMemory
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    readonly BufferHandle handle;
    readonly long changes;
    readonly HostElements<T> elements;

    internal BufferView(BufferHandle handle, long changes, IntPtr first, long length)
    {
      this.handle = handle;
      this.changes = changes;
      elements = new HostElements<T>(this, first, length);
    }

    /// <summary>Whether the buffer is as it was when the view was made.</summary>
    public bool IsCurrent { get { return handle.IsCurrent(changes) && !handle.Instance.IsClosed; } }

    /// <summary>Its elements.</summary>
    public override string ToString()
    {
      return new Printed("BufferView<" + typeof(T).Name + ">").Add(nameof(Length), elements.Count)
          .Add(nameof(IsCurrent), IsCurrent).ToString();
    }

    void IHostMemory.Enter() { handle.Enter(changes); }

    void IHostMemory.Leave() { handle.Leave(); }

    void IHostMemory.RequireUsable()
    {
      handle.Enter(changes);
      handle.Leave();
    }
  }
}
