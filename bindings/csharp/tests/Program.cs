// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Runs the tests of the binding. tests/bindings/csharp.py of the source tree sets the environment that they need.
// Usage: GpuMem.Tests [PART-OF-NAME | child MODE ARGUMENT...]

namespace GpuMem.Tests
{
  static class Program
  {
    static int Main(string[] arguments)
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
