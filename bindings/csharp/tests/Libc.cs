// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// System and driver functions that the tests need.

using System;
using System.Runtime.InteropServices;
using System.Text;

namespace GpuMem.Tests
{
  static unsafe class Libc
  {
    [DllImport("libc", SetLastError = true)]
    internal static extern IntPtr mmap(IntPtr address, UIntPtr size, int rights, int flags, int file, IntPtr offset);

    [DllImport("libc", SetLastError = true)]
    internal static extern int munmap(IntPtr address, UIntPtr size);

    [DllImport("libc", SetLastError = true)]
    internal static extern int open(string path, int flags);

    [DllImport("libc", SetLastError = true)]
    internal static extern int fcntl(int file, int command);

    [DllImport("libc", SetLastError = true)]
    internal static extern int truncate(string path, IntPtr size);

    [DllImport("libc", SetLastError = true)]
    static extern IntPtr readlink(string path, byte[] target, UIntPtr size);

    /// <summary>Where a symbolic link leads; an empty text if it cannot be read.</summary>
    internal static string ReadLink(string path)
    {
      var target = new byte[4096];
      int length = (int)readlink(path, target, (UIntPtr)(uint)target.Length);
      return length <= 0 ? "" : Encoding.UTF8.GetString(target, 0, length);
    }

    [DllImport("libc", SetLastError = true)]
    internal static extern int socket(int domain, int type, int protocol);

    [DllImport("libc", SetLastError = true)]
    internal static extern int bind(int socket, byte[] address, uint size);

    [DllImport("libc", SetLastError = true)]
    internal static extern int listen(int socket, int backlog);

    [DllImport("libc", SetLastError = true)]
    internal static extern int accept(int socket, IntPtr address, IntPtr size);

    [DllImport("libc")]
    internal static extern int fork();

    [DllImport("libc")]
    internal static extern void _exit(int status);

    [DllImport("libc")]
    internal static extern int waitpid(int process, int* status, int options);
  }

  /// <summary>Functions of the driver, as other code would call them.</summary>
  static unsafe class Libcuda
  {
    [DllImport("libcuda.so.1")]
    internal static extern int cuDevicePrimaryCtxRetain(IntPtr* context, int device);

    [DllImport("libcuda.so.1")]
    internal static extern int cuDevicePrimaryCtxRelease_v2(int device);
  }
}
