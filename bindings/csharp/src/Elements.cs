// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Access to elements of any unmanaged type by address. With GPUMEM_MCS defined the file compiles with mcs, Mono's
// compiler, which has no pointers to type parameters; without spans, single elements are slow then.

using System;
using System.Reflection;
using System.Runtime.InteropServices;

namespace GpuMem
{
  static unsafe class Elements<T>
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    static readonly string refusal = Elements.Refuse(typeof(T));

    internal static int Size
    {
      get
      {
        if (refusal != null) throw new ArgumentException(typeof(T) + refusal);
#if GPUMEM_MCS
        return size;
#else
        return sizeof(T);
#endif
      }
    }

#if GPUMEM_MCS && NETCOREAPP3_0_OR_GREATER
    static readonly int size = refusal != null ? 0 : MemoryMarshal.AsBytes(new Span<T>(new T[1])).Length;

    internal static T Get(IntPtr first, long index) { return new Span<T>(At(first, index), 1)[0]; }

    internal static void Set(IntPtr first, long index, T value) { new Span<T>(At(first, index), 1)[0] = value; }

    internal static void Read(IntPtr first, long index, T[] array, int start, int count)
    {
      new Span<T>(At(first, index), count).CopyTo(new Span<T>(array, start, count));
    }

    internal static void Write(IntPtr first, long index, T[] array, int start, int count)
    {
      new Span<T>(array, start, count).CopyTo(new Span<T>(At(first, index), count));
    }

    static void* At(IntPtr first, long index) { return (byte*)first + index * Size; }
#elif GPUMEM_MCS
    static readonly int size = refusal != null ? 0 : Measure();

    static int Measure()
    {
      var two = new T[2];
      fixed (byte* first = SameArray.AsBytes(two)) return (int)((long)Marshal.UnsafeAddrOfPinnedArrayElement(two, 1) - (long)first);
    }

    internal static T Get(IntPtr first, long index)
    {
      var one = new T[1];
      Read(first, index, one, 0, 1);
      return one[0];
    }

    internal static void Set(IntPtr first, long index, T value) { Write(first, index, new[] { value }, 0, 1); }

    internal static void Read(IntPtr first, long index, T[] array, int start, int count)
    {
      Copy(first, index, array, start, count, false);
    }

    internal static void Write(IntPtr first, long index, T[] array, int start, int count)
    {
      Copy(first, index, array, start, count, true);
    }

    static void Copy(IntPtr first, long index, T[] array, int start, int count, bool toMemory)
    {
      fixed (byte* elements = SameArray.AsBytes(array)) Copy(first, index, elements, start, count, toMemory);
    }
#else
    internal static T Get(IntPtr first, long index) { return ((T*)first)[index]; }

    internal static void Set(IntPtr first, long index, T value) { ((T*)first)[index] = value; }

    internal static void Read(IntPtr first, long index, T[] array, int start, int count)
    {
      fixed (T* elements = array) Copy(first, index, (byte*)elements, start, count, false);
    }

    internal static void Write(IntPtr first, long index, T[] array, int start, int count)
    {
      fixed (T* elements = array) Copy(first, index, (byte*)elements, start, count, true);
    }
#endif

    /// <summary>A value as one that a fill repeats: of its own size, or of the bytes after which a larger one repeats.</summary>
    internal static uint Bits(T value, out int valueSize)
    {
      int whole = Size;
      var bytes = new byte[whole];
      fixed (byte* first = bytes)
      {
        Set((IntPtr)first, 0, value);
        for (valueSize = 4; valueSize > 0; valueSize /= 2)
        {
          if (whole % valueSize != 0) continue;
          int i = valueSize;
          while (i < whole && bytes[i] == bytes[i - valueSize]) ++i;
          if (i < whole) continue;
          return valueSize == 4 ? *(uint*)first : valueSize == 2 ? *(ushort*)first : *first;
        }
      }
      throw new ArgumentException("a fill repeats 1, 2 or 4 bytes, and the " + whole + " bytes of " + value +
                                  " do not repeat so; copy an array instead", nameof(value));
    }

    internal static void RequireInside(T[] array, int start, int count, string name)
    {
      if (array == null) throw new ArgumentNullException(name);
      if (start < 0 || start > array.Length) throw OutsideArray(array, name, nameof(start), start);
      if (count < 0 || count > array.Length - start) throw OutsideArray(array, name, nameof(count), count);
    }

    /// <summary>The same of so many elements that do not all fit into an array.</summary>
    internal static void RequireInside(long all, long start, long count, string name)
    {
      if (start < 0 || start > all) throw Outside(all, nameof(start), start);
      if (count < 0 || count > all - start) throw Outside(all, name, count);
    }

    static Exception OutsideArray(T[] array, string name, string what, int value)
    {
      return new ArgumentOutOfRangeException(name, "a " + what + " of " + value + " is outside of the array, which has " + array.Length + " elements");
    }

    internal static Exception Outside(long all, string name, long value)
    {
      return new ArgumentOutOfRangeException(name, value, "there are " + all + " elements");
    }

#if !GPUMEM_MCS || !NETCOREAPP3_0_OR_GREATER
    static void Copy(IntPtr first, long index, byte* elements, int start, int count, bool toMemory)
    {
      if (count == 0) return;
      byte* memory = (byte*)first + index * Size;
      byte* array = elements + (long)start * Size;
      long bytes = (long)count * Size;
      Buffer.MemoryCopy(toMemory ? array : memory, toMemory ? memory : array, bytes, bytes);
    }
#endif

    // .NET pins no array of enums, or of structs with a char, although they are laid out as in C.
    static readonly bool canPin = refusal == null && TryPin();

    internal static bool CanPin { get { return canPin; } }

    static bool TryPin()
    {
      try
      {
        GCHandle.Alloc(new T[1], GCHandleType.Pinned).Free();
        return true;
      }
      catch (ArgumentException)
      {
        return false;
      }
    }

    /// <summary>Keeps an array in place for longer than a call.</summary>
    internal static GCHandle Pin(T[] array, string name)
    {
      if (canPin) return GCHandle.Alloc(array, GCHandleType.Pinned);
      throw new ArgumentException(
          "this runtime pins no array of " + typeof(T) + ", which is or has an enum, a char or a layout of its own; " +
          "use a PinnedMemory of it", name);
    }
  }

  static class Elements
  {
    /// <summary>Why values of a type cannot be elements; null if they can.</summary>
    internal static string Refuse(Type type)
    {
      if (type == typeof(bool)) return " is or has a bool, which a device could make neither true nor false; use byte in its place";
      if (type.IsPrimitive || type.IsEnum || type.IsPointer) return null;
      if (!type.IsValueType) return " contains references, which device code cannot follow";
      const BindingFlags All = BindingFlags.Instance | BindingFlags.Public | BindingFlags.NonPublic;
      foreach (FieldInfo field in type.GetFields(All))
      {
        string found = Refuse(field.FieldType);
        if (found != null) return found;
      }
      return null;
    }

    /// <summary>The array, or for an empty one another: its address would be null, as if there were none.</summary>
    internal static T[] WithAddress<T>(T[] array) { return array.Length == 0 ? new T[1] : array; }
  }

#if GPUMEM_MCS && !NETCOREAPP3_0_OR_GREATER
  /// <summary>Takes an array for one of bytes, to keep it in place as `fixed` does. A GCHandle refuses some types.</summary>
  [StructLayout(LayoutKind.Explicit)]
  struct SameArray
  {
    [FieldOffset(0)] Array array;
    [FieldOffset(0)] byte[] bytes;

    internal static byte[] AsBytes(Array array)
    {
      var same = default(SameArray);
      same.array = array;
      return same.bytes;
    }
  }
#endif

  /// <summary>Memory with the elements of an array during a call: the array, or a copy if the runtime does not pin it.</summary>
  struct PinnedArray<T> : IDisposable
#if GPUMEM_MCS
      where T : struct
#else
      where T : unmanaged
#endif
  {
    readonly T[] array;
    readonly bool written;
    readonly IntPtr copy;
    GCHandle handle;

    /// <param name="array">The array.</param>
    /// <param name="name">Name of the parameter.</param>
    /// <param name="written">Whether the call writes it.</param>
    internal PinnedArray(T[] array, string name, bool written)
    {
      if (array == null) throw new ArgumentNullException(name);
      this.array = array;
      this.written = written;
      Size = array.LongLength * Elements<T>.Size;
      handle = default(GCHandle);
      copy = IntPtr.Zero;
      if (Elements<T>.CanPin)
      {
        handle = GCHandle.Alloc(array, GCHandleType.Pinned);
        return;
      }
      copy = Marshal.AllocHGlobal((IntPtr)Math.Max(Size, 1));
      Elements<T>.Write(copy, 0, array, 0, array.Length);
    }

    internal long Size;

    internal GpuRange Range { get { return new GpuRange(copy != IntPtr.Zero ? copy : handle.AddrOfPinnedObject(), Size); } }

    public void Dispose()
    {
      if (copy == IntPtr.Zero)
      {
        handle.Free();
        return;
      }
      if (written) Elements<T>.Read(copy, 0, array, 0, array.Length);
      Marshal.FreeHGlobal(copy);
    }
  }
}
