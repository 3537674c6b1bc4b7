// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Groups of buffers that sleep and wake as one.

using System;
using System.Diagnostics.CodeAnalysis;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// A group of buffers that sleep and wake as one: all or nothing. A buffer enters it at creation, by
  /// <see cref="BufferOptions.Group"/>, and leaves it when it is freed. The calls are for all of its buffers, or for those
  /// with one tag.
  /// </summary>
  public sealed unsafe partial class BufferGroup : IDisposable
  {
    /// <summary>Information about the group and its buffers as they are now. It waits for nothing.</summary>
    public BufferGroupInfo Info { get { return GetInfo(null); } }

    /// <summary>Gets information about the buffers with a tag; null means all.</summary>
    public BufferGroupInfo GetInfo([AllowNull] string tag) { return Calls.gpumem_group_get_info(handle.Usable(), tag); }

    /// <summary>
    /// Puts the buffers to sleep as one. Those that sleep already stay as they are. If the call fails, each buffer that it
    /// put to sleep is woken again. One for which there is no memory any more stays asleep with its content,
    /// <see cref="BufferState.Failed"/>.
    /// </summary>
    /// <param name="options">Which buffers, and as in <see cref="GrowableBuffer.Sleep(SleepOptions)"/>.</param>
    /// <exception cref="OperationCanceledException">The token of the options was cancelled.</exception>
    public void Sleep(SleepOptions options = default(SleepOptions))
    {
      handle.Usable();
      SleepCall.Sleep(handle, options, change => handle.Change(options.Tag, change),
                      (desc, error) => Native.gpumem_group_sleep(handle.Value, desc, error));
      GC.KeepAlive(this);
    }

    /// <summary>The same for all buffers, with the other options at their defaults.</summary>
    /// <param name="content">Where their content is kept, or that it is not.</param>
    public void Sleep(Content content) { Sleep(new SleepOptions { Content = content }); }

    /// <summary>
    /// Wakes the buffers as one. Those that are awake stay as they are. If the call fails, those that it woke sleep again,
    /// and nothing is lost.
    /// </summary>
    /// <param name="options">Which buffers, and as in <see cref="GrowableBuffer.Wake"/>.</param>
    /// <exception cref="OperationCanceledException">The token of the options was cancelled.</exception>
    public void Wake(WakeOptions options = default(WakeOptions))
    {
      handle.Usable();
      SleepCall.Wake(handle, options, change => handle.Change(options.Tag, change),
                     (desc, error) => Native.gpumem_group_wake(handle.Value, desc, error));
      GC.KeepAlive(this);
    }

    /// <summary>
    /// Makes the stores of the buffers that are awake ahead of their sleep. With a pace, the whole group keeps to it. If the
    /// call fails, the stores that were made stay.
    /// </summary>
    /// <param name="options">Which buffers, and as in <see cref="GrowableBuffer.Prepare"/>.</param>
    public void Prepare(PrepareOptions options = default(PrepareOptions))
    {
      handle.Usable();
      SleepCall.Prepare(handle, options, (desc, error) => Native.gpumem_group_prepare(handle.Value, desc, error));
      GC.KeepAlive(this);
    }

    /// <summary>
    /// Destroys the group once its buffers are freed, so the order of disposal does not matter. It may be called
    /// repeatedly, and from any thread.
    /// </summary>
    public void Dispose() { handle.DisposeAndSweep(); }

    internal static BufferGroup Create(GpuInstance instance, string name)
    {
      return Handles.Make(new GroupHandle(instance.Handle, name), handle =>
      {
        Calls.gpumem_group_create(instance.Handle, gpumem_group_desc.Sized(), name, handle);
        return new BufferGroup(instance, handle);
      });
    }
  }
}
