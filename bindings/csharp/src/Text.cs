// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Conversion of texts: the C interface uses UTF-8 with a 0 byte at the end.

using System;
using System.Runtime.InteropServices;
using System.Text;

namespace GpuMem
{
  static unsafe class Text
  {
    internal static string Read(IntPtr text)
    {
      if (text == IntPtr.Zero) return null;
      return Read((byte*)text, int.MaxValue);
    }

    internal static string Read(byte* text, int capacity)
    {
      int length = 0;
      while (length < capacity && text[length] != 0) ++length;
      return length == 0 ? "" : Encoding.UTF8.GetString(text, length);
    }
  }

  /// <summary>A text that lives as long as a call needs it.</summary>
  struct CText : IDisposable
  {
    internal IntPtr Pointer;

    internal CText(string text)
    {
      Pointer = IntPtr.Zero;
      if (text == null) return;
      if (text.IndexOf('\0') >= 0)
      {
        throw new ArgumentException("the text contains a 0 character, which a C string cannot hold");
      }
      byte[] bytes = Encoding.UTF8.GetBytes(text);
      Pointer = Marshal.AllocHGlobal(bytes.Length + 1);
      Marshal.Copy(bytes, 0, Pointer, bytes.Length);
      Marshal.WriteByte(Pointer, bytes.Length, 0);
    }

    public void Dispose()
    {
      if (Pointer != IntPtr.Zero) Marshal.FreeHGlobal(Pointer);
      Pointer = IntPtr.Zero;
    }
  }
}
