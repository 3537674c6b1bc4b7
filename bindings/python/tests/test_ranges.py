# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Physical memory, ranges of addresses, and what is mapped in them."""

import contextlib
import copy
import gc
import os
import pickle
import threading

import gpumem
from gpumem import Access, HandleTypes, Kind, Location, _calls, host

from .support import BACKEND, Case, needs_numpy, numpy, on_cuda, on_host, python


def file_of(descriptor):
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def open_files():
    """The files behind all descriptors of the process."""
    files = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, as that of the list is
            files.append(file_of(int(name)))
    return files


class RangeCase(Case):
    def setUp(self):
        super().setUp()
        self.unit = self.device.physical_granularity().minimum

    def range(self, units=8, **options):
        return self.instance.reserve(units * self.unit, **options)

    def mapped(self, range, offset=0, location="device", access="readwrite", **options):
        """Maps a block at an offset, which its device may use, or the CPU and the device if it is memory of the host."""
        with self.device.physical(self.unit, location, **options) as block:
            range.map(offset, block)
        processors = {self.device: access, **({} if location == "device" else {"host": access})}
        range.set_access(offset, self.unit, processors)
        return range.part(offset, self.unit)


class PhysicalTest(RangeCase):
    def test_granularity(self):
        for location in ("device", self.device, "host", ("host_numa", 0)):
            found = self.device.physical_granularity(location)
            self.assertEqual((found.minimum & (found.minimum - 1), found.recommended % found.minimum), (0, 0))
            self.assertGreaterEqual(found.minimum, 4096)
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.physical_granularity("host_numa_current")

    def test_info(self):
        with self.device.physical(2 * self.unit, name="mine") as block:
            info = block.info()
            self.assertEqual((info.location, info.location_id, info.device_ordinal, info.imported, info.size, info.name,
                              info.handle_types), (Location.DEVICE, 0, 0, False, 2 * self.unit, "mine", 0))
            self.assertEqual((block.size, info.granularity), (2 * self.unit, self.unit))
            self.assertTrue(info.block_id)
            self.assertEqual(info.native_handle != 0, BACKEND == "cuda")
            self.assertEqual(repr(block), f"<gpumem.Physical 'mine': {2 * self.unit} bytes, device 0>")
            self.assertIn("'mine'", self.instance.report())
        self.assertTrue(block.closed)
        self.assertTrue(repr(block).endswith(", closed>"))
        block.close()
        with self.assertRaises(gpumem.StaleHandle):
            block.info()

    def test_locations(self):
        other = self.instance.device(1)
        with other.physical(self.unit, other) as there, self.device.physical(self.unit, "host") as host_block, \
                self.device.physical(self.unit, ("host_numa", 0)) as node:
            self.assertEqual((there.info().location, there.info().location_id), (Location.DEVICE, 1))
            self.assertEqual((host_block.info().location, node.info().location), (Location.HOST, Location.HOST_NUMA))
            self.assertNotEqual(host_block.info().block_id, node.info().block_id)
        for wrong in (lambda: self.device.physical(self.unit, other),
                      lambda: self.device.physical(self.unit, "host_numa_current"),
                      lambda: self.device.physical(self.unit, ("host_numa", 1000)),
                      lambda: self.device.physical(self.unit + 1), lambda: self.device.physical(0),
                      lambda: self.device.physical(-1), lambda: self.device.physical(self.unit, require=1 << 40),
                      lambda: self.device.physical(self.unit, "host", handle_types="posix_fd"),
                      lambda: self.device.physical(self.unit, handle_types="banana")):
            with self.assertRaises(gpumem.InvalidArgument):
                wrong()
        with self.assertRaises(gpumem.OutOfDeviceMemory):
            self.device.physical(1 << 60)

    def test_properties(self):
        for name in ("compressible", "rdma"):
            possible = bool(self.device.capability(f"vmm_{name}"))
            with self.device.physical(self.unit, prefer=name) as block:
                self.assertEqual(bool(block.info().granted_flags), possible)
            if possible:
                with self.device.physical(self.unit, require=name) as block:
                    self.assertEqual(str(block.info().granted_flags), name)
            else:
                with self.assertRaises(gpumem.Unsupported):
                    self.device.physical(self.unit, require=name)

    def test_forgotten(self):
        self.device.physical(self.unit)
        gc.collect()
        self.assertEqual(self.instance.report(), "nothing lives")

    def test_descriptors(self):
        with self.device.physical(self.unit, handle_types=HandleTypes.POSIX_FD) as block, self.range() as range:
            fd = block.export_fd()
            self.assertFalse(os.get_inheritable(fd))
            imported = self.device.import_physical(fd, self.unit)
            again = gpumem.Physical.import_fd(self.device, fd, self.unit, name="again")
            os.close(fd)
            self.assertEqual((block.info().imported, block.info().handle_types), (False, HandleTypes.POSIX_FD))
            self.assertEqual((imported.info().imported, imported.size, again.info().name), (True, self.unit, "again"))
            range.map(0, [block, imported, again])
            range.set_access(0, 3 * self.unit, {self.device: "readwrite"})
            range.part(0, 16).copy_from(b"through the file")
            for unit in (1, 2):
                back = bytearray(16)
                range.part(unit * self.unit, 16).copy_to(back)
                self.assertEqual(back, b"through the file")
            imported.close()
            again.close()
        with self.device.physical(self.unit) as block, self.assertRaises(gpumem.Unsupported):
            block.export_fd()
        with open(os.devnull, encoding="ascii") as other:
            for wrong in (-1, fd, other.fileno()):
                with self.assertRaises(gpumem.InvalidArgument):
                    self.device.import_physical(wrong, self.unit)

    def test_no_fabric(self):
        if self.device.capability("vmm_handle_fabric"):
            self.skipTest("this device is on a fabric")
        with self.device.physical(self.unit) as block:
            with self.assertRaises(gpumem.Unsupported):
                block.export_fabric()
        for call in (lambda: self.device.physical(self.unit, handle_types="fabric"),
                     lambda: self.device.import_fabric(bytes(64), self.unit)):
            with self.assertRaises((gpumem.Unsupported, gpumem.PermissionDenied)):
                call()
        for wrong in (bytes(63), bytes(65), b"", bytearray(128)):
            with self.assertRaisesRegex(gpumem.InvalidArgument, "a fabric handle has 64"):
                self.device.import_fabric(wrong, self.unit)
        for wrong in (64, None, "x" * 64):
            with self.assertRaises(TypeError):
                self.device.import_fabric(wrong, self.unit)

    @on_cuda
    def test_fabric(self):
        _, out, _ = python("""
import gpumem
with gpumem.Instance("cuda") as instance:
    device = instance.device(0)
    unit = device.physical_granularity(handle_types="fabric").minimum
    with device.physical(unit, handle_types="fabric") as block, instance.reserve(2 * unit) as range:
        handle = block.export_fabric()
        assert type(handle) is bytes and len(handle) == 64
        with device.import_fabric(bytearray(handle), unit, name="there") as imported, \\
                gpumem.Physical.import_fabric(device, handle, unit) as again:
            assert imported.info().imported and imported.info().name == "there" and again.size == unit
            range.map(0, [block, imported])
        range.set_access(0, 2 * unit, {device: "readwrite"})
        range.part(0, 16).copy_from(b"over the fabric.")
        back = bytearray(16)
        range.part(unit, 16).copy_to(back)
        print(back.decode())
    try:
        device.import_fabric(bytes(64), unit)
    except gpumem.InvalidArgument as problem:
        print(problem)
""", FAKE_CUDA_IMEX="1")
        lines = out.splitlines()
        self.assertEqual((len(lines), lines[0]), (2, "over the fabric."))
        self.assertIn("Physical.export_fabric()", lines[1])

    def test_no_descriptor_is_left(self):
        # Only those of the block's own file count: others of the process come and go.
        before = open_files()
        with self.device.physical(self.unit, handle_types="posix_fd") as block:
            live = open_files()
            descriptor = block.export_fd()
            file = file_of(descriptor)
            self.assertEqual(open_files().count(file), live.count(file) + 1)
            os.close(descriptor)
            self.assertEqual(open_files().count(file), live.count(file))
        self.assertEqual(open_files().count(file), before.count(file))


class RangeTest(RangeCase):
    def test_info_and_close(self):
        range = self.range(4, name="mine", alignment=8 * self.unit)
        info = range.info()
        self.assertEqual((info.size, info.mapped_size, info.mapping_count, info.name), (4 * self.unit, 0, 0, "mine"))
        self.assertEqual((range.base, range.size, range.granularity, int(range)),
                         (info.base, info.size, info.granularity, info.base))
        self.assertEqual(range.base % (8 * self.unit), 0)
        self.assertEqual(repr(range), f"<gpumem.Range 'mine': {range.size} bytes at {range.base:#x}>")
        known = self.instance.pointer_info(range.base)
        self.assertEqual((known.kind, known.buffer), (Kind.VIRTUAL, None))
        with self.assertRaises(gpumem.Busy):
            self.instance.close()
        range.close()
        range.close()
        self.assertTrue(range.closed)
        self.assertTrue(repr(range).endswith(", closed>"))
        with self.assertRaises(gpumem.StaleHandle):
            range.info()

    def test_wrong(self):
        for wrong in (lambda: self.instance.reserve(0), lambda: self.instance.reserve(self.unit + 1),
                      lambda: self.range(alignment=3), lambda: self.range(flags="fixed"),
                      lambda: self.range(flags=1 << 40), lambda: self.range(flags="banana"), lambda: self.range(address=-1)):
            with self.assertRaises(gpumem.InvalidArgument):
                wrong()
        with self.assertRaises(TypeError):
            gpumem.Range(self.instance)

    def test_a_place(self):
        with self.range() as first:
            with self.assertRaises(gpumem.AlreadyExists):
                self.range(address=first.base, flags="fixed")
            place = first.base
        with self.range(address=place, flags="fixed") as second:
            self.assertEqual(second.base, place)

    def test_far_more_than_memory(self):
        with self.instance.reserve(1 << 40) as range:
            self.assertEqual(range.info().mapped_size, 0)

    def test_map_and_unmap(self):
        with self.range() as range, self.device.physical(self.unit) as one, self.device.physical(2 * self.unit) as two:
            range.map(self.unit, [one, two])
            self.assertEqual(range.info()[3:5], (3 * self.unit, 2))
            found = range.mapping(2 * self.unit + 5)
            self.assertIs(found.range, range)
            self.assertEqual(found[1:], (range.base + 2 * self.unit, 2 * self.unit, two.info().block_id, Location.DEVICE, 0))
            self.assertEqual(self.instance.mapping(range.base + self.unit).block_id, one.info().block_id)
            self.assertEqual(self.instance.pointer_access(range.base + self.unit, self.device), Access.NONE)
            for error, call in (
                    (gpumem.AlreadyExists, lambda: range.map(self.unit, one)),
                    (gpumem.AlreadyExists, lambda: range.map(0, two)),
                    (gpumem.InvalidArgument, lambda: range.map(1, one)),
                    (gpumem.InvalidArgument, lambda: range.map(8 * self.unit, one)),
                    (gpumem.InvalidArgument, lambda: range.map(0, [])),
                    (gpumem.InvalidArgument, lambda: range.map(-1, one)),
                    (gpumem.InvalidArgument, lambda: range.unmap(2 * self.unit, self.unit)),
                    (gpumem.InvalidArgument, lambda: range.unmap(self.unit, 0)),
                    (gpumem.InvalidState, lambda: range.unmap(0, 2 * self.unit)),
                    (gpumem.InvalidState, lambda: range.mapping(0)),
                    (gpumem.InvalidArgument, lambda: range.mapping(8 * self.unit)),
                    (gpumem.InvalidState, lambda: range.part(0)), (gpumem.InvalidState, lambda: range.part(0, self.unit)),
                    (gpumem.InvalidState, lambda: range.part(self.unit, 4 * self.unit)),
                    (gpumem.InvalidArgument, lambda: range.part(self.unit, 0)),
                    (TypeError, lambda: range.map(0, [range])), (TypeError, lambda: range.map(0, 5))):
                with self.assertRaises(error):
                    call()
            self.assertEqual((range.info()[3:5], sorted(range._mappings)), ((3 * self.unit, 2), [self.unit, 2 * self.unit]))
            range.unmap(self.unit, 3 * self.unit)
            self.assertEqual((range.info()[3:5], range._mappings), ((0, 0), {}))

    def test_a_closed_block(self):
        with self.range() as range:
            block = self.device.physical(self.unit)
            block.close()
            with self.assertRaises(gpumem.StaleHandle):
                range.map(0, block)
            self.assertEqual(range._mappings, {})

    def test_the_mapping_keeps_the_memory(self):
        with self.range() as range:
            part = self.mapped(range)
            self.assertEqual(self.instance.retain_physical(part).info().block_id, range.mapping().block_id)
            part.copy_from(b"still here")
            back = bytearray(10)
            part.copy_to(back, 10)
            self.assertEqual(back, b"still here")

    def test_retain(self):
        with self.range() as range, self.pinned() as pinned:
            self.mapped(range)
            with gpumem.Physical.retain(self.instance, range.base + 5) as block:
                self.assertEqual((block.device, block.size, block.info().block_id),
                                 (self.device, self.unit, range.mapping().block_id))
                range.map(self.unit, block)
            with self.assertRaises(gpumem.InvalidState):
                self.instance.retain_physical(range.base + 5 * self.unit)
            for call in (self.instance.retain_physical, self.instance.mapping):
                with self.assertRaises(gpumem.WrongKind):
                    call(pinned)
                with self.assertRaises(gpumem.NotFound):
                    call(1 << 40)

    def test_access(self):
        with self.range() as range:
            self.mapped(range)
            self.mapped(range, self.unit, location="host")
            far = range.base + self.unit

            def rights():
                return [str(self.instance.pointer_access(*where)) for where in
                        ((range.base, self.device), (far, self.device), (far,))]
            self.assertEqual(rights(), ["readwrite"] * 3)
            range.set_access(0, 2 * self.unit, {self.device: "read"})
            self.assertEqual(rights(), ["read", "read", "readwrite"])
            range.set_access(self.unit, self.unit, [("host", Access.READ), (("device", 0), Access.NONE)])
            self.assertEqual(rights(), ["read", "none", "read"])
            for error, call in (
                    (gpumem.Unsupported, lambda: range.set_access(0, self.unit, {"host": "read"})),
                    (gpumem.InvalidArgument, lambda: range.set_access(0, self.unit, {})),
                    (gpumem.InvalidArgument, lambda: range.set_access(0, 0, {self.device: "read"})),
                    (gpumem.InvalidArgument, lambda: range.set_access(0, 1, {self.device: "read"})),
                    (gpumem.InvalidArgument, lambda: range.set_access(0, self.unit, {self.device: 77})),
                    (gpumem.InvalidArgument, lambda: range.set_access(0, self.unit, {self.device: "banana"})),
                    (gpumem.InvalidArgument, lambda: range.set_access(0, self.unit, {("device", 99): "read"})),
                    (gpumem.InvalidArgument, lambda: range.set_access(0, self.unit, {"host_numa_current": "read"})),
                    (gpumem.InvalidArgument,
                     lambda: range.set_access(0, self.unit, [(self.device, "read"), (self.device, "none")])),
                    (gpumem.InvalidState, lambda: range.set_access(0, 3 * self.unit, {self.device: "read"})),
                    (TypeError, lambda: range.set_access(0, self.unit, {self.device: None}))):
                with self.assertRaises(error):
                    call()
            self.assertEqual(rights(), ["read", "none", "read"])
            with self.assertRaises(gpumem.NoAccess), self.device.stream() as stream:
                stream.fill(range.part(0, self.unit))

    def test_growth(self):
        with self.range() as range:
            old = self.mapped(range)
            old.fill(1)
            stream, release = self.held_stream()
            old.fill(2, stream=stream)
            new = self.mapped(range, self.unit)  # while work on the old part is in flight
            new.fill(3)
            release()
            whole, back = range.part(), bytearray(2 * self.unit)
            self.assertEqual((whole.size, whole.offset, whole.kind), (2 * self.unit, 0, Kind.VIRTUAL))
            whole.copy_to(back)
            self.assertEqual(back, bytes([2]) * self.unit + bytes([3]) * self.unit)
            stream.close()

    def test_two_devices_and_the_host(self):
        other = self.instance.device(1)
        with self.range() as range, other.physical(self.unit) as there:
            self.mapped(range)
            self.mapped(range, 2 * self.unit, "host")
            range.map(self.unit, there)
            range.set_access(self.unit, self.unit, {other: "readwrite"})
            self.assertEqual([range.mapping(unit * self.unit)[4:] for unit in (0, 1)],
                             [(Location.DEVICE, 0), (Location.DEVICE, 1)])
            data = os.urandom(4096)
            for unit in (0, 1, 2):
                part = range.part(unit * self.unit, 4096)
                part.copy_from(data)
                back = bytearray(4096)
                part.copy_to(back)
                self.assertEqual(back, data)
            with self.assertRaises(BufferError):
                range.part().__dlpack_device__()

    def test_nothing_can_be_copied_or_pickled(self):
        with self.range() as range, self.device.physical(self.unit) as block:
            for thing in (range, block, self.mapped(range), self.instance.host_access(range.base)):
                for act in (copy.copy, copy.deepcopy, pickle.dumps):
                    message = rf"a gpumem\.{type(thing).__name__} cannot be .*; use the object"
                    with self.assertRaisesRegex(TypeError, message):
                        act(thing)

    def test_close_unmaps(self):
        range = self.range()
        for unit in (0, 1, 5):
            self.mapped(range, unit * self.unit)
        range.close()
        self.assertEqual(self.instance.report(), "nothing lives")

    @on_host
    def test_a_close_that_fails_in_the_middle(self):
        """A part of what was unmapped stays closed."""
        range = self.range()
        parts = [self.mapped(range, unit * self.unit, "host") for unit in (0, 2)]
        stream, release = self.held_stream()
        stream.fill(range.base + 2 * self.unit, 1, self.unit)  # by its plain address
        with self.assertRaises(gpumem.Busy):
            range.close()
        self.assertEqual([part.closed for part in parts], [True, False])
        with self.assertRaises(gpumem.StaleHandle):
            parts[0].buffer()
        release()
        range.close()
        stream.close()

    def test_forgotten(self):
        range = self.range()
        part = self.mapped(range)
        del range
        gc.collect()
        part.fill(1)  # which keeps the range
        del part
        gc.collect()
        self.assertEqual(self.instance.report(), "nothing lives")

    def test_forgotten_inside_a_host_function(self):
        kept = [self.range()]
        self.mapped(kept[0])
        with self.device.stream() as stream:
            stream.launch_host_function(kept.clear)
            stream.synchronize()
        gc.collect()
        self.device.event().close()
        self.assertEqual((self.instance.report(), len(_calls.leftovers)), ("nothing lives", 0))

    def test_an_exception_of_the_block_stays(self):
        with self.assertRaises(ZeroDivisionError):
            with self.range() as range:
                view = self.mapped(range, location="host").buffer()
                raise ZeroDivisionError
        self.assertFalse(range.closed)
        del view
        range.close()

    def test_an_instance_that_is_closed_by_force(self):
        instance = gpumem.Instance(BACKEND)
        device = instance.device(0)
        range, block = instance.reserve(self.unit), device.physical(self.unit)
        range.map(0, block)
        instance.close(force=True)
        for thing in (range, block):
            thing.close()
            self.assertTrue(thing.closed)

    @on_host
    def test_failing_steps(self):
        step, failures = 0, 0
        with self.range() as range, self.device.physical(self.unit) as block:
            pass  # names that are bound even if the first step fails
        while True:
            step += 1
            host.fail_step(self.instance, step)
            try:
                with self.range() as range, self.device.physical(self.unit, handle_types="posix_fd") as block:
                    range.map(0, [block, block])
                    range.set_access(0, 2 * self.unit, {self.device: "readwrite"})
                    os.close(block.export_fd())
                break
            except gpumem.Error:
                failures += 1
            finally:
                host.fail_step(self.instance, 0)
            if not range.closed:  # the step that failed may be one of its end
                range.close()
            block.close()
            gc.collect()
            self.assertEqual(self.instance.report(), "nothing lives")
            self.assertLess(step, 1000)
        self.assertGreater(failures, 3)


class PartTest(RangeCase):
    def test_the_cpu_and_memory_of_the_host(self):
        with self.range() as range:
            part = self.mapped(range, location="host")
            self.assertEqual((part.host_pointer, part.device_pointer, part.size), (range.base, range.base, self.unit))
            view = part.view("u4", 8)
            view[3] = 77
            self.assertEqual(view[3], 77)
            self.assertEqual(part.buffer()[12:16].cast("I")[0], 77)
            self.assertRegex(repr(part), f"^<gpumem.Part: bytes 0 to {self.unit - 1} of <gpumem.Range: .*>>$")
            self.assertIn("in virtual memory", repr(view))
            with self.assertRaises(gpumem.WrongKind):
                view.free()
            del view

    def test_no_access_of_the_cpu(self):
        with self.range() as range:
            for part in (self.mapped(range), self.mapped(range, self.unit, "host")):
                if part.offset:
                    range.set_access(self.unit, self.unit, {"host": "none"})
                self.assertIsNone(part.host_pointer)
                with self.assertRaisesRegex(BufferError, "no access to this part"):
                    part.buffer()
            range.set_access(self.unit, self.unit, {"host": "read"})
            with self.assertRaises(TypeError):
                part.buffer()[0] = 1
            self.assertTrue(part.view().readonly)
            range.set_access(self.unit, self.unit, {"host": "readwrite"})
            part.buffer()[0] = 1

    def test_a_view_keeps_its_mapping(self):
        with self.range() as range:
            part = self.mapped(range, location="host")
            self.mapped(range, self.unit, "host")
            view = part.buffer()
            for call in (lambda: range.unmap(0, self.unit), lambda: range.unmap(0, 2 * self.unit), range.close,
                         lambda: range.set_access(0, self.unit, {"host": "read"}),
                         lambda: range.set_access(0, self.unit, {"host": "none"})):
                with self.assertRaisesRegex(BufferError, "views of it are alive"):
                    call()
                self.assertFalse(part.closed)
            view[0] = 1
            range.set_access(0, self.unit, {self.instance.device(1): "read"})  # more access, and none taken away
            range.unmap(self.unit, self.unit)  # the other mapping
            del view
            range.unmap(0, self.unit)
            self.assertTrue(part.closed)
            self.assertIn("closed", repr(part))
            for call in (part.info, part.buffer, part.view, lambda: part.fill(0), lambda: self.instance.copy(part, bytes(8)),
                         lambda: self.instance.copy_regions([gpumem.CopyRegion(part, bytes(8))])):
                with self.assertRaises(gpumem.StaleHandle):
                    call()

    def test_a_stream_keeps_its_mapping(self):
        with self.range() as range:
            part = self.mapped(range)
            self.mapped(range, self.unit)
            stream, release = self.held_stream()
            part.fill(1, stream=stream)
            for call in (lambda: range.unmap(0, self.unit), range.close,
                         lambda: range.set_access(0, self.unit, {self.device: "none"})):
                with self.assertRaises(gpumem.Busy):
                    call()
            range.unmap(self.unit, self.unit)
            del part
            release()
            range.unmap(0, self.unit)
            stream.close()

    def test_regions(self):
        with self.range() as range:
            self.mapped(range, location="host")
            self.mapped(range, self.unit, "host")
            part = range.part(self.unit - 8)
            self.instance.copy_regions([gpumem.CopyRegion(part, b"0123456789abcdef", 4, 2, source_row_pitch=8,
                                                          destination_offset=4)])
            self.assertEqual(bytes(part.buffer()[4:12]), b"012389ab")

    def test_another_thread_unmaps(self):
        with self.range() as range:
            part = self.mapped(range)
            thread = threading.Thread(target=lambda: range.unmap(0, self.unit))
            thread.start()
            thread.join()
            with self.assertRaises(gpumem.StaleHandle):
                part.fill(1)

    @needs_numpy
    def test_numpy(self):
        with self.range() as range:
            part = self.mapped(range, location="host")
            array = part.numpy("f4", (4, 4))
            array[:] = 2.5
            self.assertEqual(numpy.from_dlpack(part.view("f4", 16)).sum(), 40)
            with self.assertRaises(BufferError):
                range.unmap(0, self.unit)
            with self.assertRaises(gpumem.WrongKind):
                array.base.free()
            del array

    @on_cuda
    def test_other_libraries(self):
        with self.range() as range:
            part, at_host = self.mapped(range), self.mapped(range, self.unit, "host")
            self.assertEqual((part.__dlpack_device__(), at_host.__dlpack_device__()), ((2, 0), (3, 0)))
            self.assertEqual(part.view("f4", 4).__cuda_array_interface__["data"], (range.base, False))

    @on_host
    def test_other_libraries_on_the_host(self):
        with self.range() as range:
            self.assertEqual(self.mapped(range, 0, "host").__dlpack_device__(), (1, 0))
            with self.assertRaises(BufferError):
                self.mapped(range, self.unit).__dlpack_device__()
