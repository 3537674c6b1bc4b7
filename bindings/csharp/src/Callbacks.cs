// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Functions of the program that the library calls. Native code only gets the address of a static function and a number,
// so that nothing dangles when work is dropped, and never sees an exception.

using System;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.Diagnostics.CodeAnalysis;
using System.Runtime.CompilerServices;
using System.Runtime.ExceptionServices;
using System.Runtime.InteropServices;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem
{
  /// <summary>
  /// Marks a method that native code calls, for ahead-of-time compilers (Unity's IL2CPP), which look for this name.
  /// </summary>
  [AttributeUsage(AttributeTargets.Method)]
  sealed class MonoPInvokeCallbackAttribute : Attribute
  {
    public MonoPInvokeCallbackAttribute(Type type) { Type = type; }

    public Type Type { get; private set; }
  }

  /// <summary>
  /// Prepares a thread of the library or the driver for managed code. It may block all signals, but Mono uses signals
  /// to stop every thread that has run managed code, for a collection and at the end of the process.
  /// </summary>
  static unsafe class NativeThread
  {
#if NET8_0_OR_GREATER
    internal static void Prepare() { }
#else
    const int SIG_UNBLOCK = 1;

    internal static readonly bool IsMono = Type.GetType("Mono.Runtime") != null;
    [ThreadStatic] static bool prepared;

    internal static void Prepare()
    {
      if (IsMono && !prepared) Unblock();
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Unblock()
    {
      prepared = true;
      // SIGXCPU, SIGPWR and the realtime signals. A sigset_t has 1024 bits, the first for signal 1.
      ulong* set = stackalloc ulong[16];
      for (int i = 0; i < 16; ++i) set[i] = 0;
      set[0] = (1ul << 23) | (1ul << 29) | (~0ul << 33);
      pthread_sigmask(SIG_UNBLOCK, set, null);
    }

    [DllImport("libc", CallingConvention = CallingConvention.Cdecl)]
    static extern int pthread_sigmask(int how, ulong* set, ulong* former);
#endif
  }

  [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
  delegate void LogCallback(IntPtr userData, int level, IntPtr message);

  [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
  delegate void HostCallback(IntPtr userData);

  [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
  delegate void KernelCallback(IntPtr kernel, IntPtr userData);

  [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
  delegate int BeforeSleepCallback(IntPtr userData, IntPtr buffer);

  [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
  delegate void AfterWakeCallback(IntPtr userData, IntPtr buffer, ulong generation);

  [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
  delegate int ShortageCallback(IntPtr userData, IntPtr pool, ulong size);

  /// <summary>The log of the library, for the whole process. Without a log function, nothing is logged.</summary>
  public static unsafe class GpuMemLog
  {
    static readonly LogCallback callback = Deliver;
    static readonly IntPtr callbackPointer = Marshal.GetFunctionPointerForDelegate(callback);
    static readonly object gate = new object();
    static volatile Action<LogLevel, string> receiver;
    static volatile int level;
    static bool atExit;

    /// <summary>
    /// Sets the function that receives messages; null for none. It may be called from any thread, including the
    /// finalizer's, and must not call gpumem. Exceptions that it throws are counted and dropped.
    /// </summary>
    /// <param name="function">Receives the messages; null for none.</param>
    /// <param name="maxLevel">Least important level to deliver.</param>
    public static void SetFunction([AllowNull] Action<LogLevel, string> function, LogLevel maxLevel)
    {
      GpuMemLibrary.Load();
      lock (gate)
      {
        if (!atExit)
        {
          // Threads of the library must not enter a runtime that is ending, or one that an editor is reloading.
          AppDomain.CurrentDomain.ProcessExit += Silence;
          AppDomain.CurrentDomain.DomainUnload += Silence;
          atExit = true;
        }
        Install(function != null ? callbackPointer : IntPtr.Zero, (int)maxLevel);
        level = (int)maxLevel;
        receiver = function;
      }
    }

    static void Silence(object sender, EventArgs arguments)
    {
      receiver = null;
      InstallQuietly();
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static void Install(IntPtr function, int maxLevel)
    {
      gpumem_error* error = Error.Detail;
      Error.Check(Native.gpumem_log_set_function(function, IntPtr.Zero, maxLevel, error), error);
    }

    [MethodImpl(GpuMemLibrary.Bound)]
    static void InstallQuietly()
    {
      Native.gpumem_log_set_function(IntPtr.Zero, IntPtr.Zero, Constants.GPUMEM_LOG_ERROR, null);
    }

    /// <summary>Logs a message of the binding itself.</summary>
    internal static void Write(LogLevel importance, string message)
    {
      Action<LogLevel, string> target = receiver;
      if (target == null || (int)importance > level) return;
      try
      {
        target(importance, "gpumem for .NET: " + message);
      }
      catch (Exception)
      {
        // There is no one left to report it to.
      }
    }

    [MonoPInvokeCallback(typeof(LogCallback))]
    static void Deliver(IntPtr userData, int importance, IntPtr message)
    {
      try
      {
        NativeThread.Prepare();
        Action<LogLevel, string> target = receiver;
        if (target != null) target((LogLevel)importance, Words.Read(message));
      }
      catch (Exception)
      {
        GpuMemDiagnostics.LogFailed();
      }
    }
  }

  /// <summary>A function of the program in a stream. It runs once, or never if the device is lost.</summary>
  sealed class Callback : IKept
  {
    static readonly HostCallback hostFunction = RunHost;
    static readonly KernelCallback kernelFunction = RunKernel;
    internal static readonly IntPtr HostPointer = Marshal.GetFunctionPointerForDelegate(hostFunction);
    internal static readonly IntPtr KernelPointer = Marshal.GetFunctionPointerForDelegate(kernelFunction);

    static readonly ConcurrentDictionary<long, Callback> waiting = new ConcurrentDictionary<long, Callback>();
    static long numbers;

    readonly long number;
    readonly Delegate function;
    volatile Exception thrown;

    internal Callback(Delegate function)
    {
      this.function = function;
      number = Interlocked.Increment(ref numbers);
      waiting[number] = this;
    }

    /// <summary>What the library passes to the function.</summary>
    internal IntPtr UserData { get { return (IntPtr)number; } }

    public Exception Release()
    {
      Callback dropped;
      waiting.TryRemove(number, out dropped);
      return thrown;
    }

    [MonoPInvokeCallback(typeof(HostCallback))]
    static void RunHost(IntPtr userData)
    {
      Run(userData, "a host function", function => ((Action)function)());
    }

    [MonoPInvokeCallback(typeof(KernelCallback))]
    static void RunKernel(IntPtr kernel, IntPtr userData)
    {
      Run(userData, "a kernel", function => ((Action<HostKernel>)function)(new HostKernel(kernel)));
    }

    static void Run(IntPtr userData, string what, Action<Delegate> call)
    {
      Callback callback = null;
      try
      {
        NativeThread.Prepare();
        if (waiting.TryRemove((long)userData, out callback)) call(callback.function);
      }
      catch (Exception problem)
      {
        if (callback != null) callback.thrown = problem;
        GpuMemDiagnostics.CallbackFailed(what, problem);
      }
    }
  }

  /// <summary>
  /// Functions of an object. Its handle keeps them alive; the library knows a number, so that they, and what they refer to,
  /// do not keep a forgotten object alive.
  /// </summary>
  abstract class KeptFunctions<T> where T : KeptFunctions<T>
  {
    static readonly ConcurrentDictionary<long, WeakReference<T>> known = new ConcurrentDictionary<long, WeakReference<T>>();
    static long numbers;

    readonly long number = Interlocked.Increment(ref numbers);

    protected KeptFunctions() { known[number] = new WeakReference<T>((T)this); }

    /// <summary>Whether the library has them, or had them before others.</summary>
    internal bool Installed { get; set; }

    /// <summary>What the library passes to the functions.</summary>
    internal IntPtr UserData { get { return (IntPtr)number; } }

    protected static T Find(IntPtr userData)
    {
      WeakReference<T> reference;
      T found = null;
      if (known.TryGetValue((long)userData, out reference)) reference.TryGetTarget(out found);
      return found;
    }

    internal void Release()
    {
      WeakReference<T> dropped;
      known.TryRemove(number, out dropped);
    }

    /// <summary>Those of an object that the library may call.</summary>
    internal sealed class OfObject
    {
      readonly List<T> list = new List<T>();

      /// <summary>Replaces the functions; null for none.</summary>
      internal void Replace(T functions, Action<T> install)
      {
        T[] former;
        lock (list)
        {
          // Those of a call that runs at the same time may be the ones that stay.
          former = list.FindAll(one => one.Installed).ToArray();
          if (functions != null) list.Add(functions);
        }
        try
        {
          install(functions);
        }
        catch
        {
          lock (list) Drop(functions);
          throw;
        }
        lock (list)
        {
          if (functions != null) functions.Installed = true;
          foreach (T one in former) Drop(one);
        }
      }

      void Drop(T functions)
      {
        if (functions == null) return;
        list.Remove(functions);
        functions.Release();
      }

      internal void Release()
      {
        lock (list)
        {
          foreach (T one in list) one.Release();
          list.Clear();
        }
      }
    }
  }

  /// <summary>The functions of a buffer.</summary>
  sealed unsafe class BufferCallbacks : KeptFunctions<BufferCallbacks>
  {
    static readonly BeforeSleepCallback beforeFunction = RunBefore;
    static readonly AfterWakeCallback afterFunction = RunAfter;
    static readonly IntPtr beforePointer = Marshal.GetFunctionPointerForDelegate(beforeFunction);
    static readonly IntPtr afterPointer = Marshal.GetFunctionPointerForDelegate(afterFunction);

    readonly GrowableBuffer buffer;
    readonly Func<GrowableBuffer, bool> beforeSleep;
    readonly Action<GrowableBuffer, long> afterWake;

    internal BufferCallbacks(
        GrowableBuffer buffer, Func<GrowableBuffer, bool> beforeSleep, Action<GrowableBuffer, long> afterWake)
    {
      this.buffer = buffer;
      this.beforeSleep = beforeSleep;
      this.afterWake = afterWake;
    }

    internal gpumem_buffer_callbacks Describe()
    {
      gpumem_buffer_callbacks native = gpumem_buffer_callbacks.Sized();
      native.before_sleep = beforeSleep == null ? IntPtr.Zero : beforePointer;
      native.after_wake = afterWake == null ? IntPtr.Zero : afterPointer;
      native.user_data = UserData;
      return native;
    }

    // Null for a buffer that the program has disposed or forgotten, but that is not freed yet.
    static BufferCallbacks FindUsable(IntPtr userData)
    {
      BufferCallbacks found = Find(userData);
      return found == null || found.buffer.IsDisposed ? null : found;
    }

    [MonoPInvokeCallback(typeof(BeforeSleepCallback))]
    static int RunBefore(IntPtr userData, IntPtr buffer)
    {
      try
      {
        NativeThread.Prepare();
        BufferCallbacks functions = FindUsable(userData);
        return functions == null || functions.beforeSleep(functions.buffer) ? 0 : 1;
      }
      catch (Exception problem)
      {
        SleepCall.Failed("a function before sleep", problem, true);
        return 1;
      }
    }

    [MonoPInvokeCallback(typeof(AfterWakeCallback))]
    static void RunAfter(IntPtr userData, IntPtr buffer, ulong generation)
    {
      try
      {
        NativeThread.Prepare();
        BufferCallbacks functions = FindUsable(userData);
        if (functions != null) functions.afterWake(functions.buffer, Sizes.FromNative(generation));
      }
      catch (Exception problem)
      {
        SleepCall.Failed("a function after waking", problem, false);
      }
    }
  }

  /// <summary>The function of a pool that lacks memory.</summary>
  sealed class PoolCallback : KeptFunctions<PoolCallback>
  {
    static readonly ShortageCallback function = Run;
    internal static readonly IntPtr Pointer = Marshal.GetFunctionPointerForDelegate(function);

    [ThreadStatic] static ExceptionDispatchInfo thrown;

    readonly MemoryPool pool;
    readonly Func<MemoryPool, long, bool> callback;

    internal PoolCallback(MemoryPool pool, Func<MemoryPool, long, bool> callback)
    {
      this.pool = pool;
      this.callback = callback;
    }

    /// <summary>Forgets what was thrown in a call of other code, before a call that may run functions.</summary>
    internal static void Begin()
    {
      if (thrown != null) thrown = null;
    }

    /// <summary>Throws what the function has thrown during a call that failed.</summary>
    internal static void Rethrow()
    {
      ExceptionDispatchInfo problem = thrown;
      thrown = null;
      if (problem != null) problem.Throw();
    }

    [MonoPInvokeCallback(typeof(ShortageCallback))]
    static int Run(IntPtr userData, IntPtr pool, ulong size)
    {
      try
      {
        NativeThread.Prepare();
        PoolCallback found = Find(userData);
        return found != null && found.callback(found.pool, Sizes.FromNative(size)) ? 1 : 0;
      }
      catch (Exception problem)
      {
        GpuMemDiagnostics.CallbackFailed("a function of a pool that lacks memory", problem);
        thrown = ExceptionDispatchInfo.Capture(problem);
        return 0;
      }
    }
  }
}
