// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Compares the declarations of the binding with those that a C compiler sees in the headers.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using GpuMem.Interop;

namespace GpuMem.Tests
{
  static class Layout
  {
    internal static void Run()
    {
      string[] lines = File.ReadAllLines(Environment.GetEnvironmentVariable("GPUMEM_LAYOUT"));
      var kinds = new[] { "struct", "field", "constant", "function" };
      foreach (string kind in kinds)
      {
        Tap.Run("layout: every " + kind + " is as in C", scope => Compare(kind, lines));
      }
      Tap.Run("layout: nothing else is in the file", scope =>
          Check.Equal("", string.Join(",", lines.Where(line => !kinds.Contains(line.Split(' ')[0]))), "unknown lines"));
      Tap.Run("layout: every function of the table is declared", scope => CompareTable());
      Tap.Run("layout: methods that call the library are not inlined", scope => CheckBinding());
    }

    static void Compare(string kind, string[] lines)
    {
      string[] mine = Own(kind).ToArray();
      string[] theirs = lines.Where(line => line.StartsWith(kind + " ")).Distinct().ToArray();
      Check.That(theirs.Length != 0, "the file has none");
      Check.Equal("", string.Join("\n", theirs.Except(mine)), "only in C");
      Check.Equal("", string.Join("\n", mine.Except(theirs)), "only in C#");
    }

    static IEnumerable<string> Own(string kind)
    {
      switch (kind)
      {
        case "struct": return Structs().Select(type => Line("struct", type.Name, "size", SizeOf(type), "align", AlignmentOf(type)));
        case "field": return Structs().SelectMany(type => FieldsOf(type).Select(field =>
            Line("field", type.Name + "." + field.Name, "offset", (int)Marshal.OffsetOf(type, field.Name), "size", SizeOf(field))));
        case "constant": return typeof(Constants).GetFields().Select(field =>
            "constant " + field.Name + " " + Convert.ToString(field.GetRawConstantValue(), System.Globalization.CultureInfo.InvariantCulture));
        default: return Functions().Select(method => "function " + method.Name);
      }
    }

    static string Line(string kind, string name, string first, int one, string second, int two)
    {
      return kind + " " + name + " " + first + " " + one + " " + second + " " + two;
    }

    static IEnumerable<Type> Structs()
    {
      return typeof(Native).Assembly.GetTypes().Where(
          type => type.Namespace == typeof(Native).Namespace && type.IsValueType && type.Name.StartsWith("gpumem_"));
    }

    static IEnumerable<FieldInfo> FieldsOf(Type type)
    {
      return type.GetFields(BindingFlags.Public | BindingFlags.Instance);
    }

    static IEnumerable<MethodInfo> Functions()
    {
      return typeof(Native).GetMethods(BindingFlags.Public | BindingFlags.Static).Where(
          method => (method.Attributes & MethodAttributes.PinvokeImpl) != 0);
    }

    static int SizeOf(Type type) { return type.IsPointer ? IntPtr.Size : Marshal.SizeOf(type); }

    static int SizeOf(FieldInfo field)
    {
      var buffer = field.GetCustomAttribute<FixedBufferAttribute>();
      return buffer == null ? SizeOf(field.FieldType) : buffer.Length * SizeOf(buffer.ElementType);
    }

    static int AlignmentOf(Type type)
    {
      if (type.IsPointer || type.IsPrimitive) return SizeOf(type);
      return FieldsOf(type).Max(field =>
      {
        var buffer = field.GetCustomAttribute<FixedBufferAttribute>();
        return AlignmentOf(buffer == null ? field.FieldType : buffer.ElementType);
      });
    }

    static void CompareTable()
    {
      var table = FieldsOf(typeof(gpumem_table)).Select(field => field.Name).Where(name => name != "struct_size").ToArray();
      var declared = Functions().Select(method => method.Name).Where(name => name != "gpumem_table_get").ToArray();
      Check.Equal("", string.Join(",", table.Except(declared)), "not declared");
      Check.Equal("", string.Join(",", declared.Except(table)), "not in the table");
    }

    // Mono binds a function when it compiles the method that calls it. If that method were inlined into a program's own,
    // the function would be bound before the program could set the path of the library.
    static void CheckBinding()
    {
      if (Type.GetType("Mono.Runtime") == null) throw new TestSkipped("only Mono binds so early");
      var natives = new HashSet<int>(Functions().Select(method => method.MetadataToken));
      var all = BindingFlags.Public | BindingFlags.NonPublic | BindingFlags.Static | BindingFlags.Instance | BindingFlags.DeclaredOnly;
      var callers = typeof(Native).Assembly.GetTypes()
          .SelectMany(type => type.GetMethods(all).Cast<MethodBase>().Concat(type.GetConstructors(all)))
          .Where(method => Calls(method, natives)).ToArray();
      Check.That(callers.Length > 60, "only " + callers.Length + " callers were found");
      // A lambda is called through its delegate and never inlined.
      var inlined = callers.Where(method => !method.Name.Contains("<") &&
          (method.MethodImplementationFlags & MethodImplAttributes.NoInlining) == 0);
      Check.Equal("", string.Join(", ", inlined.Select(method => method.DeclaringType.Name + "." + method.Name)), "may be inlined");
    }

    static bool Calls(MethodBase method, HashSet<int> natives)
    {
      const byte Call = 0x28;
      MethodBody body = method.GetMethodBody();
      byte[] code = body == null ? null : body.GetILAsByteArray();
      if (code == null) return false;
      for (int i = 0; i + 4 < code.Length; ++i)
      {
        if (code[i] == Call && natives.Contains(BitConverter.ToInt32(code, i + 1))) return true;
      }
      return false;
    }
  }
}
