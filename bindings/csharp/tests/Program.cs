// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Runs the tests of the binding. tests/bindings/csharp.py of the source tree sets the environment that they need.
// Usage: GpuMem.Tests [PART-OF-NAME | child MODE ARGUMENT...]

using System.Runtime.CompilerServices;

namespace GpuMem.Tests
{
  static class Program
  {
    // In a method of its own, so that only what it needs is loaded.
    static int Main(string[] arguments)
    {
      return arguments.Length > 1 && arguments[1] == "assemblies" ? Failures.Run() : Run(arguments);
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static int Run(string[] arguments)
    {
      if (arguments.Length > 1 && arguments[0] == "child") return Children.Run(arguments);
      if (arguments.Length > 0) Tap.Only = arguments[0];
      Layout.Run();
      Vectors.Run();
      Behaviour.Run();
      Waiting.Run();
      Unified.Run();
      Ranges.Run();
      Buffers.Run();
      Sleeping.Run();
      Files.Run();
      Pools.Run();
      Sharing.Run();
      Objects.Run();
      Collection.Run();
      Children.RunAll();
      return Tap.Finish();
    }
  }
}
