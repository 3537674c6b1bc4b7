// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Functions that only the host backend has: stand-ins for kernels, and ways to provoke rare situations.

using System;
using System.Runtime.CompilerServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>A running stand-in for a kernel; valid only while its function runs.</summary>
  public sealed unsafe class HostKernel
  {
    readonly IntPtr value;

    internal HostKernel(IntPtr value) { this.value = value; }

    /// <summary>
    /// Opens a view of memory with the rights of the kernel's device. A view that the device would refuse loses the
    /// device, as a faulting kernel does.
    /// </summary>
    /// <returns>An address that the kernel may use until it returns.</returns>
    [MethodImpl(GpuMemLibrary.Bound)]
    public IntPtr View(IntPtr devicePointer, long size, Access access)
    {
      IntPtr view;
      ulong bytes = Sizes.ToNative(size, nameof(size));
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_kernel_view(value, devicePointer, bytes, (int)access, &view, error), error);
      return view;
    }

    /// <summary>That it is one.</summary>
    public override string ToString() { return new Printed(nameof(HostKernel)).ToString(); }
  }

  /// <summary>Functions for tests. On the cuda backend each fails with <see cref="Status.Unsupported"/>.</summary>
  public static unsafe class HostSimulation
  {
    /// <summary>
    /// Enqueues a function that stands in for a kernel. It uses plain pointers, so keep the memory until the work has
    /// been observed complete. Exceptions come out as with <see cref="GpuStream.Launch"/>.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void Launch(GpuStream stream, Action<HostKernel> kernel)
    {
      Of(stream);
      if (kernel == null) throw new ArgumentNullException(nameof(kernel));
      var callback = new Callback(kernel);
      stream.Enqueue(callback, error =>
          Native.gpumem_host_launch(stream.Handle.Value, Callback.KernelPointer, callback.UserData, error));
    }

    /// <summary>Creates a native stream, as other code would, for <see cref="GpuDevice.WrapStream"/>.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static IntPtr CreateNativeStream(GpuDevice device)
    {
      IntPtr stream;
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_native_stream_create(Of(device), &stream, error), error);
      return stream;
    }

    /// <summary>Destroys a stream of <see cref="CreateNativeStream"/>.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void DestroyNativeStream(GpuDevice device, IntPtr nativeStream)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_native_stream_destroy(Of(device), nativeStream, error), error);
    }

    /// <summary>Marks a stream as being captured into a graph by other code, or removes the mark.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void SetCapturing(GpuStream stream, bool capturing)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_stream_set_capturing(Of(stream), capturing ? 1u : 0u, error), error);
    }

    /// <summary>Loses a device, as a faulting kernel would.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void LoseDevice(GpuDevice device)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_device_lose(Of(device), error), error);
    }

    /// <summary>Makes a step of the backend fail.</summary>
    /// <param name="instance">Instance whose steps are counted, from now on.</param>
    /// <param name="step">Number of the step that fails, from 1; 0 turns it off.</param>
    /// <param name="repeat">Whether every later step fails too.</param>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void FailStep(GpuInstance instance, long step, bool repeat = false)
    {
      gpumem_error* error = Error.Detail;
      ulong number = Sizes.ToNative(step, nameof(step));
      Error.Check(Native.gpumem_host_fail_step(Of(instance), number, repeat ? 1u : 0u, error), error);
    }

    /// <summary>Allocates memory as other code would through the driver.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static IntPtr AllocateForeign(GpuDevice device, MemoryKind kind, long size)
    {
      IntPtr pointer;
      ulong bytes = Sizes.ToNative(size, nameof(size));
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_foreign_alloc(Of(device), (int)kind, bytes, &pointer, error), error);
      return pointer;
    }

    /// <summary>Frees memory of <see cref="AllocateForeign"/>.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void FreeForeign(GpuDevice device, IntPtr pointer)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_foreign_free(Of(device), pointer, error), error);
    }

    /// <summary>Enables or disables peer access as other code of the process would.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void SetForeignPeerAccess(GpuDevice device, GpuDevice peer, bool enabled)
    {
      gpumem_error* error = Error.Detail;
      IntPtr one = Of(device), other = Of(peer, nameof(peer));
      Error.Check(Native.gpumem_host_foreign_peer_access(one, other, enabled ? 1u : 0u, error), error);
    }

    /// <summary>Sets the calling thread's current device in the host backend; -1 for none.</summary>
    /// <returns>The previous one.</returns>
    public static int SetCurrentDevice(int ordinal)
    {
      GpuMemLibrary.Load();
      return SetCurrentNative(ordinal);
    }

    static IntPtr Of(GpuDevice device, string name = "device")
    {
      if (device == null) throw new ArgumentNullException(name);
      return device.Value;
    }

    static IntPtr Of(GpuStream stream)
    {
      if (stream == null) throw new ArgumentNullException(nameof(stream));
      return stream.Handle.Value;
    }

    static IntPtr Of(GpuInstance instance)
    {
      if (instance == null) throw new ArgumentNullException(nameof(instance));
      return instance.Handle.Value;
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static int SetCurrentNative(int ordinal)
    {
      int previous;
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_set_current_device(ordinal, &previous, error), error);
      return previous;
    }
  }
}
