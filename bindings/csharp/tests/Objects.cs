// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests what all public types have in common, empty arrays, and the part that the collector plays when memory is short.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Text.RegularExpressions;
using System.Threading;
using GpuMem.Interop;

namespace GpuMem.Tests
{
  static unsafe class Objects
  {
    internal static void Run()
    {
      Tap.Run("every public type prints itself", PrintedTypes);
      Tap.Run("what objects print", PrintedTexts);
      Tap.Run("sizes are long", LongSizes);
      Tap.Run("every member of a disposed object says so", DisposedMembers);
      Tap.Run("null is refused by its name", Nulls);
      Tap.Run("the attributes say where null may be", NullAttributes);
      Tap.Run("null is refused wherever no attribute allows it", NullArguments);
      Tap.Run("texts of the library are in words of C#", Translated);
      Tap.Run("names and paths of the program are left as they are", GivenTexts);
      Tap.Run("every text in the library's sources is in words of C#", SourceTexts);
      Tap.Run("every function of the library has a name in C#", FunctionNames);
      Tap.Run("empty arrays", EmptyArrays);
      Tap.Run("forgotten memory makes room when the device is full", RoomOnDevice);
      Tap.Run("forgotten memory makes room in the pin budget", RoomInBudget);
      Tap.Run("forgotten memory of the host makes the collector run", Pressure);
      Tap.Run("device memory does not make the collector run", NoPressure);
      Tap.Run("spans", Spans);
    }

    const BindingFlags Own = BindingFlags.Public | BindingFlags.Instance | BindingFlags.DeclaredOnly;

    static IEnumerable<Type> PublicTypes()
    {
      return typeof(GpuInstance).Assembly.GetExportedTypes().Where(type => type.Namespace == "GpuMem");
    }

    static IEnumerable<Type> Objectlike()
    {
      return PublicTypes().Where(type => !type.IsEnum && !(type.IsAbstract && type.IsSealed) &&
                                         !typeof(Exception).IsAssignableFrom(type));
    }

    static void PrintedTypes(Scope scope)
    {
      Type[] types = Objectlike().ToArray();
      Check.That(types.Length > 20, "only " + types.Length + " types");
      var silent = types.Where(type => type.GetMethod("ToString", Own, null, Type.EmptyTypes, null) == null);
      Check.Equal("", string.Join(", ", silent.Select(type => type.Name)), "no ToString");
      // What has a constructor without parameters prints every property.
      foreach (Type type in types.Where(type => type.IsValueType || type.GetConstructor(Type.EmptyTypes) != null))
      {
        bool generic = type.IsGenericTypeDefinition;
        string text = Activator.CreateInstance(generic ? type.MakeGenericType(typeof(int)) : type).ToString();
        Check.That(text.StartsWith(generic ? type.Name.Split('`')[0] + "<Int32> {" : type.Name + " {"), text);
        foreach (PropertyInfo property in type.GetProperties(Own)) Check.That(text.Contains(property.Name + " = "), text);
      }
    }

    static void PrintedTexts(Scope scope)
    {
      GpuInstance instance = scope.Open(new InstanceOptions { Name = "mine" });
      GpuDevice device = instance.GetDevice(1);
      GpuMemory memory = device.AllocateDevice(4096, new MemoryOptions { Name = "table" });
      PinnedMemory<int> pinned = device.AllocatePinned<int>(100);
      GpuStream stream = device.CreateStream(0, "work");
      GpuEvent gpuEvent = device.CreateEvent();
      UnifiedMemory<int> unified = device.AllocateUnified<int>(100);
      long granule, recommended;
      device.GetGranularity(out granule, out recommended);
      PhysicalMemory block = device.CreatePhysical(granule);
      AddressRange range = instance.ReserveRange(granule);
      range.Map(0, block);
      BufferGroup group = instance.CreateGroup("model");
      GrowableBuffer buffer = device.CreateBuffer(granule, new BufferOptions { Group = group, Tag = "weights" });
      MemoryPool pool = device.CreatePool(new PoolOptions { Kind = MemoryKind.Pinned, Name = "steps" });
      PoolBlock poolBlock = pool.Allocate(100);
      Hub hub = instance.OpenHub(new HubOptions { Path = Sharing.Address("printed"), Name = "models" });
      Link link = instance.Connect(Sharing.Address("printed"));
      var region = new CopyRegion(new CopyOperand(new GpuRange((IntPtr)0x1000, 64), 8), new GpuRange((IntPtr)0x2000, 64), 4, 2);
      InstanceStats stats = instance.Stats;
      Check.Equal(stats.LiveCount + 2, stats.LiveObjects, "live objects");
      var texts = new Dictionary<string, object>
      {
        { "GpuInstance { Name = \"mine\", Backend = " + Scope.Backend + ", DeviceCount = 2 }", instance },
        { "GpuDevice { Ordinal = 1, Name = \"" + device.Info.Name + "\" }", device },
        { "GpuMemory { Kind = Device, Size = 4096, Device = 1, Name = \"table\" }", memory },
        { "PinnedMemory<Int32> { Length = 100, Device = 1 }", pinned },
        { "GpuStream { Device = 1, Name = \"work\" }", stream },
        { "GpuEvent { Device = 1 }", gpuEvent },
        { "GpuRange { Pointer = 0x1000, Size = 64 }", new GpuRange((IntPtr)0x1000, 64) },
        { "CopyRegion { Destination = CopyOperand { Range = GpuRange { Pointer = 0x1000, Size = 64 }, RowPitch = 8, SlicePitch = 0 }, " +
          "Source = CopyOperand { Range = GpuRange { Pointer = 0x2000, Size = 64 }, RowPitch = 0, SlicePitch = 0 }, " +
          "Width = 4, Height = 2, Depth = 1, Options = CopyOptions { Direction = Infer, SourceOrder = Stream } }", region },
        { "CudaOptions { Contexts = [0x8] }", new CudaOptions { Contexts = new[] { (IntPtr)8 } } },
        { "BufferGroup { Name = \"model\" }", group },
        { "MemoryPool { Kind = Pinned, Device = 1, Name = \"steps\" }", pool },
        { "PoolBlock { Pointer = 0x" + ((long)poolBlock.Pointer).ToString("x") + ", Size = 100, Pool = \"steps\" }", poolBlock },
        { "Hub { Path = \"" + Sharing.Address("printed") + "\", Name = \"models\" }", hub },
        { "Link { Path = \"" + Sharing.Address("printed") + "\" }", link },
        { "LinkOptions { Path = null, Token = \"secret\", Timeout = 00:00:00 }", new LinkOptions { Token = new byte[] { 1, 2 } } },
        { "FabricHandle { Bytes = " + string.Concat(Enumerable.Repeat("07", 64)) + " }", new FabricHandle(Enumerable.Repeat((byte)7, 64).ToArray()) },
        { "SleepOptions { Content = Pinned, Flags = None, Directory = null, Tag = \"weights\", Stream = null, Event = null, " +
          "Progress = False, Cancellation = False }", new SleepOptions { Tag = "weights" } },
        { "InstanceStats { LiveCount = " + stats.LiveCount + ", LiveBytes = " + stats.LiveBytes + ", ReservedBytes = " +
          stats.ReservedBytes + ", Streams = 1, Events = 1, PeakBytes = " + stats.PeakBytes + ", LiveObjects = " +
          stats.LiveObjects + " }", stats },
      };
      foreach (KeyValuePair<string, object> pair in texts) Check.Equal(pair.Key, pair.Value.ToString(), "text");
      foreach (object info in new object[]
      {
        instance.Info, device.Info, memory.Info, stream.Info, gpuEvent.Info, instance.GetPointerInfo(pinned.HostPointer),
        device.GetCapability(Capability.PinMapHost), instance.GetStats(MemoryKind.Device), GpuInstance.Probe(Scope.Backend),
        StatusInfo.Of(Status.Busy), instance.GetUnifiedInfo(unified), block.Info, range.Info, range.GetMapping(0),
        buffer.Info, group.Info, pool.Info, pool.GetClassInfo(0), poolBlock.Info, hub.Info, link.Info, instance.GetShareWay(memory, ShareWay.Legacy),
      })
      {
        string text = info.ToString();
        Check.That(text.StartsWith(info.GetType().Name + " {") && text.EndsWith(" }"), text);
        foreach (PropertyInfo property in info.GetType().GetProperties(Own).Where(property => property.Name != "Name"))
        {
          Check.That(text.Contains(property.Name + " = "), property.Name + " is not in " + text);
        }
      }
      memory.Dispose();
      pinned.Dispose();
      stream.Dispose();
      gpuEvent.Dispose();
      unified.Dispose();
      range.Dispose();
      block.Dispose();
      buffer.Dispose();
      group.Dispose();
      poolBlock.Dispose();
      pool.Dispose();
      link.Dispose();
      hub.Dispose();
      instance.Dispose();
      foreach (object gone in new object[] { memory, pinned, stream, gpuEvent, unified, range, block, buffer, group, poolBlock, pool, hub, link })
      {
        Check.That(gone.ToString().EndsWith("IsDisposed = True }"), gone.ToString());
      }
      Check.Equal("GpuInstance { IsClosed = True }", instance.ToString(), "a closed instance");
      Check.Equal("GpuDevice { Ordinal = 1, IsClosed = True }", device.ToString(), "its device");
    }

    // Only what is no size may have an unsigned type.
    static void LongSizes(Scope scope)
    {
      var allowed = new HashSet<string>
      {
        "GpuStream.WriteValue value", "GpuStream.WaitValue value", "MemoryInfo.BufferId", "PointerInfo.BufferId", "StreamInfo.Id", "PoolAttempt.StreamId",
        "AddressRangeInfo.BufferId", "BufferInfo.BufferId", "PhysicalMemory.BlockId", "PhysicalInfo.BlockId", "PhysicalInfo.NativeHandle", "MappingInfo.BlockId",
        "ShareInfo.BufferId", "ImportInfo.ExporterBufferId", "LinkInfo.User", "HubEntry.PublisherUser", "RingSlot.Publish tag", "RingMessage.Tag", "GpuStream.Fill value", "GpuStream.Fill2D value", "GpuInstance.Fill value", "GpuInstance.Fill2D value",
      };
      Func<Type, bool> unsigned = type => new[] { typeof(ulong), typeof(uint), typeof(UIntPtr) }.Contains(
          type.IsByRef ? type.GetElementType() : Nullable.GetUnderlyingType(type) ?? type);
      var found = new List<string>();
      const BindingFlags All = BindingFlags.Public | BindingFlags.Instance | BindingFlags.Static | BindingFlags.DeclaredOnly;
      foreach (Type type in PublicTypes().Where(type => !type.IsEnum))
      {
        found.AddRange(type.GetProperties(All).Where(property => unsigned(property.PropertyType))
            .Select(property => type.Name + "." + property.Name));
        foreach (MethodBase method in type.GetMethods(All).Cast<MethodBase>().Concat(type.GetConstructors(All)))
        {
          if (method.Name.StartsWith("get_")) continue;
          found.AddRange(method.GetParameters().Where(parameter => unsigned(parameter.ParameterType))
              .Select(parameter => type.Name + "." + method.Name + " " + parameter.Name));
          var function = method as MethodInfo;
          if (function != null && unsigned(function.ReturnType)) found.Add(type.Name + "." + method.Name);
        }
      }
      Check.Equal("", string.Join(", ", found.Where(name => !allowed.Contains(name))), "unsigned");
    }

    static void DisposedMembers(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule, recommended;
      device.GetGranularity(out granule, out recommended);
      UnifiedMemory<int> unified = device.AllocateUnified<int>(16);
      MemoryPool pool = device.CreatePool();
      var all = new List<IDisposable>
      {
        device.AllocateDevice(64), device.AllocatePinned<int>(16), device.AllocatePinned<int>(0), device.Register(new byte[64]),
        device.CreateStream(), device.CreateEvent(), unified, unified.BeginHostAccess(), device.AllocateUnified<int>(0),
        device.CreatePhysical(granule), instance.ReserveRange(granule), device.CreateBuffer(granule), instance.CreateGroup(),
        pool.Allocate(64), pool.Allocate(0), pool,
        instance.OpenHub(Sharing.Address("gone")), instance.Connect(Sharing.Address("gone")), instance,
      };
      foreach (IDisposable one in all) one.Dispose();
      int calls = 0;
      var wrong = new List<string>();
      var may = new[] { "Dispose", "get_IsDisposed", "get_IsClosed", "ToString", "Unpin" };
      foreach (IDisposable one in all)
      {
        foreach (MethodInfo declared in one.GetType().GetMethods(Own).Where(method => !may.Contains(method.Name)))
        {
          // Reflection cannot call what returns a span; the test of spans does.
          if (declared.ReturnType.Name.StartsWith("Span")) continue;
          MethodInfo method = declared.IsGenericMethodDefinition ? declared.MakeGenericMethod(typeof(int)) : declared;
          object[] arguments = method.GetParameters().Select(
              parameter => parameter.ParameterType.IsValueType ? Activator.CreateInstance(parameter.ParameterType) : null).ToArray();
          Exception thrown = null;
          try
          {
            method.Invoke(one, arguments);
          }
          catch (TargetInvocationException problem)
          {
            thrown = problem.InnerException;
          }
          ++calls;
          var gone = thrown as ObjectDisposedException;
          string[] nouns = { one.GetType().Name.Split('`')[0], nameof(GpuInstance) };
          if (gone != null && Array.IndexOf(nouns, gone.ObjectName) < 0) wrong.Add(one + " " + method.Name + ": " + gone.ObjectName);
          if (gone == null) wrong.Add(one + " " + method.Name + ": " + (thrown == null ? "nothing" : thrown.GetType().Name));
        }
      }
      Check.Equal("", string.Join("\n", wrong), "other answers");
      Check.That(calls > 100, "only " + calls + " calls");
      foreach (Action call in new Action[]
      {
        () => GC.KeepAlive(device.Info), () => device.AllocateDevice(1), () => device.AllocatePinned<int>(0),
        () => device.Register(new int[0]), () => device.CanAccessPeer(device), () => device.GetAccess((IntPtr)1),
        () => device.GetDevicePointer((IntPtr)1), () => device.WrapStream(IntPtr.Zero), () => device.Allocate(MemoryKind.Device, 1),
        () => device.AllocateUnified<int>(0), () => device.CreatePhysical(granule), () => device.GetGranularity(out granule, out recommended),
        () => device.ImportPhysical(new FileDescriptorHandle(0, false), granule), () => device.CreateBuffer(0),
        () => device.ImportPhysical(default(FabricHandle), granule), () => device.CreatePool(),
      })
      {
        Check.Throws<ObjectDisposedException>(call);
      }
    }

    static void Nulls(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (GpuStream stream = device.CreateStream())
      using (GpuEvent gpuEvent = device.CreateEvent())
      {
        foreach (Action call in new Action[]
        {
          () => stream.Wait(null), () => gpuEvent.Record(null), () => gpuEvent.GetElapsedNanoseconds(null),
          () => device.CanAccessPeer(null), () => device.EnablePeerAccess(null), () => device.DisablePeerAccess(null),
          () => instance.Revoke(null), () => instance.GetDescriptors(null), () => instance.Import(null), () => device.ImportEvent(null),
          () => instance.Send(new ShareHandle(new byte[ShareHandle.Size]), (FileDescriptorHandle)null),
          () => instance.Receive((FileDescriptorHandle)null), () => new ShareHandle(null),
          () => instance.Import(new ShareHandle(new byte[ShareHandle.Size]), new FileDescriptorHandle[1]),
          () => HostSimulation.Launch(null, kernel => { }), () => HostSimulation.LoseDevice(null),
          () => HostSimulation.CreateNativeStream(null), () => HostSimulation.DestroyNativeStream(null, IntPtr.Zero),
          () => HostSimulation.SetCapturing(null, true), () => HostSimulation.FailStep(null, 1),
          () => HostSimulation.AllocateForeign(null, MemoryKind.Device, 1), () => HostSimulation.FreeForeign(null, IntPtr.Zero),
          () => HostSimulation.SetForeignPeerAccess(device, null, true), () => HostSimulation.SetForeignPeerAccess(null, device, true),
        })
        {
          Check.Throws<ArgumentNullException>(call);
        }
      }
    }

    // Compilers that check references warn of null wherever no attribute allows it.
    static void NullAttributes(Scope scope)
    {
      const BindingFlags All = Own | BindingFlags.Static;
      Func<ICustomAttributeProvider, string, bool> has =
          (member, name) => member.GetCustomAttributes(false).Any(one => one.GetType().Name == name + "Attribute");
      Func<ICustomAttributeProvider, bool> allows = member => has(member, "AllowNull"), may = member => has(member, "MaybeNull");
      var wrong = new List<string>();
      var returned = new List<string>();
      foreach (Type type in PublicTypes().Where(type => !type.IsEnum))
      {
        PropertyInfo[] properties = type.GetProperties(All).Where(property => !property.PropertyType.IsValueType).ToArray();
        returned.AddRange(properties.Where(property => may(property) && !allows(property)).Select(property => type.Name + "." + property.Name));
        // Options that nobody has set.
        object options = type.Name.EndsWith("Options") ? Activator.CreateInstance(type) : null;
        foreach (PropertyInfo property in properties.Where(property => options != null && property.GetValue(options) == null))
        {
          if (!allows(property) || !may(property)) wrong.Add(type.Name + "." + property.Name);
        }
        foreach (MethodBase method in type.GetMethods(All).Cast<MethodBase>().Concat(type.GetConstructors(All)))
        {
          string name = type.Name + "." + method.Name;
          foreach (ParameterInfo parameter in method.GetParameters().Where(parameter => !parameter.ParameterType.IsValueType))
          {
            bool optional = parameter.HasDefaultValue && parameter.DefaultValue == null;
            if ((optional || method.Name == "Equals") && !allows(parameter)) wrong.Add(name + " " + parameter.Name);
            if (may(parameter)) returned.Add(name + " " + parameter.Name);
          }
          var function = method as MethodInfo;
          if (function != null && may(function.ReturnParameter)) returned.Add(name);
        }
      }
      Check.Equal("", string.Join(", ", wrong), "attributes");
      // All others never return null.
      returned.Sort(string.CompareOrdinal);
      Check.Equal("GpuMemLibrary.LoadedPath, GrowableBuffer.Group, Link.ImportNext, Link.ImportNext entry, Link.Wait, MemoryPool.TryAllocate, MemoryPool.TryAllocate, PointerInfo.Buffer, PoolBlock.Info, " +
                  "RingConsumer.Wait, RingConsumer.Wait, RingProducer.Acquire, RingProducer.Acquire", string.Join(", ", returned), "what may be null");
    }

    // What a compiler warns of throws, and names the parameter.
    static void NullArguments(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule, recommended;
      device.GetGranularity(out granule, out recommended);
      UnifiedMemory<int> unified = device.AllocateUnified<int>(16);
      MemoryPool pool = device.CreatePool();
      var all = new List<object>
      {
        device.AllocateDevice(64), device.AllocatePinned<int>(16), device.CreateStream(), device.CreateEvent(), unified.BeginHostAccess(),
        unified, device.CreatePhysical(granule), instance.ReserveRange(granule), device.CreateBuffer(granule), instance.CreateGroup(),
        pool.Allocate(64), pool, instance.OpenHub(Sharing.Address("null")), instance.Connect(Sharing.Address("null")),
        new FileDescriptorHandle(0, false), instance, device, new ShareHandle(new byte[ShareHandle.Size]), "name", new Exception("inner"),
        new Action(() => { }), new Action<HostKernel>(kernel => { }),
      };
      var wrong = new List<string>();
      int calls = 0;
      foreach (Type declared in PublicTypes().Where(type => !type.IsEnum))
      {
        Type type = declared.IsGenericTypeDefinition ? declared.MakeGenericType(typeof(int)) : declared;
        object one = all.FirstOrDefault(type.IsInstanceOfType);
        foreach (MethodBase found in type.GetMethods(Own | BindingFlags.Static).Cast<MethodBase>().Concat(type.GetConstructors(Own)))
        {
          if (!found.IsStatic && !found.IsConstructor && one == null) continue;
          if (found.IsSpecialName && found.Name.StartsWith("set_")) continue;
          MethodBase method = found.IsGenericMethodDefinition ? ((MethodInfo)found).MakeGenericMethod(typeof(int)) : found;
          ParameterInfo[] parameters = method.GetParameters();
          foreach (ParameterInfo parameter in parameters)
          {
            Type kind = parameter.ParameterType;
            if (kind.IsValueType || kind.IsByRef || kind.IsPointer || parameter.GetCustomAttributes(typeof(object), false)
                .Any(attribute => attribute.GetType().Name == "AllowNullAttribute")) continue;
            object[] arguments = Array.ConvertAll(parameters, given => given == parameter || given.ParameterType.IsByRef ? null
                : given.ParameterType.IsValueType ? Activator.CreateInstance(given.ParameterType)
                : given.ParameterType.IsArray ? Array.CreateInstance(given.ParameterType.GetElementType(), 0)
                : all.FirstOrDefault(given.ParameterType.IsInstanceOfType));
            Exception thrown = null;
            try
            {
              if (method.IsConstructor) ((ConstructorInfo)method).Invoke(arguments);
              else method.Invoke(one, arguments);
            }
            catch (TargetInvocationException problem)
            {
              thrown = problem.InnerException;
            }
            ++calls;
            var refused = thrown as ArgumentNullException;
            if (refused != null && refused.ParamName == parameter.Name) continue;
            wrong.Add(type.Name + "." + method.Name + " " + parameter.Name + ": " + (thrown == null ? "nothing" : thrown.GetType().Name));
          }
        }
      }
      foreach (IDisposable one in all.OfType<IDisposable>().Where(one => one != instance)) one.Dispose();
      Check.Equal("", string.Join("\n", wrong), "other answers");
      Check.That(calls > 40, "only " + calls + " calls");
    }

    static void Translated(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      var texts = new List<string>();
      GpuMemLog.SetFunction((level, message) => { lock (texts) texts.Add(message); }, LogLevel.Debug);
      using (GpuMemory memory = device.AllocateDevice(64, new MemoryOptions { Name = "to destroy" }))
      {
        string busy = Check.Fails(Status.Busy, () => instance.Close(CloseMode.Check)).Message;
        Check.That(busy.Contains("CloseMode.Force") && busy.Contains("to destroy") && busy.Contains("; dispose it, or close"), busy);
        string size = Check.Fails(Status.InvalidArgument, () => instance.Fill(memory, 1, 3)).Message;
        Check.That(size.StartsWith("valueSize is 3"), size);
        texts.Add(busy);
        texts.Add(instance.Report());
        texts.Add(Check.Fails(Status.InvalidArgument, () => instance.Close((CloseMode)9)).ToString().Split('\n')[0]);
        texts.Add(Check.Fails(Status.InvalidArgument, () => device.GetCapability((Capability)12345)).Message);
        string kind = Check.Fails(Status.InvalidArgument, () => device.Create((MemoryKind)99, 1)).Message;
        Check.That(kind.Contains("MemoryKind value"), kind);
        string node = Check.Fails(Status.InvalidArgument, () => device.AllocateDevice(1, new MemoryOptions { NumaNode = 1 })).Message;
        Check.Equal("NumaNode is set without MemoryFlags.NumaNode", node, "message");
        texts.Add(Check.Fails(Status.InvalidArgument, () => instance.Copy(
            memory, memory, new CopyOptions { Direction = (Direction)99 })).Message);
      }
      GpuMemLog.SetFunction(null, LogLevel.Error);
      if (Scope.IsHost)
      {
        var small = new InstanceOptions { Backend = Backend.Host, Host = new HostOptions { DeviceBytes = 1 } };
        string said = Check.Fails(Status.InvalidArgument, () => GpuInstance.Open(small)).Message;
        // The variable of the environment keeps its name.
        Check.That(said.Contains("DeviceBytes (GPUMEM_HOST_DEVICE_BYTES)"), said);
        var lists = new Dictionary<string, HostOptions>
        {
          { "option Quarantine (", new HostOptions { Quarantine = -5 } }, { "option Peers (", new HostOptions { Peers = "0>9" } },
          { "option Masked (", new HostOptions { Masked = "nonsense" } }, { "option Strict (", new HostOptions { Strict = (Toggle)9 } },
        };
        foreach (KeyValuePair<string, HostOptions> one in lists)
        {
          var wrong = new InstanceOptions { Backend = Backend.Host, Host = one.Value };
          string refused = Check.Fails(Status.InvalidArgument, () => GpuInstance.Open(wrong)).Message;
          Check.That(refused.Contains(one.Key), refused);
        }
      }
      foreach (Status status in StatusInfo.All()) texts.Add(StatusInfo.Of(status).Cause + StatusInfo.Of(status).Remedy);
      foreach (Capability capability in GpuDevice.Capabilities())
      {
        bool pair = capability == Capability.PeerAccess || capability == Capability.PeerAtomics;
        texts.Add(device.GetCapability(capability, pair ? instance.GetDevice(1) : null).Reason);
      }
      var foreign = new Regex(@"GPUMEM_|gpumem_\w");
      lock (texts) Check.Equal("", string.Join("\n", texts.Where(text => foreign.IsMatch(text))), "words of C");
    }

    static void GivenTexts(Scope scope)
    {
      string[] names =
      {
        "numa_node", "device_count", "NULL", "GPUMEM_ERROR_BUSY", "gpumem_buffer_create()", "a destroyed castle", "destroy the king",
        "desc->x", "quote\"q", "count is 0; pass 3",
      };
      GpuInstance instance = scope.Open(new InstanceOptions { Name = "lock_mode" });
      GpuDevice device = instance.GetDevice(0);
      var logged = new List<string>();
      foreach (string name in names)
      {
        using (GpuMemory memory = device.AllocateDevice(4096, new MemoryOptions { Name = name }))
        using (device.CreateStream(0, "stream of " + name))
        {
          string report = instance.Report();
          Check.That(report.Contains(" " + name + ": 4096 bytes") && report.Contains("stream of " + name), report);
          string snapshot = instance.Snapshot();
          Check.That(snapshot.Contains("\"name\":\"" + name.Replace("\"", "\\\"") + "\"") &&
                     snapshot.Contains("\"name\":\"lock_mode\""), snapshot);
          GpuMemLog.SetFunction((level, message) => { lock (logged) logged.Add(message); }, LogLevel.Debug);
          string busy = Check.Fails(Status.Busy, () => instance.Close(CloseMode.Check)).Message;
          GpuMemLog.SetFunction(null, LogLevel.Error);
          Check.That(busy.Contains(" " + name + ": 4096 bytes") && busy.Contains("; dispose them, or close with CloseMode.Force: "), busy);
          lock (logged) Check.That(logged.Any(message => message.Contains(" " + name + ": 4096 bytes")), string.Join("\n", logged));
        }
      }
      string folder = Path.Combine(Path.GetTempPath(), "gpumem-" + Guid.NewGuid().ToString("N") + " numa_node was destroyed");
      string path = Path.Combine(folder, "GPUMEM_ERROR_BUSY");
      string own = Path.Combine(Path.GetTempPath(), "gpumem-" + Guid.NewGuid().ToString("N"));
      Directory.CreateDirectory(own);
      try
      {
        string open = Path.Combine(own, "numa_node");
        using (instance.OpenHub(new HubOptions { Path = open, Name = "device_count" }))
        using (instance.Connect(open))
        {
          string report = instance.Report();
          Check.That(report.Contains("hub device_count: " + open) && report.Contains("link: " + open), report);
        }
      }
      finally
      {
        Directory.Delete(own, true);
      }
      string nobody = Check.Fails(Status.NotFound, () => instance.Connect(path)).Message;
      Check.That(nobody.Contains("\"" + path + "\""), nobody);
      string none = Check.Throws<GpuMemException>(() => instance.OpenHub(path)).Message;
      Check.That(none.Contains("\"" + folder + "\""), none);
      using (GrowableBuffer buffer = device.CreateBuffer(4096))
      {
        string asleep = Check.Throws<GpuMemException>(
            () => buffer.Sleep(new SleepOptions { Content = Content.File, Directory = folder })).Message;
        Check.That(asleep.Contains("\"" + folder + "\""), asleep);
      }
    }

    // What is the same in C#: variables of the environment, entry points that an option can mask, and words of the system.
    // Then what no program in C# gets, because the binding itself fills sizes of structs and takes results.
    static readonly Regex same = new Regex(
        @"\b(?:GPUMEM_(?:BACKEND|PIN_BUDGET|TRANSFER_\w+|HOST_\w+)|launch_host_function|write_value|wait_value|copy_2d|fill_2d|peer_access|" +
        @"(?:memfd|pthread|epoll|posix)_\w+|boot_id|max_map_count|max_user_watches|limit_in_bytes|usage_in_bytes|(?:total_)?inactive_file|" +
        @"gpumem_copy_pieces|GPUMEM_ERROR_\?|" +
        @"(?:\w+->)?struct_size|out_\w+|sizeof\(gpumem_\w+\)|GPUMEM_ERROR_INIT)");

    static void SourceTexts(Scope scope)
    {
      string file = Environment.GetEnvironmentVariable("GPUMEM_TEST_TEXTS");
      string[] texts = File.ReadAllLines(file);
      Check.That(texts.Length > 1000, "only " + texts.Length + " texts");
      MethodInfo translate = typeof(GpuInstance).Assembly.GetType("GpuMem.Words").GetMethod(
          "Translate", BindingFlags.Static | BindingFlags.NonPublic);
      var foreign = new Regex(
          @"\b(?:GPUMEM|gpumem)_\w+|\bNULL\b|[Dd]estroy\w*|->|\bsizeof\b|\b[a-z]+(?:_\w+)+|(?<!%)\b[a-z]+(?=\[%)");
      var parameters = new HashSet<string>(
          PublicTypes().SelectMany(type => type.GetMethods()).SelectMany(method => method.GetParameters()).Select(one => one.Name));
      var left = new SortedSet<string>(StringComparer.Ordinal);
      foreach (string text in texts)
      {
        if (text == "destroyed") continue;  // it comes behind "was"
        string translated = (string)translate.Invoke(
            null, new object[] { text.Replace("destroy %s", "destroy it").Replace("\\\"", "\"") });
        foreach (Match match in foreign.Matches(same.Replace(translated, "")))
        {
          if (!parameters.Contains(match.Value)) left.Add(match.Value + " in: " + text);
        }
      }
      Check.Equal("", string.Join("\n", left), "words of C, which Text.cs does not know");
    }

    static void FunctionNames(Scope scope)
    {
      Type names = typeof(GpuInstance).Assembly.GetType("GpuMem.Names");
      var known = (Dictionary<string, string>)names.GetField("OfC", BindingFlags.Static | BindingFlags.NonPublic).GetValue(null);
      var functions = typeof(Native).GetMethods(BindingFlags.Public | BindingFlags.Static | BindingFlags.DeclaredOnly)
          .Select(method => method.Name).Where(name => name.StartsWith("gpumem_")).ToArray();
      Check.That(functions.Length > 60, "only " + functions.Length + " functions");
      Check.Equal("", string.Join(", ", functions.Where(name => !known.ContainsKey(name))), "without a name: add it to capi/generate.py");
      var members = new HashSet<string>(PublicTypes().SelectMany(
          type => type.GetMembers().Select(member => type.Name.Split('`')[0] + "." + member.Name + (member is MethodInfo ? "()" : ""))));
      Check.Equal("", string.Join(", ", known.Where(pair => pair.Value.Contains(".") && !members.Contains(pair.Value))
          .Select(pair => pair.Value)), "no such member");
    }

    static void EmptyArrays(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      using (PinnedMemory<int> none = device.AllocatePinned<int>(0, new MemoryOptions { Name = "none" }))
      using (GpuMemory registered = device.Register(new double[0]))
      using (GpuMemory memory = device.AllocateDevice(64))
      using (GpuStream stream = device.CreateStream())
      {
        Check.Equal(1L, instance.Stats.LiveCount, "the library knows only the other memory");
        Check.Equal(0L, none.Length + none.Size + registered.Size + none.Range.Size, "sizes");
        Check.Equal(0, none.ToArray().Length, "array");
        Check.Equal("none", none.Allocation.Info.Name, "name");
        Check.Equal(MemoryKind.Registered, registered.QueryInfo().Kind, "kind");
        none.CopyFrom(new int[0]);
        registered.CopyTo(new byte[0]);
        instance.Copy(none, registered);
        instance.Copy(memory.Slice(64, 0), none);
        instance.Fill(none, 1);
        instance.Copy2D(none, 0, registered, 0, 0, 0);
        instance.CopyRegions(new CopyRegion(none, memory, 0), new CopyRegion(memory, registered, 0));
        stream.Copy(registered, none);
        stream.Copy(new int[0], none);
        stream.Fill(none, 1);
        stream.CopyRegions(new CopyRegion(none, memory, 0));
        stream.Synchronize();
        Check.Throws<ArgumentOutOfRangeException>(() => GC.KeepAlive(none[0]));
        Check.Throws<ArgumentOutOfRangeException>(() => none.Slice(0, 1));
        Check.Throws<ArgumentException>(() => instance.Copy(memory, none));
        using (Stream view = none.OpenView())
        {
          Check.Equal(-1, view.ReadByte(), "byte");
          Check.Throws<NotSupportedException>(() => view.WriteByte(1));
        }
        Check.Equal("PinnedMemory<Int32> { Length = 0, Device = 0, Name = \"none\" }", none.ToString(), "text");
      }
      // An empty array does not keep the instance open, and may be forgotten.
      long before = Check.FinalizedObjects();
      Check.Elsewhere(() => { for (int i = 0; i < 10; ++i) device.AllocatePinned<long>(0); });
      Check.Equal(before, Check.FinalizedObjects(), "finalized objects");
    }

    static void RoomOnDevice(Scope scope)
    {
      Scope.HostOnly();
      // Many small ones, because Mono's collector may keep one or the other.
      const int Part = 1 << 20;
      GpuInstance instance = scope.Open(new InstanceOptions { Host = new HostOptions { DeviceBytes = 32 * Part } });
      GpuDevice device = instance.GetDevice(0);
      long before = Check.FinalizedObjects();
      Check.Elsewhere(() => { for (int i = 0; i < 100; ++i) device.AllocateDevice(Part); });
      Check.That(GpuMemDiagnostics.FinalizedObjects - before >= 68, "too few were freed");
      // Memory that is in use stays, and then the device is full.
      var pointers = new List<IntPtr>();
      Check.Elsewhere(() => Check.Fails(Status.OutOfDeviceMemory, () =>
      {
        while (true) pointers.Add(device.Allocate(MemoryKind.Device, Part));
      }));
      Check.That(pointers.Count >= 16, "only " + pointers.Count + " pieces");
      foreach (IntPtr pointer in pointers) instance.Free(pointer);
      Check.Eventually(() => instance.Stats.LiveObjects == 0, "the finalizers");
    }

    static void RoomInBudget(Scope scope)
    {
      GpuInstance instance = scope.Open(new InstanceOptions { PinBudget = 1 << 20 });
      GpuDevice device = instance.GetDevice(0);
      Check.Elsewhere(() => { for (int i = 0; i < 50; ++i) device.AllocatePinned<byte>(50000); });
      Check.Elsewhere(() => { for (int i = 0; i < 50; ++i) device.Register(new byte[50000]); });
      Check.Fails(Status.LimitExceeded, () => device.AllocatePinned<byte>(2 << 20));
      Check.Eventually(() => instance.Stats.LiveObjects == 0, "the finalizers");
    }

    static void Pressure(Scope scope)
    {
      Scope.HostOnly();
      if (Type.GetType("Mono.Runtime") != null) throw new TestSkipped("Mono's collector does not heed memory pressure");
      GpuInstance instance = scope.Open(new InstanceOptions());
      GpuDevice device = instance.GetDevice(0);
      long before = Check.FinalizedObjects();
      // Far too few objects for a collection, if only their own size counted.
      Check.Elsewhere(() =>
      {
        for (int i = 0; i < 200 && GpuMemDiagnostics.FinalizedObjects == before; ++i)
        {
          device.AllocateUnified<byte>(64 << 20);
          Thread.Sleep(1);
        }
      });
      Check.That(GpuMemDiagnostics.FinalizedObjects != before, "the collector did not run");
      Check.Eventually(() => instance.Stats.LiveObjects == 0, "the finalizers");
    }

    static void NoPressure(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open(new InstanceOptions { Host = new HostOptions { DeviceBytes = 1L << 40 } });
      GpuDevice device = instance.GetDevice(0);
      long granule, recommended;
      device.GetGranularity(out granule, out recommended);
      int before = GC.CollectionCount(0);
      for (int i = 0; i < 20; ++i)
      {
        device.AllocateDevice(64 << 20).Dispose();
        using (PhysicalMemory block = device.CreatePhysical(32 * granule))
        using (AddressRange range = device.Instance.ReserveRange(32 * granule))
        {
          range.Map(0, block);
        }
        device.CreateBuffer(32 * granule).Dispose();
      }
      // The objects themselves may fill the youngest generation once.
      Check.That(GC.CollectionCount(0) - before <= 1, GC.CollectionCount(0) - before + " collections");
    }

    static void Spans(Scope scope)
    {
#if NETCOREAPP3_0_OR_GREATER
      GpuDevice device = scope.Device();
      using (PinnedMemory<int> memory = device.AllocatePinned<int>(1000))
      {
        Span<int> all = memory.GetSpan();
        all.Fill(7);
        Check.Equal(7, memory[999], "element");
        Check.Equal(10, memory.GetSpan(990, 10).Length, "length");
        Check.Throws<ArgumentOutOfRangeException>(() => memory.GetSpan(991, 10));
        Memory<int> part = memory.Memory.Slice(10, 5);
        part.Span.Slice(0, 1).Fill(8);
        Check.Equal(8, memory[10], "element");
        var handle = part.Pin();
        memory.Dispose();
        Check.Equal(1L, device.Instance.GetStats(MemoryKind.Pinned).LiveCount, "live while pinned");
        Check.Equal(8, *(int*)handle.Pointer, "element through the pin");
        handle.Dispose();
        Check.Equal(0L, device.Instance.GetStats(MemoryKind.Pinned).LiveCount, "live after the pin");
        Check.Throws<ObjectDisposedException>(() => memory.GetSpan());
        Check.Throws<ObjectDisposedException>(() => memory.GetSpan(0, 0));
        Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(memory.Memory.Length));
        Check.Throws<ObjectDisposedException>(() => memory.Pin());
      }
      PinnedMemory<int> samples = device.AllocatePinned<int>(1000);
      Span<int> span = samples.GetSpan();
      for (int i = 0; i < span.Length; ++i) span[i] = i;
      // Without it the memory could be gone before the loop ends.
      GC.KeepAlive(samples);
      samples.Dispose();
      using (PinnedMemory<int> none = device.AllocatePinned<int>(0)) Check.That(none.GetSpan().IsEmpty, "not empty");
#else
      throw new TestSkipped("this runtime has no System.Memory");
#endif
    }
  }
}
