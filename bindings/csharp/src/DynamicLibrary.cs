// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Loads a library by its path, and binds the functions in Native to it.

using System;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace GpuMem
{
#if NETCOREAPP3_0_OR_GREATER
  static class DynamicLibrary
  {
    static IntPtr bound;

    internal static IntPtr Open(string file)
    {
      try
      {
        return NativeLibrary.Load(file);
      }
      catch (Exception problem) when (problem is DllNotFoundException || problem is BadImageFormatException)
      {
        throw new GpuMemLibraryException("the native library of gpumem cannot be loaded: " + problem.Message + GpuMemLibrary.Remedy, problem);
      }
    }

    internal static IntPtr Symbol(IntPtr library, string name)
    {
      return NativeLibrary.TryGetExport(library, name, out IntPtr address) ? address : IntPtr.Zero;
    }

    internal static void Bind(IntPtr library, string file)
    {
      bound = library;
      try
      {
        NativeLibrary.SetDllImportResolver(typeof(DynamicLibrary).Assembly, (name, assembly, search) =>
            name == GpuMemLibrary.FileName ? bound : IntPtr.Zero);
      }
      catch (InvalidOperationException)
      {
        // The program has set its own resolver. CheckBinding() finds out whether it resolves to the same file.
      }
    }
  }
#else
  static class DynamicLibrary
  {
    const int RTLD_NOW = 2;

    internal static IntPtr Open(string file)
    {
      // Resolve dlerror first: to resolve it later, the runtime calls the linker, which clears the text.
      Linker.Problem();
      IntPtr library = Linker.Open(file, RTLD_NOW);
      if (library == IntPtr.Zero)
      {
        throw new GpuMemLibraryException("the native library of gpumem cannot be loaded: " + Linker.Problem() + GpuMemLibrary.Remedy);
      }
      return library;
    }

    internal static IntPtr Symbol(IntPtr library, string name) { return Linker.Symbol(library, name); }

    static IntPtr bound;

    // Runtimes search the folder of the assembly first, unless they are told which file it is.
    internal static void Bind(IntPtr library, string file)
    {
      bound = library;
      if (NativeThread.IsMono) MapName(file);
      else SetResolver();
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void MapName(string file)
    {
      try
      {
        mono_dllmap_insert(IntPtr.Zero, GpuMemLibrary.FileName, null, file, null);
      }
      catch (EntryPointNotFoundException)
      {
      }
      catch (DllNotFoundException)
      {
      }
    }

    // .NET Standard has no NativeLibrary, but .NET, which this build may run on, has.
    static void SetResolver()
    {
      const string Namespace = "System.Runtime.InteropServices.";
      Type libraries = typeof(object).Assembly.GetType(Namespace + "NativeLibrary");
      Type resolver = typeof(object).Assembly.GetType(Namespace + "DllImportResolver");
      MethodInfo set = libraries?.GetMethod("SetDllImportResolver");
      if (set == null || resolver == null) return;
      MethodInfo resolve = typeof(DynamicLibrary).GetMethod("Resolve", BindingFlags.Static | BindingFlags.NonPublic);
      try
      {
        set.Invoke(null, new object[] { typeof(DynamicLibrary).Assembly, Delegate.CreateDelegate(resolver, resolve) });
      }
      catch (TargetInvocationException problem) when (problem.InnerException is InvalidOperationException)
      {
        // A resolver is set already: this one, or the program's. CheckBinding() finds out.
      }
    }

    static IntPtr Resolve(string name, Assembly assembly, DllImportSearchPath? search)
    {
      return name == GpuMemLibrary.FileName ? bound : IntPtr.Zero;
    }

    [DllImport("__Internal", CallingConvention = CallingConvention.Cdecl, CharSet = CharSet.Ansi)]
    static extern void mono_dllmap_insert(
        IntPtr assembly, string library, string function, string targetLibrary, string targetFunction);

    // dlopen is in libdl; since glibc 2.34, and in other C libraries, it is in libc.
    static class Linker
    {
      [DllImport("libdl.so.2", EntryPoint = "dlopen", CallingConvention = CallingConvention.Cdecl)]
      static extern IntPtr dlopen_libdl(string file, int mode);

      [DllImport("libdl.so.2", EntryPoint = "dlsym", CallingConvention = CallingConvention.Cdecl)]
      static extern IntPtr dlsym_libdl(IntPtr library, string name);

      [DllImport("libdl.so.2", EntryPoint = "dlerror", CallingConvention = CallingConvention.Cdecl)]
      static extern IntPtr dlerror_libdl();

      [DllImport("libc", EntryPoint = "dlopen", CallingConvention = CallingConvention.Cdecl)]
      static extern IntPtr dlopen_libc(string file, int mode);

      [DllImport("libc", EntryPoint = "dlsym", CallingConvention = CallingConvention.Cdecl)]
      static extern IntPtr dlsym_libc(IntPtr library, string name);

      [DllImport("libc", EntryPoint = "dlerror", CallingConvention = CallingConvention.Cdecl)]
      static extern IntPtr dlerror_libc();

      static bool inLibc;

      internal static IntPtr Open(string file, int mode)
      {
        return inLibc ? OpenLibc(file, mode) : OpenLibdl(file, mode);
      }

      internal static IntPtr Symbol(IntPtr library, string name)
      {
        return inLibc ? SymbolLibc(library, name) : SymbolLibdl(library, name);
      }

      internal static string Problem()
      {
        if (inLibc) return Text.Read(ProblemLibc());
        try
        {
          return Text.Read(ProblemLibdl());
        }
        catch (DllNotFoundException)
        {
          inLibc = true;
          return Text.Read(ProblemLibc());
        }
      }

      [MethodImpl(MethodImplOptions.NoInlining)]
      static IntPtr OpenLibdl(string file, int mode) { return dlopen_libdl(file, mode); }

      [MethodImpl(MethodImplOptions.NoInlining)]
      static IntPtr OpenLibc(string file, int mode) { return dlopen_libc(file, mode); }

      [MethodImpl(MethodImplOptions.NoInlining)]
      static IntPtr SymbolLibdl(IntPtr library, string name) { return dlsym_libdl(library, name); }

      [MethodImpl(MethodImplOptions.NoInlining)]
      static IntPtr SymbolLibc(IntPtr library, string name) { return dlsym_libc(library, name); }

      [MethodImpl(MethodImplOptions.NoInlining)]
      static IntPtr ProblemLibdl() { return dlerror_libdl(); }

      [MethodImpl(MethodImplOptions.NoInlining)]
      static IntPtr ProblemLibc() { return dlerror_libc(); }
    }
  }
#endif
}
