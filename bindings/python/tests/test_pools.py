# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Pools and their blocks."""

import gc
import sys
import threading
import time
import types
import unittest
import weakref

import gpumem
from gpumem import Kind, PoolFlags, _pool, host
from gpumem import _library as c

from .support import BACKEND, Case, needs_numpy, on_cuda, on_host, python

KINDS = ("device", "pinned", "managed", "pageable")


def contents(block, size=None):
    found = bytearray(block.size if size is None else size)
    block.copy_to(found, len(found))
    return bytes(found)


class PoolTest(Case):
    def test_a_pool(self):
        for kind in KINDS:
            with self.device.pool(kind, limit=64 << 20, name="of tests") as pool:
                info = pool.info()
                self.assertEqual((info.kind, info.name, info.limit, info.live_count, info.device_ordinal, info.flags),
                                 (Kind[kind.upper()], "of tests", 64 << 20, 0, 0, PoolFlags(0)))
                self.assertEqual((pool.kind, pool.device, pool.closed), (info.kind, self.device, False))
                self.assertEqual(repr(pool), f"<gpumem.Pool 'of tests': {kind}, 0 blocks in 0 bytes, device 0>")
                block = pool.alloc(17)
                self.assertEqual(block._start % (16 if kind in ("pinned", "pageable") else 256), 0)
                block.copy_from(b"through the block")
                self.assertEqual(contents(block), b"through the block")
                block.fill(7)
                self.assertEqual(contents(block), b"\7" * 17)
                self.assertEqual((block.size, block.nbytes, block.kind, block.pool, block.stream, block.closed),
                                 (17, 17, Kind.POOL, pool, None, False))
                self.assertEqual(repr(block), f"<gpumem.PoolBlock: {kind}, 17 bytes, device 0>")
                found = self.instance.block_info(block._start + 3)
                self.assertEqual((found.pool, found.base), (pool, block._start))
                self.assertGreaterEqual(found.usable_size, 17)
                self.assertEqual((block.info().granted_size, block.name), (found.usable_size, "of tests"))
                self.assertEqual(block.host_pointer, None if kind == "device" else block._start)
                if kind != "pageable":
                    self.assertTrue(block.device_pointer)
                    known = self.instance.pointer_info(block)
                    self.assertEqual((known.kind, known.buffer), (Kind.POOL, None))
                info = pool.info()
                self.assertEqual((info.live_count, info.live_bytes, info.total_count), (1, found.usable_size, 1))
                block.free()
                block.free()
                self.assertTrue(block.closed)
                self.assertEqual(repr(block), f"<gpumem.PoolBlock: {kind}, 17 bytes, device 0, freed>")
                for call in (block.info, block.view, lambda: block.fill(1), lambda: contents(block)):
                    with self.assertRaises(gpumem.StaleHandle):
                        call()
                with self.assertRaises(gpumem.NotFound):
                    self.instance.block_info(block._start)
                self.assertEqual(pool.info().live_count, 0)
            self.assertTrue(pool.closed)
            self.assertEqual(repr(pool), "<gpumem.Pool 'of tests', closed>")
            pool.close()

    def test_options(self):
        for options in ({"kind": "registered"}, {"kind": 77}, {"kind": "none"}, {"flags": 1 << 40}, {"flags": "wrong"},
                        {"memory_flags": 1 << 40}, {"handle_types": 1 << 40}, {"handle_types": "fabric"}, {"numa_node": 1},
                        {"limit": 1 << 63}, {"limit": -1}, {"segment_size": 1 << 63}, {"initial_size": 2, "limit": 1},
                        {"release_threshold": 1, "low_water": 2},
                        {"name": "a\0b"}, {"name": "a" * 64}):
            with self.assertRaises(gpumem.InvalidArgument, msg=options):
                self.device.pool(**options)
        with self.device.pool(flags="allow_internal_dependencies|debug", release_threshold=1 << 20, initial_size=1 << 20,
                              segment_size=2 << 20, low_water=1 << 19) as pool:
            info = pool.info()
            self.assertEqual((info.flags, info.release_threshold, info.low_water),
                             (PoolFlags.ALLOW_INTERNAL_DEPENDENCIES | PoolFlags.DEBUG, 1 << 20, 1 << 19))
            self.assertGreaterEqual(info.reserved_bytes, 1 << 20)
            with pool.alloc(1000) as block:
                self.assertEqual(self.instance.block_info(block).requested_size, 1000)
            with self.device.pool() as probe:
                self.assertEqual((probe.capacity_for([]), probe.capacity_for(iter([4 << 20, 0]))), (0, 4 << 20))
                for wrong in ([1 << 63], [-1], [1 << 62, 1 << 62]):
                    with self.assertRaises(gpumem.InvalidArgument):
                        probe.capacity_for(wrong)
            pool.set_limit(1 << 30)
            pool.set_release_threshold(0)
            info = pool.info()
            self.assertEqual((info.limit, info.release_threshold), (1 << 30, 0))
            for call in (pool.set_limit, pool.set_release_threshold):
                with self.assertRaises(gpumem.InvalidArgument):
                    call(1 << 63)

    def test_try_alloc_takes_only_what_is_free(self):
        with self.device.pool() as pool:
            self.assertEqual(pool.try_alloc(1000), (None, gpumem.PoolAttempt(gpumem.PoolAnswer.NEEDS_MEMORY, 0)))
            pool.alloc(1000).free()
            block, attempt = pool.try_alloc(1000)
            self.assertEqual(attempt.answer, gpumem.PoolAnswer.ALLOCATED)
            with block, pool.try_alloc(0)[0] as empty:
                self.assertEqual((block.nbytes, empty.nbytes), (1000, 0))
            with pool.try_alloc(100, alignment=4096)[0] as aligned:
                self.assertEqual(int(aligned) % 4096, 0)
            reserved = pool.info().reserved_bytes
            pool.set_limit(reserved)
            self.assertEqual(pool.try_alloc(reserved + 1), (None, gpumem.PoolAttempt(gpumem.PoolAnswer.OVER_LIMIT, 0)))
            self.assertEqual(pool.info().reserved_bytes, reserved)
            for call in (lambda: pool.try_alloc(100, alignment=3), lambda: pool.try_alloc(1 << 63)):
                self.assertRaises(gpumem.InvalidArgument, call)
            self.assertRaises(TypeError, pool.try_alloc, "100")
        self.assertRaises(gpumem.StaleHandle, pool.try_alloc, 64)

    def test_alignments_and_empty_blocks(self):
        with self.device.pool() as pool, self.device.stream() as stream:
            for alignment in (0, 1, 4096, 1 << 20):
                with pool.alloc(100, alignment=alignment) as block:
                    self.assertEqual(int(block) % max(alignment, 256 if alignment == 0 else 1), 0)
            for call in (lambda: pool.alloc(100, alignment=3), lambda: pool.alloc(100, alignment=1 << 41),
                         lambda: pool.alloc(1 << 63), lambda: pool.alloc(-1)):
                with self.assertRaises(gpumem.InvalidArgument):
                    call()
            for call in (lambda: pool.alloc("8"), lambda: pool.alloc(8, "stream"), lambda: pool.free_batch([5]),
                         lambda: pool.alloc(8).free(stream="theirs"), gpumem.PoolBlock):
                with self.assertRaises((TypeError, gpumem.InvalidArgument)):
                    call()
            empty = pool.alloc(0, stream)
            self.assertEqual((empty.size, empty.info().granted_size, contents(empty), len(empty.view())), (0, 0, b"", 0))
            empty.fill(1, stream=stream)
            empty.free()
            self.assertEqual(pool.info().live_count, 0)

    def test_what_it_keeps(self):
        with self.device.pool() as pool:
            blocks = [pool.alloc(10_000) for _ in range(100)]
            classes = pool.classes()
            self.assertEqual(sum(one.live_count for one in classes), 100)
            sizes = [one.block_size for one in classes]
            self.assertEqual(sizes, sorted(set(sizes)))
            cut = sum(one.cut_count for one in classes)
            self.assertGreaterEqual(cut, 100)
            for block in blocks:
                block.free()
            full = pool.info()
            self.assertEqual(full.cut_count, cut)
            self.assertGreaterEqual(full.reserved_bytes, 1_000_000)
            self.assertEqual(pool.trim(), full.reserved_bytes)
            self.assertEqual(pool.info().reserved_bytes, 0)
            self.assertEqual(pool.info().peak_reserved_bytes, full.reserved_bytes)
            pool.reset_peaks()
            self.assertEqual(pool.info().peak_reserved_bytes, 0)

    def test_wrong_pools_and_streams(self):
        other = gpumem.Instance(BACKEND)
        theirs = other.device(0).stream()
        pool = self.device.pool()
        block = pool.alloc(64)
        for call in (lambda: pool.alloc(64, theirs), lambda: block.free(theirs), lambda: block.record_use(theirs)):
            with self.assertRaises(gpumem.InvalidArgument):
                call()
        with self.assertRaises(TypeError):
            block.record_use(None)
        theirs.close()
        other.close()
        closed = self.device.stream()
        closed.close()
        for call in (lambda: pool.alloc(64, closed), lambda: block.free(closed)):
            with self.assertRaises(gpumem.StaleHandle):
                call()
        self.assertFalse(block.closed)
        block.free()
        pool.close()
        for call in (lambda: pool.alloc(64), lambda: pool.alloc(64, alignment=64), lambda: pool.alloc(64, 0),
                     lambda: pool.alloc_batch([64]), lambda: pool.malloc(64), lambda: pool.free(64), pool.info, pool.classes,
                     pool.trim, pool.reset_peaks, lambda: pool.set_callback(print)):
            with self.assertRaises(gpumem.StaleHandle):
                call()

    def test_addresses(self):
        with self.device.pool() as pool, self.device.stream() as stream:
            at = pool.malloc(1000, stream)
            stream.fill(at, 1, 1000)
            with self.assertRaises(gpumem.InvalidArgument):
                pool.free(at + 1, stream)
            pool.free(at, stream)
            with self.assertRaises(gpumem.NotFound):
                pool.free(at, stream)
            at = pool.malloc(1000, alignment=4096)
            self.assertEqual(at % 4096, 0)
            self.instance.free_block(at)
            with self.assertRaises(gpumem.NotFound):
                self.instance.free_block(at)
            at = pool.malloc(1000, stream.native_stream)
            self.instance.free_block(at, stream.native_stream)
            pool.free(pool.malloc(1000), stream.native_stream)
            for size, error in ((1 << 50, MemoryError), (-1, gpumem.InvalidArgument), (1 << 64, gpumem.InvalidArgument)):
                with self.assertRaises(error):
                    pool.malloc(size, stream.native_stream)
            for number in (-1, 1 << 64):
                with self.assertRaises(gpumem.InvalidArgument):
                    pool.malloc(1000, number)
            pool._drop(pool.malloc(1000, stream.native_stream), stream.native_stream)
            pool._drop(64, stream.native_stream)  # no block, and a finalizer has nobody to tell
            self.assertEqual((pool.malloc(0), pool.info().live_count), (0, 0))
            pool.free(0)
            self.instance.free_block(0)
            stream.synchronize()

    def test_a_pool_is_closed_before_its_blocks(self):
        pool = self.device.pool()
        with self.device.stream() as stream:
            block, plain, raw = pool.alloc(1000, stream), pool.alloc(1000), pool.malloc(1000)
            native = pool.alloc(1000, stream.native_stream)
            batch = pool.alloc_batch([10, 10], stream)
            pool.close()
            block.fill(7, stream=stream)
            self.assertIsNone(self.instance.block_info(block).pool)
            stream.synchronize()
            self.assertEqual(contents(block), b"\7" * 1000)
            block.free()
            block.free()
            pool._closed = False  # while another thread closes it, only the library knows
            plain.free()
            pool._closed = True
            native.free()
            pool.free_batch(batch)
            self.instance.free_block(raw)

    def test_how_blocks_of_a_closed_pool_end(self):
        """Freed by its address, a block would be freed once more when it is dropped."""
        for kind in KINDS:
            with gpumem.Instance(BACKEND) as instance:
                with instance.device(0).pool(kind) as pool:
                    block = pool.alloc(64)
                with self.assertRaisesRegex(gpumem.Busy, r"call free\(\) of each PoolBlock or drop it, and Instance\.free_block\(\) for "
                                                         r"those of Pool\.malloc\(\)"):
                    instance.close()
                block.free()
                with self.assertRaises(gpumem.StaleHandle):
                    int(block)

    def test_what_arguments_are_called(self):
        with self.device.pool() as pool:
            for call in (pool.capacity_for, pool.alloc_batch):
                with self.assertRaisesRegex(gpumem.InvalidArgument, r"^sizes\[1\] is -1"):
                    call([1, -1])
            with self.assertRaisesRegex(TypeError, "^stream must be .* or a gpumem.Stream, not a str"):
                pool.alloc(10, "s")
        with self.assertRaisesRegex(TypeError, "^native_stream must be .*, not a str"):
            gpumem.Stream.wrap(self.device, "s")

    def test_they_end_with_their_instance(self):
        instance = gpumem.Instance(BACKEND)
        pool = instance.device(0).pool()
        block = pool.alloc(64)
        with self.assertRaises(gpumem.Busy):
            instance.close()
        instance.close(force=True)
        with self.assertRaises(gpumem.Error):
            block.view()
        block.free()
        pool.close()

    def test_dropped(self):
        pool = self.device.pool()
        with self.device.stream() as stream:
            pool.alloc(1000, stream).fill(1, stream=stream)
            pool.alloc(1000)
            stream.synchronize()
            gc.collect()
            self.assertEqual(pool.info().live_count, 0)
            block = pool.alloc(1000, stream)
            del pool
            gc.collect()
            block.fill(1, stream=stream)  # it keeps its pool
        del block  # its stream is closed
        gc.collect()
        self.assertEqual(self.instance.report(), "nothing lives")


class ForgottenTest(Case):
    """Streams and blocks that refer to each other, and are used in work that nobody observes."""

    def check(self, make):
        """Calls a function, and checks that nothing lives of what it has made and returns."""
        things = [weakref.ref(thing) for thing in make()]
        limit = time.monotonic() + 20
        while self.instance.report() != "nothing lives" and time.monotonic() < limit:
            gc.collect()
            self.device.event().close()  # anything that creates looks for leftovers
        self.assertEqual(self.instance.report(), "nothing lives")
        self.assertEqual([thing() for thing in things], [None] * len(things))

    def made(self, kind="device"):
        pool, stream = self.device.pool(kind), self.device.stream()
        block = pool.alloc(4096, stream)
        return pool, stream, block

    def test_a_block(self):
        def make(end=lambda pool, block: None, use=lambda stream, block: block.fill(1, stream=stream)):
            pool, stream, block = self.made()
            use(stream, block)
            end(pool, block)
            return pool, stream, block
        self.check(make)
        self.check(lambda: make(lambda pool, block: block.free()))
        self.check(lambda: make(lambda pool, block: pool.free_batch([block])))
        self.check(lambda: make(lambda pool, block: pool.close()))
        self.check(lambda: make(use=lambda stream, block: stream.copy(block.view("u1", 100), bytes(100))))

    def test_while_the_work_is_in_flight(self):
        held, release = self.held_stream()
        event = self.device.event()
        event.record(held)

        def make():
            pool, stream, block = self.made()
            stream.wait_event(event)
            block.fill(1, stream=stream)
            return pool, stream, block
        things = [weakref.ref(thing) for thing in make()]  # which does not wait
        gc.collect()
        self.assertEqual((self.instance.stats().streams, things[1](), things[2]()), (2, None, None))
        release()
        for closed in (event, held):
            closed.close()
        self.check(lambda: ())
        self.assertIsNone(things[0]())

    def test_blocks_that_are_used_crosswise(self):
        def make():
            (pool, one, first), (_, other, second) = self.made(), self.made()
            first.fill(1, stream=other)
            second.fill(1, stream=one)
            return pool, one, other, first, second
        self.check(make)

    def test_in_a_cycle(self):
        def make(used):
            pool, stream, block = self.made()
            if used:
                block.fill(1, stream=stream)
            for things in ((stream, block), (block, stream)):
                cycle = types.SimpleNamespace(things=things)
                cycle.itself = cycle
            return pool, stream, block
        for used in (False, True):
            self.check(lambda used=used: make(used))

    @needs_numpy
    def test_arrays_of_blocks(self):
        """Of what an array refers to nobody knows. But the streams do not become ever more, and none is in the way of a close."""
        with gpumem.Instance(BACKEND) as instance:
            device = instance.device(0)
            pool, memory = device.pool("pinned"), device.memory(4096)
            for _ in range(200):
                stream = device.stream()
                block = pool.alloc(4096, stream)
                stream.copy(memory, block.numpy())
                self.assertEqual(c.gpumem_stream_synchronize(stream.handle, c.GPUMEM_TIMEOUT_INFINITE, None), 0)
            self.assertLess(instance.stats().streams, 50)
            del stream, block, memory
            pool.close()


class OrderTest(Case):
    SIZE = 100_000

    def setUp(self):
        super().setUp()
        self.pool = self.device.pool()

    def tearDown(self):
        self.pool.close()
        super().tearDown()

    def check(self, how):
        """What one stream has freed is not overwritten by another before the work of the first is complete."""
        held, release = self.held_stream()
        with self.pinned(self.SIZE) as result, self.device.stream() as other:
            block = self.pool.alloc(self.SIZE, other if "recorded" in how else held)
            self.instance.fill(block, ord("a"), self.SIZE)
            if how == "recorded":
                held.copy(result, int(block), self.SIZE)  # by an address, of which nobody knows
                block.record_use(held)
            else:
                held.copy(result, block, self.SIZE)
            start = block._start
            if how.startswith("dropped"):
                del block
                self.assertEqual(self.pool.info().live_count, 0)
            else:
                block.free()
                self.assertTrue(block.closed)
            again = self.pool.alloc(self.SIZE, other)
            self.assertNotEqual(again._start, start)
            again.fill(ord("z"), stream=other)
            other.synchronize()
            release()
            self.assertEqual(bytes(result.buffer()), b"a" * self.SIZE)
            again.free()
        held.close()

    def test_freed_in_its_stream(self):
        self.check("freed")

    def test_recorded(self):
        self.check("recorded")

    def test_recorded_by_itself(self):
        self.check("recorded by itself")

    def test_dropped(self):
        self.check("dropped")

    def test_dropped_and_recorded(self):
        self.check("dropped and recorded")

    def test_dropped_after_its_pool_or_stream(self):
        """There the library would wait, or could not come behind the work, so it is freed later."""
        for closes_pool in (True, False):
            held, release = self.held_stream()
            pool, stream = self.device.pool(), self.device.stream()
            block = pool.alloc(self.SIZE, stream)
            block.fill(1, stream=held)
            (pool if closes_pool else stream).close()
            del block, pool, stream
            gc.collect()
            self.assertIn("of a closed pool with live blocks" if closes_pool else "Pool: 1 live block ", self.instance.report())
            release()
            held.close()
            self.device.event().close()  # anything that creates looks for leftovers
        self.pool.close()
        self.assertEqual(self.instance.report(), "nothing lives")

    def test_the_same_stream_gets_it_at_once(self):
        held, release = self.held_stream()
        block = self.pool.alloc(self.SIZE, held)
        block.copy_from(bytes(self.SIZE), stream=held)
        with self.assertRaises(gpumem.Busy):
            block.free(None)
        block.free()
        with self.pool.alloc(self.SIZE, held) as again:
            self.assertEqual(again._start, block._start)
        release()
        held.close()

    def native(self):
        """A native stream as other code has it, and a stream of this package that is the same."""
        if BACKEND == "host":
            native = host.native_stream_create(self.device)
            return native, gpumem.Stream.wrap(self.device, native)
        stream = self.device.stream()
        return stream.native_stream, stream

    def test_native_streams(self):
        native, stream = self.native()

        class OfCore:
            def __cuda_stream__(self):
                return 0, native

        class OfTorch:
            cuda_stream = native

        class OfCupy:
            ptr = native
        for order in (native, OfCore(), OfTorch(), OfCupy()):
            block = self.pool.alloc(self.SIZE, order)
            self.assertIs(block.stream, order)
            block.fill(1, stream=stream)
            block.free()
            again = self.pool.alloc(self.SIZE, stream)
            self.assertEqual(again._start, block._start)
            again.free(order)
            with gpumem.Stream.wrap(self.device, order) as same:
                self.assertEqual(same.native_stream, native)
        self.pool.alloc(64, 0).free(0)  # the default stream
        with self.pool.alloc(64, native, alignment=4096) as aligned:
            aligned.record_use(native)
        self.pool.free_batch(self.pool.alloc_batch([64, 64], native))
        with self.assertRaises(TypeError):
            self.pool.alloc(64, object())
        stream.synchronize()
        stream.close()
        if BACKEND == "host":
            host.native_stream_destroy(self.device, native)

    @on_host
    def test_a_stream_that_is_captured(self):
        with self.device.stream() as stream, self.device.stream() as other:
            self.assertEqual(stream.capture_id(), 0)
            outside = self.pool.alloc(64)
            host.set_capturing(stream, True)
            capture = stream.capture_id()
            self.assertNotEqual(capture, 0)
            block = self.pool.alloc(64, stream)
            address = block._start
            block.free()
            block = self.pool.alloc(64, stream)
            self.assertEqual(block._start, address)
            outside.record_use(stream)
            self.pool.free_batch(self.pool.alloc_batch([64, 3 << 20], stream))
            block.free()
            host.set_capturing(stream, False)
            outside.free()
            info = self.pool.info()
            self.assertEqual((info.capture_count, info.live_count), (1, 0))
            self.assertGreaterEqual(info.captured_bytes, (3 << 20) + 64 * 3)
            blocks = [self.pool.alloc(64, stream) for _ in range(200)]
            self.assertNotIn(address, [one._start for one in blocks])
            self.pool.release_capture(capture, other)
            other.synchronize()
            self.pool.trim()
            info = self.pool.info()
            self.assertEqual((info.capture_count, info.captured_bytes), (0, 0))
            with self.assertRaises(gpumem.NotFound):
                self.pool.release_capture(capture)
            for one in blocks:
                one.free()

    def test_batches(self):
        with self.device.stream() as stream, self.device.stream() as second, self.device.pool() as other:
            sizes = [1, 0, 5000, 1 << 20, 3 << 20, 64]
            blocks = self.pool.alloc_batch(sizes, stream)
            self.assertEqual([block.size for block in blocks], sizes)
            for block in blocks:
                block.fill(1, stream=stream)
            self.assertEqual(self.pool.info().live_count, 5)
            blocks[2].free()
            theirs = other.alloc(64)
            with self.assertRaises(gpumem.InvalidArgument):
                self.pool.free_batch([*blocks, theirs])
            theirs.free()
            view = blocks[5].view()
            with self.assertRaises(BufferError):
                self.pool.free_batch(blocks)
            del view
            self.assertEqual([block.closed for block in blocks], [False, False, True, False, False, False])
            self.assertEqual(self.pool.info().live_count, 4)
            more = self.pool.alloc_batch([64], second)
            self.pool.free_batch([*blocks, None, *blocks, *more])
            self.pool.free_batch(blocks)
            self.pool.free_batch([])
            self.assertTrue(all(block.closed for block in (*blocks, *more)))
            self.assertEqual((self.pool.info().live_count, self.pool.alloc_batch([])), (0, []))
            with self.assertRaises(gpumem.InvalidArgument):
                self.pool.alloc_batch([64, 1 << 63])
            self.pool.set_limit(self.pool.info().reserved_bytes)
            with self.assertRaises(gpumem.Error):
                self.pool.alloc_batch([64, 1 << 40])
            self.assertEqual(self.pool.info().live_count, 0)
            stream.synchronize()

    def test_a_batch_that_ends_early(self):
        """The first block that cannot be freed ends it; those before it are freed, and only those."""
        with self.device.pool("pageable", flags="debug") as pool:
            blocks = pool.alloc_batch([100, 100, 100])
            past = (gpumem._memory.c_ubyte * 1).from_address(blocks[1]._start + 100)
            past[0] ^= 0xff
            with self.assertRaisesRegex(gpumem.InvalidArgument, "^a block: byte 1"):
                pool.free_batch(blocks)
            self.assertEqual([block.closed for block in blocks], [True, False, False])
            past[0] ^= 0xff
            pool.free_batch(blocks)
            self.assertEqual(pool.info().live_count, 0)


class ViewTest(Case):
    def test_host_memory(self):
        for kind in ("pinned", "pageable"):
            with self.device.pool(kind) as pool:
                block = pool.alloc(64)
                view = block.view("f4", (4, 4))
                view[0, 1] = 1.5
                self.assertEqual(bytes(block.buffer()[4:8]), bytes(view[0].buffer())[4:8])
                self.assertIn("in pool memory of device 0", repr(view))
                for call in (block.free, lambda: pool.free_batch([block])):
                    with self.assertRaises(BufferError):
                        call()
                place = view.__dlpack_device__()
                self.assertEqual(place, (1, 0) if BACKEND == "host" or kind == "pageable" else (3, 0))
                back = gpumem.from_dlpack(view)
                self.assertEqual(back.address, view.address)
                with self.assertRaises(BufferError):
                    block.free()
                del view, back
                gc.collect()
                block.free()

    @needs_numpy
    def test_numpy(self):
        import numpy
        with self.device.pool("pinned") as pool, pool.alloc(64) as block:
            array = block.numpy("i4")
            array[:] = numpy.arange(16)
            self.assertEqual(list(numpy.asarray(block).view("i4")), list(range(16)))
            del array

    def test_managed_memory(self):
        with self.device.pool("managed") as pool, pool.alloc(64) as block:
            with block.host_access():
                block.buffer()[0] = 5
            self.assertEqual(contents(block, 1), b"\5")

    def test_device_memory(self):
        with self.device.pool() as pool, pool.alloc(64) as block:
            with self.assertRaises(BufferError):
                block.buffer()
            if BACKEND == "host":
                with self.assertRaises(BufferError):
                    block.__dlpack_device__()
            else:
                self.assertEqual(block.__dlpack_device__(), (2, 0))

    @on_cuda
    def test_other_libraries_come_behind_the_stream_of_the_allocation(self):
        with self.device.pool() as pool, self.device.stream() as stream:
            for order in (stream, stream.native_stream):
                with pool.alloc(64, order) as block:
                    view = block.view()
                    self.assertEqual(view.__cuda_array_interface__["stream"], stream.native_stream)
                    del view
            with pool.alloc(64) as block:
                view = block.view()
                self.assertIsNone(view.__cuda_array_interface__["stream"])
                del view
        held, release = self.held_stream()
        with self.device.pool() as pool, self.device.stream() as consumer:
            block = pool.alloc(64, held)
            taken = block.view().__dlpack__(stream=consumer.native_stream)
            self.assertFalse(consumer.query())
            release()
            consumer.synchronize()
            del taken
            gc.collect()
            block.free()
        held.close()


class CallbackTest(Case):
    SIZE = 8 << 20

    def setUp(self):
        super().setUp()
        self.pool = self.device.pool(limit=3 * self.SIZE // 2)

    def tearDown(self):
        self.pool.close()
        super().tearDown()
        self.assertEqual(_pool._allocating, {})

    def test_it_frees_what_is_in_the_way(self):
        kept = [self.pool.alloc(self.SIZE)]
        with self.assertRaises(gpumem.LimitExceeded):
            self.pool.alloc(self.SIZE)
        asked = []

        def give(pool, size):
            asked.append((pool, size))
            kept.clear()  # dropping it is enough
            return True
        self.pool.set_callback(give)
        block = self.pool.alloc(self.SIZE)
        self.assertEqual([pool for pool, _ in asked], [self.pool])
        self.assertGreater(asked[0][1], 0)
        block.free()
        self.pool.set_callback(None)
        with self.assertRaises(gpumem.LimitExceeded):
            self.pool.alloc(2 * self.SIZE)
        with self.assertRaises(TypeError):
            self.pool.set_callback(5)

    def calls(self):
        return (lambda: self.pool.alloc(self.SIZE), lambda: self.pool.alloc(self.SIZE, alignment=4096),
                lambda: self.pool.alloc(self.SIZE, 0), lambda: self.pool.alloc_batch([self.SIZE]),
                lambda: self.pool.malloc(self.SIZE))

    def test_it_has_nothing(self):
        calls = []

        def nothing(pool, _):
            calls.append(None)
            with self.assertRaises(gpumem.LimitExceeded):
                pool.alloc(self.SIZE)
            for call in (pool.close, pool.trim, lambda: pool.set_callback(None)):
                with self.assertRaises(gpumem.InvalidState):
                    call()
        with self.pool.alloc(self.SIZE):
            self.pool.set_callback(nothing)
            for number, call in enumerate(self.calls()):
                with self.assertRaises(gpumem.LimitExceeded):
                    call()
                self.assertEqual(len(calls), number + 1)

    def test_its_exceptions_are_raised(self):
        def fail(*_):
            raise ZeroDivisionError("in the callback")
        with self.pool.alloc(self.SIZE):
            self.pool.set_callback(fail)
            for call in self.calls():
                with self.assertRaisesRegex(ZeroDivisionError, "in the callback"):
                    call()

            def interrupted(*_):
                raise KeyboardInterrupt
            self.pool.set_callback(interrupted)
            with self.assertRaises(KeyboardInterrupt):
                self.pool.alloc(self.SIZE)
        self.pool.alloc(self.SIZE).free()  # and it works on
        with self.pool.alloc(self.SIZE), self.device.pool(limit=1 << 20) as other:
            self.pool.set_callback(lambda pool, size: other.alloc(self.SIZE))
            other.set_callback(fail)
            with self.assertRaises(ZeroDivisionError):
                self.pool.alloc(self.SIZE)
            self.assertEqual(_pool._allocating, {})

    def test_other_code_allocates(self):
        def fail(*_):
            raise ZeroDivisionError
        with self.pool.alloc(self.SIZE):
            self.pool.set_callback(fail)
            out = _pool.c_void_p()
            self.assertLess(_pool.c.gpumem_pool_alloc(self.pool.handle, self.SIZE, None, out, None), 0)
        self.assertEqual([entry.exc_type for entry in self.unraisable], [ZeroDivisionError])
        self.unraisable.clear()

    def test_the_interpreter_ends(self):
        python("import gpumem\n"
               f"pool = gpumem.Instance({BACKEND!r}).device(0).pool(limit=4 << 20)\n"
               "pool.set_callback(lambda *_: False)\n"
               "block = pool.alloc(100)\n")


class ThreadTest(Case):
    def test_many_threads(self):
        workers, rounds, passed, wrong = 6, 200, [], []
        with self.device.pool("pageable") as pool:
            def work(mark):
                try:
                    for number in range(rounds):
                        block = pool.alloc(1 + number * 37 % 5000)
                        view = block.buffer()
                        view[:] = bytes([mark]) * len(view)
                        if bytes(view) != bytes([mark]) * len(view):
                            wrong.append("two have the same block")
                        del view
                        if number % 3:
                            block.free()
                        else:
                            passed.append(block)
                            if len(passed) > 4:
                                passed.pop().free()
                except BaseException as problem:
                    wrong.append(problem)
            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-5)
            try:
                threads = [threading.Thread(target=work, args=(number + 1,)) for number in range(workers)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            finally:
                sys.setswitchinterval(interval)
            self.assertEqual(wrong, [])
            for block in passed:
                block.free()
            info = pool.info()
            self.assertEqual((info.live_count, info.total_count), (0, workers * rounds))

            # Only one of many frees a block.
            block = pool.alloc(64)
            threads = [threading.Thread(target=block.free) for _ in range(workers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(pool.info().live_count, 0)


if __name__ == "__main__":
    unittest.main()
