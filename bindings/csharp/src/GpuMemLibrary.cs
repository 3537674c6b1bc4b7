// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Finds, loads and checks the native library at the first call that needs it.

using System;
using System.Diagnostics.CodeAnalysis;
using System.IO;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>The native library is missing, cannot be loaded, or is incompatible with this assembly.</summary>
  public sealed class GpuMemLibraryException : DllNotFoundException
  {
    /// <summary>Creates an exception.</summary>
    public GpuMemLibraryException([AllowNull] string message) : base(message) { }

    /// <summary>Creates an exception.</summary>
    public GpuMemLibraryException([AllowNull] string message, [AllowNull] Exception inner) : base(message, inner) { }
  }

  /// <summary>
  /// The native library <c>libgpumem.so.0</c>. The first call that needs it loads it, from the first of these places
  /// that has it: <see cref="Path"/>; the environment variable <c>GPUMEM_LIBRARY</c>; the folders of the application
  /// and of this assembly; <c>runtimes/linux-*/native</c> in these folders; the search path of the system.
  /// </summary>
  public static unsafe class GpuMemLibrary
  {
    /// <summary>File name of the library.</summary>
    public const string FileName = "libgpumem.so.0";

    // A method that calls a native function must not be inlined: Mono binds the function when it compiles the method,
    // and the caller may be the method that loads the library or sets its path.
#if NET8_0_OR_GREATER
    internal const MethodImplOptions Bound = default;
#else
    internal const MethodImplOptions Bound = MethodImplOptions.NoInlining;
#endif

    static readonly object gate = new object();
    static volatile bool loaded;
    static string path;
    static string loadedPath;
    static bool useResolver = true;

    /// <summary>The only file to load; null, the default, searches. Set it before the first call.</summary>
    [AllowNull, MaybeNull]
    public static string Path
    {
      get { return path; }
      set { lock (gate) { RefuseIfLoaded(); path = value; } }
    }

    /// <summary>
    /// Whether this class searches for the library. False leaves that to the runtime, for programs that link the
    /// library or have their own resolver. Set it before the first call.
    /// </summary>
    public static bool UseResolver
    {
      get { return useResolver; }
      set { lock (gate) { RefuseIfLoaded(); useResolver = value; } }
    }

    /// <summary>The file that was loaded, as it was passed to the system; null before that.</summary>
    [MaybeNull]
    public static string LoadedPath { get { return loadedPath; } }

    /// <summary>Version of the loaded library.</summary>
    public static Version Version
    {
      get
      {
        Load();
        return ToVersion(NativeVersion());
      }
    }

    /// <summary>Version of the loaded library as text.</summary>
    public static string VersionText
    {
      get
      {
        Load();
        return NativeVersionText();
      }
    }

    /// <summary>Whether this build of the library has a feature. It says nothing about drivers and devices.</summary>
    public static bool Supports(Feature feature)
    {
      Load();
      return NativeSupports((int)feature);
    }

    /// <summary>Loads the library unless it is loaded. After a failure, the next call tries again.</summary>
    /// <exception cref="GpuMemLibraryException">It is missing or incompatible; the message says why.</exception>
    public static void Load()
    {
      if (!loaded) LoadOnce();
    }

    /// <summary>Ends the message if the system cannot load the library.</summary>
    internal const string Remedy = "; set GPUMEM_LIBRARY or GpuMemLibrary.Path to its file";

    static void LoadOnce()
    {
      lock (gate)
      {
        if (loaded) return;
        string file = useResolver ? Find() : FileName;
        if (useResolver)
        {
          IntPtr library = DynamicLibrary.Open(file);
          IntPtr text = Check(library, file);
          DynamicLibrary.Bind(library, file);
          CheckBinding(text, file);
        }
        else
        {
          CheckBinding(IntPtr.Zero, file);
        }
        loadedPath = file;
        loaded = true;
      }
    }

    static void RefuseIfLoaded()
    {
      if (!loaded) return;
      throw new InvalidOperationException("the native library is already loaded from " + loadedPath +
                                          "; set this before the first call");
    }

    static string Find()
    {
      string wanted = path ?? Environment.GetEnvironmentVariable("GPUMEM_LIBRARY");
      if (!string.IsNullOrEmpty(wanted)) return wanted.Contains("/") ? System.IO.Path.GetFullPath(wanted) : wanted;
      string runtime = "runtimes/linux-" + RuntimeInformation.ProcessArchitecture.ToString().ToLowerInvariant() + "/native";
      string[] folders = { AppContext.BaseDirectory, AssemblyFolder() };
      string[] places = { "", runtime };
      foreach (string place in places)
      {
        foreach (string folder in folders)
        {
          if (string.IsNullOrEmpty(folder)) continue;
          string file = System.IO.Path.Combine(folder, place, FileName);
          if (File.Exists(file)) return file;
        }
      }
      return FileName;
    }

#if NET8_0_OR_GREATER
    // The assemblies of a single-file program have no folder of their own.
    static string AssemblyFolder() { return null; }
#else
    static string AssemblyFolder()
    {
      string location = typeof(GpuMemLibrary).Assembly.Location;
      return string.IsNullOrEmpty(location) ? null : System.IO.Path.GetDirectoryName(location);
    }
#endif

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    delegate uint VersionFunction();

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    delegate int TableFunction(uint version, IntPtr table, IntPtr error);

    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    delegate IntPtr NameFunction(int status);

    // Checks the library before anything is bound to it. The result is an address that is different in each copy of the
    // library.
    static IntPtr Check(IntPtr library, string file)
    {
      IntPtr versionSymbol = DynamicLibrary.Symbol(library, "gpumem_version");
      IntPtr tableSymbol = DynamicLibrary.Symbol(library, "gpumem_table_get");
      IntPtr nameSymbol = DynamicLibrary.Symbol(library, "gpumem_status_name");
      if (versionSymbol == IntPtr.Zero || tableSymbol == IntPtr.Zero || nameSymbol == IntPtr.Zero)
      {
        throw new GpuMemLibraryException(file + " is not a library of gpumem: it lacks gpumem_version, " +
                                         "gpumem_table_get or gpumem_status_name");
      }
      uint version = Marshal.GetDelegateForFunctionPointer<VersionFunction>(versionSymbol)();
      string difference = file + " is gpumem " + ToVersion(version) + ", but this assembly needs " +
                          ToVersion(Constants.GPUMEM_VERSION).ToString(2) + " or a newer one with the same first number";
      gpumem_table table = gpumem_table.Sized();
      int status = Marshal.GetDelegateForFunctionPointer<TableFunction>(tableSymbol)(
          Constants.GPUMEM_VERSION, (IntPtr)(&table), IntPtr.Zero);
      if (status < 0 || !Fits(version, Constants.GPUMEM_VERSION)) throw new GpuMemLibraryException(difference);
      string missing = Missing(&table);
      if (missing != null) throw new GpuMemLibraryException(difference + ": it lacks " + missing);
      return Marshal.GetDelegateForFunctionPointer<NameFunction>(nameSymbol)(Constants.GPUMEM_SUCCESS);
    }

    // The last number does not count: a release that raises it alone adds no function.
    static bool Fits(uint library, uint needed)
    {
      return library >> 22 == needed >> 22 && library >> 12 >= needed >> 12;
    }

    static string Missing(gpumem_table* table)
    {
      FieldInfo[] fields = typeof(gpumem_table).GetFields();
      IntPtr* entries = (IntPtr*)table;
      for (int i = 1; i < sizeof(gpumem_table) / sizeof(IntPtr); ++i)
      {
        if (entries[i] == IntPtr.Zero) return i < fields.Length ? fields[i].Name : "function " + i;
      }
      return null;
    }

    // Two copies of the library in one process would not know each other's handles.
    static void CheckBinding(IntPtr expected, string file)
    {
      IntPtr bound;
      try
      {
        bound = NativeName(Constants.GPUMEM_SUCCESS);
      }
      catch (Exception problem) when (problem is DllNotFoundException || problem is EntryPointNotFoundException)
      {
        if (problem is GpuMemLibraryException) throw;
        throw new GpuMemLibraryException("the runtime cannot bind " + file + ": " + problem.Message, problem);
      }
      if (expected != IntPtr.Zero && bound != expected)
      {
        throw new GpuMemLibraryException("the runtime has bound another " + FileName + " than " + file +
                                         "; remove the one beside the assembly, or set GpuMemLibrary.Path to it");
      }
    }

    internal static Version ToVersion(uint version)
    {
      return new Version((int)(version >> 22), (int)((version >> 12) & 0x3ff), (int)(version & 0xfff));
    }

    [MethodImpl(Bound)]
    static IntPtr NativeName(int status) { return Native.gpumem_status_name(status); }

    [MethodImpl(Bound)]
    static uint NativeVersion() { return Native.gpumem_version(); }

    [MethodImpl(Bound)]
    static string NativeVersionText() { return Text.Read(Native.gpumem_version_text()); }

    [MethodImpl(Bound)]
    static bool NativeSupports(int feature) { return Native.gpumem_feature_supported(feature) != 0; }
  }
}
