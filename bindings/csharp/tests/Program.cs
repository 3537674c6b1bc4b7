// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Runs the tests of the binding. tests/bindings/csharp.py of the source tree sets the environment that they need.
// Usage: GpuMem.Tests [child MODE ARGUMENT...]

namespace GpuMem.Tests
{
  static class Program
  {
    static int Main(string[] arguments)
    {
      if (arguments.Length > 1 && arguments[0] == "child") return Children.Run(arguments);
      Layout.Run();
      Vectors.Run();
      Behaviour.Run();
      Collection.Run();
      Children.RunAll();
      return Tap.Finish();
    }
  }
}
