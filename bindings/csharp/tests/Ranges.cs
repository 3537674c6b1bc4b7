// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests physical memory, ranges of addresses and what is mapped in them.

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace GpuMem.Tests
{
  static unsafe class Ranges
  {
    internal static void Run()
    {
      Tap.Run("ranges: the example of the guide", Guide);
      Tap.Run("ranges: blocks are mapped one behind the other", Mapping);
      Tap.Run("ranges: a range grows in place", Growing);
      Tap.Run("ranges: each processor has the access that was set", AccessOfProcessors);
      Tap.Run("ranges: memory of the host", OnHost);
      Tap.Run("ranges: mapping refuses", MapRefused);
      Tap.Run("ranges: unmapping and access refuse", PartsRefused);
      Tap.Run("ranges: options arrive", Options);
      Tap.Run("ranges: bounds", Bounds);
      Tap.Run("ranges: a block lives while it is mapped", BlockLives);
      Tap.Run("ranges: one block at two addresses", Aliases);
      Tap.Run("ranges: kept for work in a stream, and unmapped by dispose", Kept);
      Tap.Run("ranges: work that the binding does not know delays dispose", UnknownWork);
      Tap.Run("ranges: forgotten ones are unmapped and freed", Forgotten);
      Tap.Run("ranges: dispose after the instance was closed by force", AfterForce);
      Tap.Run("ranges: every step may fail", FailingSteps);
      Tap.Run("physical memory: information and granularity", Physical);
      Tap.Run("physical memory: options arrive", PhysicalOptionsArrive);
      Tap.Run("physical memory: creating refuses", CreateRefused);
      Tap.Run("physical memory: a descriptor is exported and imported", Descriptors);
      Tap.Run("physical memory: descriptors that are refused", DescriptorsRefused);
      Tap.Run("physical memory: another process imports it", OtherProcess);
      Tap.Run("physical memory: fabric handles", FabricHandles);
      Tap.Run("physical memory: fabric handles are values", FabricValues);
      Tap.Run("file descriptors are closed once", Closing);
    }

    static long Granule(GpuDevice device)
    {
      long minimum, recommended;
      device.GetGranularity(out minimum, out recommended);
      return minimum;
    }

    static void Guide(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long unit, best;
      device.GetGranularity(out unit, out best);
      // Addresses for 64 GiB, and memory for the first piece.
      using (AddressRange range = instance.ReserveRange(64L << 30))
      {
        using (PhysicalMemory block = device.CreatePhysical(unit)) range.Map(0, block);
        range.SetAccess(0, unit, device, Access.ReadWrite);
        range.CopyFrom(new[] { 1, 2, 3 });
        // The range grows behind what is there, which does not move.
        using (PhysicalMemory block = device.CreatePhysical(2 * unit)) range.Map(unit, block);
        range.SetAccess(unit, 2 * unit, device, Access.ReadWrite);
        instance.Copy(range.Slice(unit, 12), range.Slice(0, 12));
        var found = new int[3];
        range.CopyTo(unit, found);
        Check.Equal("1,2,3", string.Join(",", found), "content");
        range.CopyTo(found = new int[2]);
        Check.Equal("1,2", string.Join(",", found), "content of the start");
      }
      if (!device.GetCapability(Capability.VmmHandlePosixFd).IsAvailable) return;
      var options = new PhysicalOptions { HandleTypes = HandleTypes.PosixFd };
      using (PhysicalMemory block = device.CreatePhysical(unit, options))
      using (FileDescriptorHandle descriptor = block.ExportFileDescriptor())
      using (PhysicalMemory imported = device.ImportPhysical(descriptor, unit, options))
      {
        Check.Equal(block.Size, imported.Size, "size");
      }
    }

    static void Mapping(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(8 * granule, new RangeOptions { Name = "table" }))
      using (PhysicalMemory one = device.CreatePhysical(granule))
      using (PhysicalMemory two = device.CreatePhysical(2 * granule))
      {
        Check.Equal("AddressRange { Size = " + 8 * granule + ", Name = \"table\" }", range.ToString(), "text");
        range.Map(granule, one, two);
        range.SetAccess(granule, 3 * granule, device, Access.ReadWrite);
        AddressRangeInfo info = range.Info;
        Check.Equal(range.Pointer, info.Base, "base");
        Check.Equal(8 * granule, info.Size, "size");
        Check.Equal(3 * granule, info.MappedSize, "mapped");
        Check.Equal(2L, info.MappingCount, "mappings");
        Check.Equal("table", info.Name, "name");
        Check.That(info.BufferId != 0 && info.Granularity > 0 && granule % info.Granularity == 0, info.ToString());
        // Across the seam.
        int[] numbers = Enumerable.Range(0, 1000).ToArray();
        range.CopyFrom(2 * granule - 2000, numbers);
        var back = new int[1000];
        range.CopyTo(2 * granule - 2000, back);
        Check.That(back.SequenceEqual(numbers), "content");
        MappingInfo mapping = range.GetMapping(2 * granule + 5);
        Check.Equal((long)range.Pointer + 2 * granule, (long)mapping.Base, "base of the mapping");
        Check.Equal(2 * granule, mapping.Size, "size of the mapping");
        Check.Equal(two.BlockId, mapping.BlockId, "block");
        Check.Equal((MemoryLocation)device, mapping.Location, "location");
        Check.That(mapping.IsIn(range), "it is in another range");
        using (AddressRange other = instance.ReserveRange(granule)) Check.That(!mapping.IsIn(other), "it is in every range");
        PointerInfo at = instance.GetPointerInfo(mapping.Base);
        Check.That(at.Kind == MemoryKind.Virtual && at.IsOfInstance, at.ToString());
        using (GrowableBuffer buffer = device.CreateBuffer(1)) Check.That(!at.IsIn(buffer), "a range is no buffer");
        Check.Fails(Status.InvalidState, () => range.GetMapping(0));
        range.Unmap(granule, 3 * granule);
        Check.Equal(0L, range.Info.MappedSize, "mapped after all");
      }
    }

    static void Growing(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(1L << 36))
      {
        IntPtr first = range.Pointer;
        for (int i = 0; i < 4; ++i)
        {
          // The mapping keeps the block alive.
          using (PhysicalMemory block = device.CreatePhysical(granule)) range.Map(i * granule, block);
          range.SetAccess(i * granule, granule, device, Access.ReadWrite);
          range.CopyFrom(i * granule, new[] { i });
        }
        var found = new int[1];
        for (int i = 0; i < 4; ++i)
        {
          range.CopyTo(i * granule, found);
          Check.Equal(i, found[0], "number");
        }
        Check.Equal(first, range.Pointer, "address");
      }
    }

    static void AccessOfProcessors(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0), peer = instance.GetDevice(1);
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(2 * granule))
      using (PhysicalMemory block = device.CreatePhysical(granule))
      {
        range.Map(0, block, block);
        Check.Equal(Access.None, device.GetAccess(range.Pointer), "a fresh mapping");
        Check.Fails(Status.NoAccess, () => instance.Fill(range.Slice(0, 64), 1));
        range.SetAccess(0, 2 * granule, new ProcessorAccess(device, Access.ReadWrite), new ProcessorAccess(peer, Access.Read));
        Check.Equal(Access.ReadWrite, device.GetAccess(range.Pointer), "its device");
        Check.Equal(Access.Read, peer.GetAccess((IntPtr)((long)range.Pointer + 2 * granule - 1)), "a peer");
        range.SetAccess(granule, granule, peer, Access.None);
        Check.Equal(Access.None, peer.GetAccess((IntPtr)((long)range.Pointer + granule)), "a peer without access");
        Check.Equal(Access.Read, peer.GetAccess(range.Pointer), "the other mapping");
        Check.Equal(Access.ReadWrite, device.GetAccess((IntPtr)((long)range.Pointer + granule)), "who was not named");
        instance.Fill(range.Slice(0, 64), 1);
        Check.Fails(Status.Unsupported, () => range.SetAccess(0, granule, MemoryLocation.Host, Access.Read));
      }
      Check.Equal("ProcessorAccess { Processor = MemoryLocation { Kind = Host, Id = -1 }, Access = Read }",
                  new ProcessorAccess(MemoryLocation.Host, Access.Read).ToString(), "text");
    }

    static void OnHost(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      if (!device.GetCapability(Capability.VmmHost).IsAvailable) throw new TestSkipped("this device maps no memory of the host");
      var options = new PhysicalOptions { Location = MemoryLocation.Host };
      long minimum, recommended;
      device.GetGranularity(out minimum, out recommended, options);
      // A block of the device and one of the host, side by side.
      long unit = Math.Max(minimum, Granule(device));
      using (AddressRange range = instance.ReserveRange(2 * unit))
      using (PhysicalMemory there = device.CreatePhysical(unit))
      using (PhysicalMemory here = device.CreatePhysical(unit, options))
      {
        Check.Equal(MemoryLocation.Host, here.Info.Location, "location");
        range.Map(0, there, here);
        range.SetAccess(0, 2 * unit, device, Access.ReadWrite);
        Check.Equal(Access.None, instance.GetHostAccess((IntPtr)((long)range.Pointer + unit)), "the CPU at first");
        range.SetAccess(unit, unit, MemoryLocation.Host, Access.ReadWrite);
        Check.Equal(Access.ReadWrite, instance.GetHostAccess((IntPtr)((long)range.Pointer + unit)), "the CPU");
        instance.Fill(range.Slice(0, 2 * unit), 3);
        Check.Equal(3, ((byte*)range.Pointer)[unit + 7], "byte by the CPU");
        ((byte*)range.Pointer)[unit] = 4;
        var found = new byte[1];
        range.CopyTo(unit, found);
        Check.Equal(4, found[0], "byte by a copy");
      }
    }

    static void MapRefused(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(4 * granule))
      using (PhysicalMemory block = device.CreatePhysical(granule))
      using (PhysicalMemory stranger = scope.Open().GetDevice(0).CreatePhysical(granule))
      {
        range.Map(granule, block);
        range.SetAccess(granule, granule, device, Access.ReadWrite);
        Check.Fails(Status.AlreadyExists, () => range.Map(granule, block));
        // All or none: the first would fit.
        Check.Fails(Status.AlreadyExists, () => range.Map(0, block, block));
        foreach (Action call in new Action[]
        {
          () => range.Map(1, block), () => range.Map(4 * granule, block), () => range.Map(3 * granule, block, block),
          () => range.Map(2 * granule), () => range.Map(2 * granule, stranger),
        })
        {
          Check.Fails(Status.InvalidArgument, call);
        }
        Check.Equal(1L, range.Info.MappingCount, "mappings");
        Check.Throws<ArgumentOutOfRangeException>(() => range.Map(-1, block));
        Check.Throws<ArgumentNullException>(() => range.Map(0, (PhysicalMemory)null));
        Check.Throws<ArgumentNullException>(() => range.Map(0, (PhysicalMemory[])null));
        var gone = device.CreatePhysical(granule);
        gone.Dispose();
        Check.Throws<ObjectDisposedException>(() => range.Map(0, gone));
      }
    }

    static void PartsRefused(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      GpuDevice stranger = scope.Open().GetDevice(0);
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(4 * granule))
      using (PhysicalMemory block = device.CreatePhysical(2 * granule))
      {
        range.Map(0, block);
        foreach (Action call in new Action[]
        {
          () => range.Unmap(0, granule), () => range.Unmap(0, 0), () => range.Unmap(0, 8 * granule),
          () => range.SetAccess(0, granule, device, Access.Read), () => range.SetAccess(0, 2 * granule),
          () => range.SetAccess(0, 2 * granule, device, (Access)9),
          () => range.SetAccess(0, 2 * granule, default(MemoryLocation), Access.Read),
          () => range.SetAccess(0, 2 * granule, new MemoryLocation(Location.Device, 77), Access.Read),
          () => range.SetAccess(0, 2 * granule, new ProcessorAccess(device, Access.Read), new ProcessorAccess(device, Access.None)),
        })
        {
          Check.Fails(Status.InvalidArgument, call);
        }
        Check.Fails(Status.InvalidState, () => range.Unmap(2 * granule, granule));
        Check.Fails(Status.InvalidState, () => range.Unmap(0, 4 * granule));
        Check.Fails(Status.InvalidState, () => range.SetAccess(0, 4 * granule, device, Access.Read));
        Check.Throws<ArgumentException>(() => range.SetAccess(0, 2 * granule, stranger, Access.Read));
        Check.Throws<ArgumentNullException>(() => range.SetAccess(0, 2 * granule, null));
        Check.Throws<ArgumentOutOfRangeException>(() => range.SetAccess(-1, 2 * granule, device, Access.Read));
        Check.Throws<ArgumentOutOfRangeException>(() => range.Unmap(0, -1));
        using (GpuMemory memory = device.AllocateDevice(64))
        {
          Check.Fails(Status.WrongKind, () => instance.GetMapping(memory.DevicePointer));
          Check.Fails(Status.WrongKind, () => instance.RetainPhysical(memory.DevicePointer));
        }
        Check.Fails(Status.InvalidState, () => instance.RetainPhysical((IntPtr)((long)range.Pointer + 2 * granule)));
        Check.Fails(Status.InvalidArgument, () => instance.GetMapping(IntPtr.Zero));
        Check.Equal(2 * granule, range.Info.MappedSize, "mapped");
      }
    }

    static void Options(Scope scope)
    {
      GpuInstance instance = scope.Open();
      long granule = Granule(instance.GetDevice(0));
      IntPtr address;
      using (AddressRange range = instance.ReserveRange(granule, new RangeOptions { Alignment = 16 * granule }))
      {
        Check.Equal(0L, (long)range.Pointer % (16 * granule), "alignment");
        address = range.Pointer;
        var occupied = new RangeOptions { Address = address, Flags = RangeFlags.Fixed };
        Check.Fails(Status.AlreadyExists, () => instance.ReserveRange(granule, occupied));
      }
      using (AddressRange range = instance.ReserveRange(granule, new RangeOptions { Address = address, Flags = RangeFlags.Fixed }))
      {
        Check.Equal(address, range.Pointer, "address");
      }
      foreach (Action call in new Action[]
      {
        () => instance.ReserveRange(0), () => instance.ReserveRange(granule + 1),
        () => instance.ReserveRange(granule, new RangeOptions { Alignment = 3 }),
        () => instance.ReserveRange(granule, new RangeOptions { Flags = RangeFlags.Fixed }),
        () => instance.ReserveRange(granule, new RangeOptions { Address = (IntPtr)((long)address + 1) }),
        () => instance.ReserveRange(granule, new RangeOptions { Flags = (RangeFlags)(1UL << 40) }),
        () => instance.ReserveRange(granule, new RangeOptions { Name = new string('n', 64) }),
      })
      {
        Check.Fails(Status.InvalidArgument, call);
      }
      Check.Throws<ArgumentOutOfRangeException>(() => instance.ReserveRange(-granule));
      Check.Throws<ArgumentOutOfRangeException>(() => instance.ReserveRange(granule, new RangeOptions { Alignment = -1 }));
    }

    static void Bounds(Scope scope)
    {
      GpuInstance instance = scope.Open();
      long granule = Granule(instance.GetDevice(0));
      using (AddressRange range = instance.ReserveRange(granule))
      {
        Check.Equal((long)range.Pointer + 5, (long)range.Slice(5, 6).Pointer, "slice");
        foreach (Action call in new Action[]
        {
          () => range.Slice(-1, 1), () => range.Slice(granule, 1), () => range.Slice(0, granule + 1), () => range.GetMapping(granule),
          () => range.GetMapping(-1), () => range.CopyFrom(granule - 3, new int[1]), () => range.CopyTo(granule - 3, new int[1]),
        })
        {
          Check.Throws<ArgumentOutOfRangeException>(call);
        }
        Check.Throws<ArgumentNullException>(() => range.CopyFrom<int>(0, null));
      }
    }

    static void BlockLives(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(granule))
      {
        PhysicalMemory block = device.CreatePhysical(granule);
        ulong id = block.BlockId;
        range.Map(0, block);
        block.Dispose();
        range.SetAccess(0, granule, device, Access.ReadWrite);
        range.CopyFrom(0, new byte[] { 1, 2, 3 });
        PhysicalMemory again = instance.RetainPhysical((IntPtr)((long)range.Pointer + granule - 1));
        Check.Equal(id, again.BlockId, "block");
        Check.Equal(granule, again.Size, "size");
        Check.Equal(device, again.Device, "device");
        range.Unmap(0, granule);
        // Now the handle keeps it, with its bytes.
        range.Map(0, again);
        range.SetAccess(0, granule, device, Access.Read);
        again.Dispose();
        var found = new byte[3];
        range.CopyTo(0, found);
        Check.Equal("1,2,3", string.Join(",", found), "bytes");
      }
    }

    static void Aliases(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(2 * granule))
      using (PhysicalMemory block = device.CreatePhysical(granule))
      using (GpuStream stream = device.CreateStream())
      {
        range.Map(0, block, block);
        range.SetAccess(0, granule, device, Access.ReadWrite);
        range.SetAccess(granule, granule, device, Access.Read);
        stream.Fill(range.Slice(0, 64), 9);
        stream.Synchronize();
        var found = new byte[64];
        range.CopyTo(granule, found);
        Check.That(found.All(value => value == 9), "bytes by the other address");
        Check.Fails(Status.NoAccess, () => instance.Fill(range.Slice(granule, 64), 1));
        // Regions take ranges too.
        instance.CopyRegions(new CopyRegion(range.Slice(128, 64), range.Slice(granule, 64), 8, 8));
        range.CopyTo(128, found);
        Check.That(found.All(value => value == 9), "bytes of the region");
      }
    }

    static void Kept(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      AddressRange range = instance.ReserveRange(4 * granule);
      IntPtr pointer = range.Pointer;
      using (PhysicalMemory block = device.CreatePhysical(granule))
      {
        range.Map(0, block);
        range.Map(2 * granule, block, block);
        range.SetAccess(0, granule, device, Access.ReadWrite);
      }
      using (GpuStream stream = device.CreateStream())
      using (PinnedMemory<byte> target = device.AllocatePinned<byte>(64))
      {
        using (var gate = new Behaviour.Gate(stream))
        {
          stream.Fill(range.Slice(0, 64), 5);
          stream.Copy(target, range.Slice(0, 64));
          range.Dispose();
          range.Dispose();
          Check.Throws<ObjectDisposedException>(() => stream.Fill(range.Slice(0, 64), 1));
          Check.Equal(pointer, instance.GetMapping(pointer).Base, "mapped while the work waits");
        }
        Check.Equal(5, target[63], "byte");
        Check.Fails(Status.NotFound, () => instance.GetMapping(pointer));
      }
      Check.Equal("AddressRange { Size = " + 4 * granule + ", IsDisposed = True }", range.ToString(), "text");
    }

    static void UnknownWork(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      AddressRange range = instance.ReserveRange(granule);
      using (PhysicalMemory block = device.CreatePhysical(granule)) range.Map(0, block);
      range.SetAccess(0, granule, device, Access.ReadWrite);
      using (GpuStream stream = device.CreateStream())
      {
        using (new Behaviour.Gate(stream))
        {
          stream.Fill(new GpuRange(range.Pointer, 64), 1);
          Check.Fails(Status.Busy, () => range.Unmap(0, granule));
          range.Dispose();
          Check.Equal(1, GpuMemDiagnostics.WaitingObjects, "waiting objects");
        }
        GpuMemDiagnostics.ReleaseWaiting();
        Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects after the work");
      }
    }

    static void Forgotten(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long before = Check.FinalizedObjects(), failures = GpuMemDiagnostics.ReleaseFailures;
      Check.Elsewhere(() => Forget(instance, device));
      Check.Eventually(() => GpuMemDiagnostics.FinalizedObjects - before == 20, "the finalizers");
      Check.Equal(failures, GpuMemDiagnostics.ReleaseFailures, "failures to free");
      Check.Equal("nothing lives", instance.Report().TrimEnd(), "report");
    }

    [MethodImpl(MethodImplOptions.NoInlining)]
    static void Forget(GpuInstance instance, GpuDevice device)
    {
      long granule = Granule(device);
      for (int i = 0; i < 10; ++i) instance.ReserveRange(2 * granule).Map(granule, device.CreatePhysical(granule));
    }

    static void AfterForce(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      AddressRange range = instance.ReserveRange(granule);
      PhysicalMemory block = device.CreatePhysical(granule);
      range.Map(0, block);
      Check.Fails(Status.Busy, () => instance.Close(CloseMode.Check));
      instance.Close(CloseMode.Force);
      long failures = GpuMemDiagnostics.ReleaseFailures;
      range.Dispose();
      block.Dispose();
      Check.Equal(0, GpuMemDiagnostics.WaitingObjects, "waiting objects");
      Check.Equal(failures, GpuMemDiagnostics.ReleaseFailures, "failures to free");
    }

    static void FailingSteps(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      int failures = 0;
      bool done = false;
      for (long step = 1; !done; ++step)
      {
        HostSimulation.FailStep(instance, step);
        try
        {
          using (AddressRange range = instance.ReserveRange(2 * granule))
          using (PhysicalMemory block = device.CreatePhysical(granule))
          {
            range.Map(0, block, block);
            range.SetAccess(0, 2 * granule, device, Access.ReadWrite);
            range.Unmap(0, granule);
          }
          done = true;
        }
        catch (GpuMemException problem)
        {
          ++failures;
          Check.That(problem.Message.Length != 0, "no message");
        }
        HostSimulation.FailStep(instance, 0);
        GpuMemDiagnostics.ReleaseWaiting();
        Check.Equal("nothing lives", instance.Report().TrimEnd(), "report after step " + step);
      }
      Check.That(failures >= 4, "only " + failures + " steps failed");
    }

    static void Physical(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(1);
      long minimum, recommended;
      device.GetGranularity(out minimum, out recommended);
      Check.That(minimum > 0 && (minimum & (minimum - 1)) == 0 && recommended % minimum == 0, minimum + ", " + recommended);
      Check.Equal(minimum, device.GetCapability(Capability.VmmGranularityMin).Value, "capability");
      using (PhysicalMemory block = device.CreatePhysical(3 * minimum, new PhysicalOptions { Name = "block" }))
      using (PhysicalMemory other = device.CreatePhysical(minimum, new PhysicalOptions { Location = device }))
      {
        PhysicalInfo info = block.Info;
        Check.Equal((MemoryLocation)device, info.Location, "location");
        Check.Equal(1, info.DeviceOrdinal, "device");
        Check.Equal(3 * minimum, info.Size, "size");
        Check.Equal(minimum, info.Granularity, "granularity");
        Check.Equal("block", info.Name, "name");
        Check.Equal(HandleTypes.None, info.HandleTypes, "handle types");
        Check.That(!info.Imported && info.BlockId != other.BlockId, info.ToString());
        Check.Equal(!Scope.IsHost, info.NativeHandle != 0, "native handle");
        Check.Equal(info.BlockId, block.BlockId, "block");
        Check.Equal(device, block.Device, "its device");
        Check.That(instance.Report().Contains("block"), instance.Report());
        string text = "PhysicalMemory { Size = " + 3 * minimum + ", Location = MemoryLocation { Kind = Device, Id = 1 }, Name = \"block\"";
        Check.Equal(text + " }", block.ToString(), "text");
        block.Dispose();
        block.Dispose();
        Check.Equal(text + ", IsDisposed = True }", block.ToString(), "text after dispose");
      }
    }

    static void PhysicalOptionsArrive(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open(new InstanceOptions
      {
        Host = new HostOptions { VmmGranularity = 1 << 16, Compressible = Toggle.Off, NumaNodes = 2 },
      });
      GpuDevice device = instance.GetDevice(0);
      Check.Equal(1L << 16, Granule(device), "granularity");
      Check.Fails(Status.Unsupported, () => device.CreatePhysical(1 << 16, new PhysicalOptions { Require = PhysicalFlags.Compressible }));
      using (PhysicalMemory block = device.CreatePhysical(1 << 16, new PhysicalOptions { Prefer = PhysicalFlags.Compressible }))
      {
        Check.Equal(PhysicalFlags.None, block.Info.GrantedFlags, "granted");
      }
      var node = new PhysicalOptions { Location = MemoryLocation.HostNode(1), HandleTypes = HandleTypes.PosixFd };
      using (PhysicalMemory block = device.CreatePhysical(1 << 16, node))
      {
        Check.Equal(MemoryLocation.HostNode(1), block.Info.Location, "node");
        Check.Equal(HandleTypes.PosixFd, block.Info.HandleTypes, "handle types");
      }
      GpuDevice other = scope.Open().GetDevice(0);
      using (PhysicalMemory block = other.CreatePhysical(Granule(other), new PhysicalOptions { Require = PhysicalFlags.Compressible }))
      {
        Check.Equal(PhysicalFlags.Compressible, block.Info.GrantedFlags, "granted by default");
      }
    }

    static void CreateRefused(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device), unused;
      foreach (Action call in new Action[]
      {
        () => device.CreatePhysical(0), () => device.CreatePhysical(granule + 1),
        () => device.CreatePhysical(granule, new PhysicalOptions { Location = MemoryLocation.HostNode(77) }),
        () => device.CreatePhysical(granule, new PhysicalOptions { Location = MemoryLocation.CurrentHostNode }),
        () => device.CreatePhysical(granule, new PhysicalOptions { Location = MemoryLocation.Host, HandleTypes = HandleTypes.PosixFd }),
        () => device.CreatePhysical(granule, new PhysicalOptions { Require = (PhysicalFlags)(1UL << 40) }),
        () => device.CreatePhysical(granule, new PhysicalOptions { HandleTypes = (HandleTypes)(1UL << 40) }),
        () => device.GetGranularity(out unused, out unused, new PhysicalOptions { Prefer = (PhysicalFlags)(1UL << 40) }),
      })
      {
        Check.Fails(Status.InvalidArgument, call);
      }
      Check.Throws<ArgumentOutOfRangeException>(() => device.CreatePhysical(-granule));
      Check.Throws<ArgumentException>(
          () => device.CreatePhysical(granule, new PhysicalOptions { Location = instance.GetDevice(1) }));
    }

    static readonly PhysicalOptions shared = new PhysicalOptions { HandleTypes = HandleTypes.PosixFd };

    static void Descriptors(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      if (!device.GetCapability(Capability.VmmHandlePosixFd).IsAvailable) throw new TestSkipped("this device shares no descriptors");
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(3 * granule))
      using (PhysicalMemory block = device.CreatePhysical(granule, shared))
      using (FileDescriptorHandle descriptor = block.ExportFileDescriptor())
      using (PhysicalMemory one = device.ImportPhysical(descriptor, granule, shared))
      using (PhysicalMemory two = device.ImportPhysical(descriptor, granule, new PhysicalOptions
      {
        HandleTypes = HandleTypes.PosixFd, Name = "again",
      }))
      {
        Check.That(descriptor.Descriptor >= 0 && !descriptor.IsInvalid, descriptor.ToString());
        Check.That(one.Info.Imported && one.Size == granule, one.Info.ToString());
        Check.Equal("again", two.Info.Name, "name");
        Check.Equal((MemoryLocation)device, one.Info.Location, "location");
        range.Map(0, block, one, two);
        range.SetAccess(0, 3 * granule, device, Access.ReadWrite);
        range.CopyFrom(0, new byte[] { 7 });
        var found = new byte[1];
        range.CopyTo(granule, found);
        Check.Equal(7, found[0], "byte of the first import");
        found[0] = 0;
        range.CopyTo(2 * granule, found);
        Check.Equal(7, found[0], "byte of the second import");
      }
    }

    static void DescriptorsRefused(Scope scope)
    {
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      if (!device.GetCapability(Capability.VmmHandlePosixFd).IsAvailable) throw new TestSkipped("this device shares no descriptors");
      long granule = Granule(device);
      using (PhysicalMemory closed = device.CreatePhysical(granule))
      using (PhysicalMemory block = device.CreatePhysical(granule, shared))
      using (FileStream file = File.OpenRead("/dev/null"))
      {
        Check.Fails(Status.Unsupported, () => closed.ExportFileDescriptor());
        FileDescriptorHandle descriptor = block.ExportFileDescriptor();
        Check.Fails(Status.InvalidArgument, () => device.ImportPhysical(descriptor, 0, shared));
        Check.Fails(Status.InvalidArgument, () => device.ImportPhysical(descriptor, granule + 1, shared));
        var with = new PhysicalOptions { HandleTypes = HandleTypes.PosixFd, Require = PhysicalFlags.Compressible };
        Check.Fails(Status.InvalidArgument, () => device.ImportPhysical(descriptor, granule, with));
        Check.Throws<ArgumentOutOfRangeException>(() => device.ImportPhysical(descriptor, -1, shared));
        descriptor.Dispose();
        Check.Throws<ObjectDisposedException>(() => device.ImportPhysical(descriptor, granule, shared));
        Check.Throws<ArgumentNullException>(() => device.ImportPhysical(null, granule, shared));
        // Numbers of no file, and of a file that is no memory.
        using (var none = new FileDescriptorHandle(987654, false))
        using (var wrong = new FileDescriptorHandle(Libc.open("/dev/null", 0)))
        {
          Check.Fails(Status.InvalidArgument, () => device.ImportPhysical(none, granule, shared));
          Check.Fails(Status.InvalidArgument, () => device.ImportPhysical(wrong, granule, shared));
        }
      }
    }

    static void OtherProcess(Scope scope)
    {
      Scope.HostOnly();
      GpuInstance instance = scope.Open();
      GpuDevice device = instance.GetDevice(0);
      long granule = Granule(device);
      using (AddressRange range = instance.ReserveRange(granule))
      using (PhysicalMemory block = device.CreatePhysical(granule, shared))
      using (FileDescriptorHandle descriptor = block.ExportFileDescriptor())
      {
        range.Map(0, block);
        range.SetAccess(0, granule, device, Access.ReadWrite);
        range.CopyFrom(0, new[] { 1234, 0 });
        string file = "/proc/" + Process.GetCurrentProcess().Id + "/fd/" + descriptor.Descriptor;
        Check.Equal("1234", Child.Run("child import " + file + " " + granule).Trim(), "what the other process read");
        var found = new int[2];
        range.CopyTo(0, found);
        Check.Equal(5678, found[1], "what the other process wrote");
      }
    }

    /// <summary>The other process.</summary>
    internal static int Import(string file, long size)
    {
      using (GpuInstance instance = GpuInstance.Open(Backend.Host))
      using (var descriptor = new FileDescriptorHandle(Libc.open(file, 2)))
      using (PhysicalMemory block = instance.GetDevice(0).ImportPhysical(descriptor, size, shared))
      using (AddressRange range = instance.ReserveRange(size))
      {
        range.Map(0, block);
        range.SetAccess(0, size, instance.GetDevice(0), Access.ReadWrite);
        var found = new int[1];
        range.CopyTo(0, found);
        Console.WriteLine(found[0]);
        range.CopyFrom(4, new[] { 5678 });
      }
      return 0;
    }

    static void FabricHandles(Scope scope)
    {
      GpuDevice device = scope.Device();
      long granule = Granule(device);
      using (PhysicalMemory block = device.CreatePhysical(granule))
      {
        Check.Fails(Status.Unsupported, () => block.ExportFabricHandle());
      }
      // The driver may know the fabric, but not let this process use it.
      Status refusal = Scope.IsHost ? Status.Unsupported : Status.PermissionDenied;
      Check.Fails(refusal, () => device.CreatePhysical(granule, ofFabric));
      Check.Fails(refusal, () => device.ImportPhysical(new FabricHandle(new byte[64]), granule, ofFabric));
      Check.Throws<ArgumentOutOfRangeException>(() => device.ImportPhysical(default(FabricHandle), -1, ofFabric));
      if (Scope.IsHost) return;
      // The fake driver grants it to another process.
      Check.Equal("shared", Child.Run("child fabric", 0, list => list["FAKE_CUDA_IMEX"] = "1").Trim(), "what was imported");
    }

    static readonly PhysicalOptions ofFabric = new PhysicalOptions { HandleTypes = HandleTypes.Fabric, Name = "shared" };

    /// <summary>The process that may use the fabric.</summary>
    internal static int Fabric()
    {
      using (GpuInstance instance = GpuInstance.Open(Scope.Backend))
      {
        GpuDevice device = instance.GetDevice(0);
        long granule = Granule(device);
        using (PhysicalMemory block = device.CreatePhysical(granule, ofFabric))
        {
          // By its bytes, as another node would receive it.
          var handle = new FabricHandle(block.ExportFabricHandle().ToArray());
          Check.That(handle != default(FabricHandle), "the handle is empty");
          using (PhysicalMemory imported = device.ImportPhysical(handle, granule, ofFabric))
          using (AddressRange one = instance.ReserveRange(granule), two = instance.ReserveRange(granule))
          {
            Check.That(imported.Info.Imported && imported.Size == granule, imported.Info.ToString());
            one.Map(0, block);
            one.SetAccess(0, granule, device, Access.ReadWrite);
            two.Map(0, imported);
            two.SetAccess(0, granule, device, Access.ReadWrite);
            one.CopyFrom(0, new[] { 4321 });
            var found = new int[1];
            two.CopyTo(0, found);
            Check.Equal(4321, found[0], "number through the other handle");
            Console.WriteLine(imported.Info.Name);
          }
        }
        Check.Fails(Status.InvalidArgument, () => device.ImportPhysical(default(FabricHandle), granule, ofFabric));
        Check.Fails(Status.InvalidArgument, () => device.ImportPhysical(default(FabricHandle), granule, new PhysicalOptions
        {
          HandleTypes = HandleTypes.Fabric, Prefer = PhysicalFlags.Compressible,
        }));
      }
      return 0;
    }

    static void FabricValues(Scope scope)
    {
      byte[] bytes = Enumerable.Range(1, FabricHandle.Size).Select(number => (byte)number).ToArray();
      var one = new FabricHandle(bytes);
      Check.That(one.ToArray().SequenceEqual(bytes), "bytes");
      bytes[63] = 0;
      var other = new FabricHandle(bytes);
      Check.Equal((byte)64, one.ToArray()[63], "last byte of a handle whose array was changed");
      Check.That(one != other && !one.Equals(other) && !one.Equals((object)other) && !one.Equals("text"), "different bytes are equal");
      FabricHandle same = one;
      Check.That(same == one && same.Equals((object)one) && same.GetHashCode() == one.GetHashCode(), "equal bytes are different");
      Check.That(default(FabricHandle).ToArray().All(value => value == 0), "the default");
      Check.Throws<ArgumentException>(() => new FabricHandle(new byte[63]));
      Check.Throws<ArgumentNullException>(() => new FabricHandle(null));
    }

    static void Closing(Scope scope)
    {
      int number = Libc.open("/dev/null", 0);
      Func<bool> isOpen = () => Libc.fcntl(number, 1) >= 0;
      using (var borrowed = new FileDescriptorHandle(number, false)) Check.Equal(number, borrowed.Descriptor, "number");
      Check.That(isOpen(), "a borrowed descriptor was closed");
      var owned = new FileDescriptorHandle(number);
      Check.Equal("FileDescriptorHandle { Descriptor = " + number + " }", owned.ToString(), "text");
      owned.Dispose();
      owned.Dispose();
      Check.That(!isOpen(), "it is open");
      Check.Throws<ObjectDisposedException>(() => GC.KeepAlive(owned.Descriptor));
      Check.Equal("FileDescriptorHandle { IsClosed = True }", owned.ToString(), "text after dispose");
      // A forgotten one is closed too.
      number = Libc.open("/dev/null", 0);
      Check.Elsewhere(() => GC.KeepAlive(new FileDescriptorHandle(number)));
      Check.Eventually(() => !isOpen(), "the finalizer");
    }
  }
}
