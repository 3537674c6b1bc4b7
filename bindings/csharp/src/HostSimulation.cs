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
      Given(stream, nameof(stream)).Handle.Usable();
      if (kernel == null) throw new ArgumentNullException(nameof(kernel));
      var callback = new Callback(kernel);
      stream.Enqueue(callback, error =>
          Native.gpumem_host_launch(stream.Handle.Value, Callback.KernelPointer, callback.UserData, error));
    }

    /// <summary>Creates a native stream, as other code would, for <see cref="GpuDevice.WrapStream"/>.</summary>
    public static IntPtr CreateNativeStream(GpuDevice device)
    {
      return Calls.gpumem_host_native_stream_create(Given(device));
    }

    /// <summary>Destroys a stream of <see cref="CreateNativeStream"/>.</summary>
    public static void DestroyNativeStream(GpuDevice device, IntPtr nativeStream)
    {
      Calls.gpumem_host_native_stream_destroy(Given(device), nativeStream);
    }

    /// <summary>Marks a stream as being captured into a graph by other code, or removes the mark.</summary>
    public static void SetCapturing(GpuStream stream, bool capturing)
    {
      Calls.gpumem_host_stream_set_capturing(Given(stream, nameof(stream)).Handle, capturing ? 1u : 0u);
    }

    /// <summary>Loses a device, as a faulting kernel would.</summary>
    public static void LoseDevice(GpuDevice device) { Calls.gpumem_host_device_lose(Given(device)); }

    /// <summary>Makes a step of the backend fail.</summary>
    /// <param name="instance">Instance whose steps are counted, from now on.</param>
    /// <param name="step">Number of the step that fails, from 1; 0 turns it off.</param>
    /// <param name="repeat">Whether every later step fails too.</param>
    public static void FailStep(GpuInstance instance, long step, bool repeat = false)
    {
      InstanceHandle handle = Given(instance, nameof(instance)).Handle;
      Calls.gpumem_host_fail_step(handle, Sizes.ToNative(step, nameof(step)), repeat ? 1u : 0u);
    }

    /// <summary>Allocates memory as other code would through the driver.</summary>
    public static IntPtr AllocateForeign(GpuDevice device, MemoryKind kind, long size)
    {
      return Calls.gpumem_host_foreign_alloc(Given(device), (int)kind, Sizes.ToNative(size, nameof(size)));
    }

    /// <summary>Frees memory of <see cref="AllocateForeign"/>.</summary>
    public static void FreeForeign(GpuDevice device, IntPtr pointer)
    {
      Calls.gpumem_host_foreign_free(Given(device), pointer);
    }

    /// <summary>Enables or disables peer access as other code of the process would.</summary>
    public static void SetForeignPeerAccess(GpuDevice device, GpuDevice peer, bool enabled)
    {
      Calls.gpumem_host_foreign_peer_access(Given(device), Given(peer, nameof(peer)), enabled ? 1u : 0u);
    }

    /// <summary>Sets the calling thread's current device in the host backend; -1 for none.</summary>
    /// <returns>The previous one.</returns>
    public static int SetCurrentDevice(int ordinal)
    {
      GpuMemLibrary.Load();
      return Calls.gpumem_host_set_current_device(ordinal);
    }

    static T Given<T>(T argument, string name = "device") where T : class
    {
      if (argument == null) throw new ArgumentNullException(name);
      return argument;
    }
  }
}
