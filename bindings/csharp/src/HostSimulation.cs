// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What only the host backend has: stand-ins for kernels, and the means to bring a program into rare situations.

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
    /// Opens a view of memory with the rights that the kernel's device has. A view that the device would refuse loses the
    /// device, as a kernel that faults does.
    /// </summary>
    /// <returns>An address that the function may use until it returns.</returns>
    [MethodImpl(GpuMemLibrary.Bound)]
    public IntPtr View(IntPtr devicePointer, ulong size, Access access)
    {
      IntPtr view;
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_kernel_view(value, devicePointer, size, (int)access, &view, error), error);
      return view;
    }
  }

  /// <summary>For tests. On the cuda backend every function is <see cref="Status.Unsupported"/>.</summary>
  public static unsafe class HostSimulation
  {
    /// <summary>
    /// Runs a function in stream order as a kernel would run on the device. It is given plain pointers, so the memory must
    /// stay until its end was observed. What it throws is counted and dropped.
    /// </summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void Launch(GpuStream stream, Action<HostKernel> kernel)
    {
      if (kernel == null) throw new ArgumentNullException(nameof(kernel));
      var callback = new Callback(kernel);
      stream.Enqueue(callback, error =>
          Native.gpumem_host_launch(stream.Handle.Value, Callback.KernelPointer, callback.UserData, error));
    }

    /// <summary>Makes a stream as other code would make one, for <see cref="GpuDevice.WrapStream"/>.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static IntPtr CreateNativeStream(GpuDevice device)
    {
      IntPtr stream;
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_native_stream_create(device.Value, &stream, error), error);
      return stream;
    }

    /// <summary>Destroys what <see cref="CreateNativeStream"/> made.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void DestroyNativeStream(GpuDevice device, IntPtr nativeStream)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_native_stream_destroy(device.Value, nativeStream, error), error);
    }

    /// <summary>Marks a stream as being captured into a graph by other code, or no longer so.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void SetCapturing(GpuStream stream, bool capturing)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_stream_set_capturing(stream.Handle.Value, capturing ? 1u : 0u, error), error);
    }

    /// <summary>Loses a device, as a faulting kernel would.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void LoseDevice(GpuDevice device)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_device_lose(device.Value, error), error);
    }

    /// <summary>Lets a step of the backend fail.</summary>
    /// <param name="instance">Instance whose steps to count, from now on.</param>
    /// <param name="step">Number of the step, from 1; 0 switches it off.</param>
    /// <param name="repeat">Every later step fails too.</param>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void FailStep(GpuInstance instance, ulong step, bool repeat = false)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_fail_step(instance.Handle.Value, step, repeat ? 1u : 0u, error), error);
    }

    /// <summary>Makes memory as other code would make it through the driver.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static IntPtr AllocateForeign(GpuDevice device, MemoryKind kind, ulong size)
    {
      IntPtr pointer;
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_foreign_alloc(device.Value, (int)kind, size, &pointer, error), error);
      return pointer;
    }

    /// <summary>Frees what <see cref="AllocateForeign"/> made.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void FreeForeign(GpuDevice device, IntPtr pointer)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_foreign_free(device.Value, pointer, error), error);
    }

    /// <summary>Switches peer access on or off as other code of the process would.</summary>
    [MethodImpl(GpuMemLibrary.Bound)]
    public static void SetForeignPeerAccess(GpuDevice device, GpuDevice peer, bool enabled)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_host_foreign_peer_access(device.Value, peer.Value, enabled ? 1u : 0u, error), error);
    }

    /// <summary>Sets the calling thread's current device in the host backend; -1 for none.</summary>
    /// <returns>The former one.</returns>
    public static int SetCurrentDevice(int ordinal)
    {
      GpuMemLibrary.Load();
      return SetCurrentNative(ordinal);
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
