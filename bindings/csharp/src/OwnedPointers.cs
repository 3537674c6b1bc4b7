// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Addresses that belong to objects, so that the calls that free by a pointer can refuse them.

using System;
using System.Collections.Generic;

namespace GpuMem
{
  /// <summary>
  /// The addresses of what lives, each as often as it was added. What ends is removed before it ends: then another thread may
  /// get its address.
  /// </summary>
  sealed class OwnedPointers
  {
    // Several, because threads that allocate from a pool should not wait for each other.
    const int Parts = 16;
    readonly string refusal;
    readonly Dictionary<long, int>[] parts = new Dictionary<long, int>[Parts];

    internal OwnedPointers(string refusal)
    {
      this.refusal = refusal;
      for (int i = 0; i < Parts; ++i) parts[i] = new Dictionary<long, int>();
    }

    internal void Add(IntPtr pointer)
    {
      if (pointer == IntPtr.Zero) return;
      Dictionary<long, int> part = PartOf(pointer);
      lock (part)
      {
        int count;
        part.TryGetValue((long)pointer, out count);
        part[(long)pointer] = count + 1;
      }
    }

    internal void Remove(IntPtr pointer)
    {
      Dictionary<long, int> part = PartOf(pointer);
      lock (part)
      {
        int count;
        if (!part.TryGetValue((long)pointer, out count)) return;
        if (count == 1) part.Remove((long)pointer);
        else part[(long)pointer] = count - 1;
      }
    }

    /// <summary>Throws if an object has the address.</summary>
    internal void Refuse(IntPtr pointer, string name)
    {
      Dictionary<long, int> part = PartOf(pointer);
      lock (part)
      {
        if (!part.ContainsKey((long)pointer)) return;
      }
      throw new ArgumentException(Printed.Format(pointer) + refusal, name);
    }

    Dictionary<long, int> PartOf(IntPtr pointer)
    {
      ulong bits = unchecked((ulong)(long)pointer * 0x9e3779b97f4a7c15UL);
      return parts[bits >> 60];
    }
  }
}
