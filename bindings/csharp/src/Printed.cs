// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What objects print: their type and properties, as C# prints records.

using System;
using System.Globalization;
using System.Text;

namespace GpuMem
{
  /// <summary>Builds a text such as <c>GpuMemory { Name = "a", Size = 4096 }</c>.</summary>
  sealed class Printed
  {
    readonly StringBuilder text = new StringBuilder();
    bool any;

    internal Printed(string type) { text.Append(type).Append(" {"); }

    internal Printed Add(string name, object value)
    {
      text.Append(any ? ", " : " ").Append(name).Append(" = ").Append(Format(value));
      any = true;
      return this;
    }

    /// <summary>The same for what most objects do not have: null, an empty text or false is left out.</summary>
    internal Printed AddIf(string name, object value)
    {
      bool none = value == null || value.Equals("") || value.Equals(false) || value.Equals(IntPtr.Zero);
      return none ? this : Add(name, value);
    }

    public override string ToString() { return text + " }"; }

    internal static string Format(object value)
    {
      if (value == null) return "null";
      if (value is string) return "\"" + value + "\"";
      if (value is IntPtr) return "0x" + ((long)(IntPtr)value).ToString("x");
      byte[] bytes = value as byte[];
      if (bytes != null) return BitConverter.ToString(bytes).Replace("-", "").ToLowerInvariant();
      int[] numbers = value as int[];
      if (numbers != null) return "[" + string.Join(", ", numbers) + "]";
      IntPtr[] pointers = value as IntPtr[];
      if (pointers != null) return "[" + string.Join(", ", Array.ConvertAll(pointers, one => Format(one))) + "]";
      uint[] ids = value as uint[];
      if (ids != null) return "[" + string.Join(", ", ids) + "]";
      ProcessorAccess[] accesses = value as ProcessorAccess[];
      if (accesses != null) return "[" + string.Join(", ", accesses) + "]";
      return Convert.ToString(value, CultureInfo.InvariantCulture);
    }
  }
}
