// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A queue of the assembly's own. Mono has the usual one in mscorlib, and .NET elsewhere: a build by Mono's compiler could
// not be loaded there.

using System;
using System.Collections.Generic;

namespace GpuMem
{
  /// <summary>First in, first out.</summary>
  sealed class Queue<T>
  {
    // As a ring: the entries begin at `first`.
    T[] entries = new T[4];
    int first;

    internal int Count { get; private set; }

    internal void Enqueue(T entry)
    {
      if (Count == entries.Length)
      {
        var larger = new T[2 * entries.Length];
        for (int i = 0; i < Count; ++i) larger[i] = this[i];
        entries = larger;
        first = 0;
      }
      entries[(first + Count) % entries.Length] = entry;
      ++Count;
    }

    internal T Peek()
    {
      if (Count == 0) throw new InvalidOperationException("the queue is empty");
      return entries[first];
    }

    internal T Dequeue()
    {
      T entry = Peek();
      entries[first] = default(T);
      first = (first + 1) % entries.Length;
      --Count;
      return entry;
    }

    public IEnumerator<T> GetEnumerator()
    {
      for (int i = 0; i < Count; ++i) yield return this[i];
    }

    T this[int index] { get { return entries[(first + index) % entries.Length]; } }
  }
}
