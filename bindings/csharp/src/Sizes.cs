// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Sizes are long in C# and unsigned in C.

using System;

namespace GpuMem
{
  static class Sizes
  {
    /// <summary>A size or count for the C interface.</summary>
    internal static ulong ToNative(long value, string name)
    {
      if (value < 0) throw new ArgumentOutOfRangeException(name, value, "pass 0 or a positive number");
      return (ulong)value;
    }

    /// <summary>The size of a token. An empty one, such as that of a variable that is not set, would be none to C.</summary>
    internal static uint OfToken(byte[] token, string name)
    {
      if (token == null) return 0;
      if (token.Length == 0) throw new ArgumentException("The token is empty; give at least one byte, or null for none.", name);
      return (uint)token.Length;
    }

    /// <summary>A size, count or limit of the C interface; one that is larger than any size is the largest.</summary>
    internal static long FromNative(ulong value) { return value > long.MaxValue ? long.MaxValue : (long)value; }
  }
}
