// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Shared memory and events as bytes, and what they say of themselves.

using System;
using System.Diagnostics.CodeAnalysis;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// Shared memory, or a shared event, as 256 bytes that may be sent by any channel. They hold no address, and a secret:
  /// whoever has them, and runs as the same user, may import. So <see cref="ToString"/> leaves them out.
  /// </summary>
  public sealed unsafe class ShareHandle : IEquatable<ShareHandle>
  {
    /// <summary>Number of bytes of a handle.</summary>
    public const int Size = 256;

    readonly gpumem_share_handle native;

    internal ShareHandle(gpumem_share_handle native) { this.native = native; }

    /// <summary>Makes a handle of the bytes of another one. Whether they are one is found out where it is used.</summary>
    /// <exception cref="ArgumentException">There are not <see cref="Size"/> bytes.</exception>
    public ShareHandle(byte[] bytes)
    {
      if (bytes == null) throw new ArgumentNullException(nameof(bytes));
      if (bytes.Length != Size)
      {
        throw new ArgumentException("a handle has " + Size + " bytes, not " + bytes.Length, nameof(bytes));
      }
      gpumem_share_handle read = default(gpumem_share_handle);
      Bytes.Write(bytes, read.bytes, Size, nameof(bytes));
      native = read;
    }

    internal gpumem_share_handle Native { get { return native; } }

    /// <summary>What the handle says of itself. It was true when the handle was made; nobody is asked.</summary>
    /// <exception cref="GpuMemException">The bytes are damaged or no handle, or of a newer version.</exception>
    public ShareInfo Info
    {
      get
      {
        GpuMemLibrary.Load();
        return Calls.gpumem_share_get_info(native);
      }
    }

    /// <summary>Copies the bytes.</summary>
    public byte[] ToArray()
    {
      gpumem_share_handle copy = native;
      return Bytes.Read(copy.bytes, Size);
    }

    /// <summary>Whether both have the same bytes.</summary>
    public bool Equals([AllowNull] ShareHandle other)
    {
      if (other == null) return false;
      gpumem_share_handle one = native, two = other.native;
      return Bytes.AreEqual(one.bytes, two.bytes, Size);
    }

    /// <summary>Whether both have the same bytes.</summary>
    public override bool Equals([AllowNull] object other) { return Equals(other as ShareHandle); }

    /// <summary>Agrees with <see cref="Equals(ShareHandle)"/>.</summary>
    public override int GetHashCode()
    {
      gpumem_share_handle copy = native;
      return Bytes.Hash(copy.bytes, Size);
    }

    /// <summary>What it is a handle of, and whose; not the bytes, which are a secret.</summary>
    public override string ToString()
    {
      var printed = new Printed(nameof(ShareHandle));
      try
      {
        ShareInfo info = Info;
        return printed.Add(nameof(info.Type), info.Type).Add(nameof(info.Way), info.Way).Add(nameof(info.Size), info.Size)
            .Add(nameof(info.ExporterProcess), info.ExporterProcess).Add(nameof(info.BufferId), (IntPtr)(long)info.BufferId)
            .ToString();
      }
      catch (GpuMemException problem)
      {
        return printed.Add(nameof(problem.Status), problem.Status).ToString();
      }
    }

    /// <summary>The handle for a call.</summary>
    internal static gpumem_share_handle ToNative(ShareHandle share)
    {
      if (share == null) throw new ArgumentNullException(nameof(share));
      return share.native;
    }
  }

  /// <summary>Arrays of bytes in structs of C.</summary>
  static unsafe class Bytes
  {
    internal static byte[] Read(byte* from, int count)
    {
      var bytes = new byte[count];
      for (int i = 0; i < count; ++i) bytes[i] = from[i];
      return bytes;
    }

    internal static bool AreEqual(byte* one, byte* two, int count)
    {
      int same = 0;
      while (same < count && one[same] == two[same]) ++same;
      return same == count;
    }

    internal static int Hash(byte* from, int count)
    {
      int code = 17;
      for (int i = 0; i < count; ++i) code = unchecked(code * 31 + from[i]);
      return code;
    }

    /// <summary>Writes an array, which must have exactly as many bytes; null leaves zeros.</summary>
    internal static void Write(byte[] bytes, byte* to, int count, string name)
    {
      if (bytes == null) return;
      if (bytes.Length != count) throw new ArgumentException("pass " + count + " bytes, not " + bytes.Length, name);
      for (int i = 0; i < count; ++i) to[i] = bytes[i];
    }
  }
}
