// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Options and results of exporting, sending and importing.

using System;
using System.Net.Sockets;
#if !NETCOREAPP3_0_OR_GREATER
using System.Reflection;
#endif
using System.Runtime.InteropServices;

namespace GpuMem
{
  public sealed unsafe partial class ShareWayInfo
  {
    /// <summary>Whether the memory can be shared in this way.</summary>
    public bool IsPossible { get { return Status == Status.Success; } }
  }

  /// <summary>The numbers of descriptors, which stay open until this is disposed.</summary>
  sealed class HeldDescriptors : IDisposable
  {
    readonly SafeHandle[] handles;
    int held;

    internal HeldDescriptors(SafeHandle[] descriptors)
    {
      handles = descriptors ?? new SafeHandle[0];
      Numbers = new int[handles.Length];
      try
      {
        for (; held < handles.Length; ++held)
        {
          SafeHandle one = handles[held];
          if (one == null) throw new ArgumentNullException(nameof(descriptors));
          bool done = false;
          one.DangerousAddRef(ref done);
          Numbers[held] = (int)one.DangerousGetHandle();
        }
      }
      catch
      {
        Dispose();
        throw;
      }
    }

    internal int[] Numbers { get; private set; }

    /// <summary>The handle of a socket. Its number alone could be another's once the socket is disposed.</summary>
    internal static SafeHandle HandleOf(Socket socket)
    {
      if (socket == null) throw new ArgumentNullException(nameof(socket));
#if NETCOREAPP3_0_OR_GREATER
      return socket.SafeHandle;
#else
      // Public or internal, it is in every runtime that a netstandard2.0 assembly runs on.
      const BindingFlags Any = BindingFlags.Instance | BindingFlags.Public | BindingFlags.NonPublic;
      PropertyInfo property = typeof(Socket).GetProperty("SafeHandle", Any);
      var handle = property == null ? null : property.GetValue(socket, null) as SafeHandle;
      if (handle == null) throw new NotSupportedException("this runtime does not show the handle of a Socket; pass a SafeHandle");
      return handle;
#endif
    }

    public void Dispose()
    {
      while (held > 0) handles[--held].DangerousRelease();
    }
  }
}
