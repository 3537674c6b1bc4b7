# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rings: one process produces, others consume."""

import contextlib
import functools
import gc
import threading
import time
import unittest
import weakref
from unittest import mock

import gpumem
from gpumem import Kind, ShareType
from gpumem import _library as c
from gpumem import _ring

from .support import BACKEND, on_host
from .test_interrupt import raises_at
from .test_sharing import LIMIT, SharingCase, contents

SIZE = 1000


def message(number):
    """What message ``number`` has: its bytes and its size depend on it."""
    return (number.to_bytes(4, "little") * (SIZE // 4))[:SIZE - number % 7]


def tag_of(number):
    return number * 1_000_003 + 7


# ---- what other processes do ----

def consumer(connection, handle, streams):
    """Sends what it got, in order, and whether that was right."""
    with gpumem.Instance(BACKEND) as instance, instance.open_ring(handle, timeout=LIMIT, name="theirs") as ring:
        connection.send(ring.info())
        stream = instance.device(0).stream() if streams else None
        numbers, right = [], True
        for slot in ring.messages(stream):
            numbers.append(slot.number)
            expected, found = message(slot.number), bytearray(slot.size)
            slot.copy_to(found, stream=stream)
            if stream is not None:
                stream.synchronize()
            right = right and found == expected and slot.tag == tag_of(slot.number)
        connection.send((numbers, right))
        if stream is not None:
            stream.close()


def holder(connection, handle):
    """Holds two messages, out of order, until it is killed."""
    instance = gpumem.Instance(BACKEND)
    ring = gpumem.open_ring(handle, instance=instance)
    connection.send("open")
    first, second = ring.wait(), ring.wait()
    second.release()
    connection.send((first.number, second.closed, ring.info().held_count, contents(first, 4)))
    connection.recv()


def producer(connection, count, finishing):
    """Produces for one consumer, and ends when it is told to."""
    with gpumem.Instance(BACKEND) as instance, instance.device(0).ring(SIZE, consumers_first=1) as ring:
        connection.send(ring.export())
        for _ in range(count):
            with ring.acquire(timeout=LIMIT) as slot:
                slot.copy_from(message(slot.number))
                slot.publish(len(message(slot.number)), tag_of(slot.number))
        connection.send("published")
        connection.recv()
        if finishing:
            connection.send(ring.finish(LIMIT))


def stuck(connection, by_event):
    """Publishes a message, or records an event, behind work that does not end."""
    instance = gpumem.Instance(BACKEND)
    device = instance.device(0)
    flag, stream = device.memory(4, "pinned"), device.stream()
    flag.fill(0)
    if by_event:
        event = device.event(flags="interprocess|disable_timing")
        connection.send(event.export())
    else:
        ring = device.ring(SIZE, consumers_first=1)
        connection.send(ring.export())
        slot = ring.acquire(stream, LIMIT)
    stream.wait_value(flag.host_pointer, 1)
    if by_event:
        event.record(stream)
    else:
        slot.publish()
    connection.send("published")
    connection.recv()


class RingTest(SharingCase):
    def setUp(self):
        super().setUp()
        if not self.device.capability("share_events"):
            self.skipTest(self.device.capability("share_events").reason)

    def publish(self, ring, count, stream=None):
        kept = []
        for _ in range(count):
            with ring.acquire(stream, LIMIT) as slot:
                kept.append(message(slot.number))
                slot.copy_from(kept[-1], stream=stream)
                slot.publish(len(kept[-1]), tag_of(slot.number))
        if stream is not None:
            stream.synchronize()

    @contextlib.contextmanager
    def work_until_an_event_is_waited_for(self):
        """A stream with work of which it keeps nothing, and a function that says whether that is complete. It is once something
        waits for an event."""
        with self.pinned(4) as flag, self.device.event() as end:
            flag.fill(0)
            stream, wait = self.device.stream(), c.gpumem_event_synchronize
            stream.wait_value(flag.host_pointer, 1)
            end.record(stream)

            def complete(*arguments):
                flag.buffer()[0] = 1
                return wait(*arguments)
            try:
                with mock.patch.object(c, "gpumem_event_synchronize", complete):
                    yield stream, lambda: flag.buffer()[0] == 1
            finally:
                flag.buffer()[0] = 1
                end.synchronize()
                stream.close()

    def test_a_ring(self):
        with self.device.ring(SIZE, slot_count=3, consumers_max=2, name="ours") as ring:
            info = ring.info()
            self.assertEqual((info.is_producer, info.slot_size, info.slot_count, info.consumers_max, info.consumer_count,
                              info.held_count, info.published, info.finished, info.name),
                             (True, SIZE, 3, 2, 0, 0, 0, False, "ours"))
            self.assertEqual(repr(ring), "<gpumem.RingProducer 'ours': 3 slots of 1000 bytes, 0 consumers>")
            handle = ring.export()
            self.assertEqual(handle.info().type, ShareType.RING)
            self.assertRegex(repr(handle), r"^<gpumem.ShareHandle: ring, of process \d+>$")
            for number in range(10):  # without a consumer, messages are lost
                with ring.acquire() as slot:
                    self.assertEqual((slot.number, slot.index, slot.size, slot.kind, slot.stream),
                                     (number, number % 3, SIZE, Kind.DEVICE, None))
                    self.assertEqual(int(slot), info.base + slot.index * info.slot_stride)
                    slot.fill(number)
                    slot.copy_from(b"abc", offset=SIZE - 3)
                    self.assertEqual(contents(slot, 4, SIZE - 4), bytes([number]) + b"abc")
                    slot.publish(number)
                self.assertTrue(slot.closed)
                slot.drop()
                for call in (slot.publish, slot.info, lambda: slot.fill(0)):
                    with self.assertRaises(gpumem.StaleHandle):
                        call()
            self.assertEqual(ring.info().published, 10)
            self.assertTrue(ring.finish(0))
            with self.assertRaises(gpumem.InvalidState):
                ring.acquire()
        self.assertEqual(repr(ring), "<gpumem.RingProducer, closed>")

    def test_a_slot_that_is_dropped_comes_again(self):
        with self.device.stream() as stream, self.device.ring(SIZE) as ring:
            with self.assertRaises(ZeroDivisionError):
                with ring.acquire(stream) as slot:
                    slot.fill(1, stream=stream)
                    raise ZeroDivisionError
            self.assertTrue(slot.closed)
            with ring.acquire() as again:
                self.assertEqual((int(again), again.number), (ring.info().base, 0))
                with self.assertRaises(gpumem.InvalidState):
                    ring.acquire()
                again.publish(tag=5)
            self.assertEqual(ring.info().published, 1)

    def test_what_uses_a_slot(self):
        with self.device.stream() as one, self.device.stream() as other, self.device.ring(SIZE) as ring:
            slot = ring.acquire(one)
            view = slot.view()
            for call in (slot.publish, slot.drop, ring.close):
                with self.assertRaises(BufferError):
                    call()
            del view
            slot.fill(1, stream=other)
            with self.assertRaises(gpumem.Busy):
                slot.publish()
            other.synchronize()
            slot.fill(1, stream=one)
            slot.publish()  # behind the fill
            one.synchronize()

    def test_who_gets_a_dropped_slot_comes_after_its_work(self):
        with self.device.ring(SIZE) as ring:
            for used in (False, True):  # in another stream than the slot's
                stream, release = self.held_stream()
                slot = ring.acquire(None if used else stream)
                if used:
                    slot.fill(1, stream=stream)
                slot.drop()
                self.assertIsNone(ring.acquire(timeout=0))
                with self.device.stream() as other:
                    ring.acquire(other).drop()
                    self.assertFalse(other.query())
                    release()
                with ring.acquire() as again:
                    self.assertEqual(again.number, 0)
                stream.close()

    def test_closing_waits_for_the_work_on_a_dropped_slot(self):
        for finishing in (False, True):
            ring = self.device.ring(SIZE)
            with self.work_until_an_event_is_waited_for() as (stream, is_complete):
                slot = ring.acquire(stream)
                slot.fill(7, stream=stream)
                if finishing:
                    ring.finish()
                else:
                    slot.drop()
                self.assertFalse(is_complete())
                ring.close()
                self.assertTrue(is_complete())

    def test_everything_forgotten(self):
        """The streams of slots, and the slots that their work uses, refer to each other."""
        def make(own, publishes):
            ring, stream = self.device.ring(SIZE), self.device.stream()
            slot = ring.acquire(stream if own else None)
            slot.fill(1, stream=stream)
            if publishes:
                slot.publish(stream=stream)
                ring.acquire(stream)
            return ring, stream, slot
        for own in (True, False):
            for publishes in (False, True):
                things = [weakref.ref(thing) for thing in make(own, publishes)]
                limit = time.monotonic() + 20
                while self.instance.report() != "nothing lives" and time.monotonic() < limit:
                    gc.collect()
                    self.device.event().close()  # anything that creates looks for leftovers
                self.assertEqual(self.instance.report(), "nothing lives")
                self.assertEqual([thing() for thing in things], [None] * 3)

    def test_a_forgotten_ring_lives_until_its_work_is_complete(self):
        ring = self.device.ring(SIZE)  # before the work, for which an allocation waits on a GPU
        held, release = self.held_stream()
        ring.acquire(held).fill(1, stream=held)
        count = self.instance.kind_stats(Kind.DEVICE).live_count
        del ring
        gc.collect()
        self.device.event().close()
        self.assertEqual(self.instance.kind_stats(Kind.DEVICE).live_count, count)
        release()
        held.close()
        self.device.event().close()  # anything that creates looks for leftovers
        self.assertEqual(self.instance.report(), "nothing lives")

    def test_a_publish_that_is_interrupted(self):
        """A signal handler raises at each line in turn."""
        with self.device.stream() as stream, self.device.ring(SIZE, slot_count=2) as ring:
            for limit in range(1, 200):
                slot = ring.acquire(stream)
                raised = raises_at(limit, _ring, slot.publish)
                published = ring.info().published
                self.assertEqual(slot.closed, published > slot.number, f"line {limit}")
                slot.drop()
                with ring.acquire() as again:
                    self.assertEqual(again.number, published, f"line {limit}")
                    again.publish()
                if not raised:
                    break
            self.assertFalse(raised, "there are more lines")
            self.assertEqual(ring.info().published, published + 1)

    def test_an_acquire_or_a_drop_that_is_interrupted(self):
        with self.device.stream() as stream, self.device.ring(SIZE, slot_count=2) as ring:
            for first in (None, stream):
                for act in (lambda: ring.acquire(stream), lambda: ring.acquire().drop()):
                    for limit in range(1, 200):
                        if first is not None:
                            ring.acquire(first).drop()
                        raised = raises_at(limit, _ring, act)
                        for slot in list(ring._held):  # which was returned
                            slot.drop()
                        with ring.acquire() as again:
                            self.assertEqual(again.number, ring.info().published, f"line {limit}")
                            again.publish()
                        if not raised:
                            break
                    self.assertFalse(raised, "there are more lines")

    def test_what_is_refused(self):
        with self.device.ring(SIZE) as ring:
            for call in (lambda: self.device.ring(0), lambda: self.device.ring(SIZE, slot_count=257),
                         lambda: self.device.ring(SIZE, consumers_max=2, consumers_first=3), lambda: ring.acquire(timeout=-1),
                         lambda: gpumem.open_ring(bytes(256), instance=self.instance),
                         lambda: self.instance.import_memory(ring.export())):
                with self.assertRaises(gpumem.InvalidArgument):
                    call()
            with self.assertRaisesRegex(gpumem.InvalidArgument, "slot_size is -1; it must be between 1 and "):
                self.device.ring(-1)
            with self.assertRaises(gpumem.InvalidState):  # this process has the ring itself
                gpumem.open_ring(ring.export())
            for call in (lambda: ring.acquire("stream"), gpumem.RingSlot, gpumem.RingMessage):
                with self.assertRaises(TypeError):
                    call()
            with ring.acquire() as slot:
                with self.assertRaises(gpumem.InvalidArgument):
                    slot.publish(SIZE + 1)
                with self.assertRaises(gpumem.InvalidArgument):
                    slot.copy_from(b"", offset=SIZE + 1)
            with self.device.memory(SIZE, require="shareable") as memory:
                with self.assertRaises(gpumem.InvalidArgument):
                    self.instance.open_ring(memory.export())

    def test_two_consumers(self):
        """One orders its work by a stream, the other waits on the CPU."""
        with self.device.ring(SIZE, consumers_max=2, consumers_first=2) as ring, self.device.stream() as stream:
            self.assertIsNone(ring.acquire(timeout=0.01))
            peers = [self.start(consumer, ring.export(), streams)[1] for streams in (False, True)]
            for peer in peers:
                info = self.heard(peer)
                self.assertEqual((info.is_producer, info.slot_size, info.name), (False, SIZE, "theirs"))
            self.publish(ring, 50)
            self.publish(ring, 50, stream)
            self.assertTrue(ring.finish(LIMIT))
            for peer in peers:
                self.assertEqual(self.heard(peer), (list(range(100)), True))

    def test_a_forgotten_producer(self):
        ring = self.device.ring(SIZE, slot_count=20, consumers_first=1)
        process, peer = self.start(consumer, ring.export(), False)
        self.heard(peer)
        self.publish(ring, 20)
        del ring
        gc.collect()
        self.assertEqual(self.heard(peer), (list(range(20)), True))
        process.join()
        self.device.ring(SIZE).close()  # tries again to destroy what is left

    def test_the_end_of_a_consumer(self):
        with self.device.ring(SIZE, slot_count=2, consumers_first=1) as ring:
            process, connection = self.start(holder, ring.export())
            self.assertEqual(self.heard(connection), "open")
            self.publish(ring, 2)
            self.assertEqual(self.heard(connection), (0, True, 2, message(0)[:4]))
            self.assertIsNone(ring.acquire(timeout=0.05))
            with self.assertRaises(gpumem.Busy):
                ring.close()
            process.kill()
            self.publish(ring, 10)
            self.assertTrue(ring.finish(LIMIT))

    def test_the_end_of_the_producer(self):
        process, connection = self.start(producer, 2, False)
        with gpumem.open_ring(self.heard(connection), instance=self.instance) as ring:
            self.assertEqual(self.heard(connection), "published")
            with ring.wait(timeout=LIMIT) as first:
                self.assertEqual((first.number, first.kind), (0, Kind.IMPORTED))
                process.kill()
                process.join()
                with self.assertRaises(gpumem.PeerGone):
                    ring.wait() and ring.wait()
                with self.assertRaises(gpumem.PeerGone):
                    first.release()
                ring.close()
            self.assertTrue(first.closed)

    @on_host
    def test_closing_by_force_waits_for_no_other_process(self):
        def leave(instance):
            with self.assertRaises(ZeroDivisionError):
                with instance:
                    raise ZeroDivisionError
        for by_event in (False, True):
            for close in (lambda instance: instance.close(force=True), leave):
                process, connection = self.start(stuck, by_event)
                instance, array = gpumem.Instance(BACKEND), bytearray(4096)
                device = instance.device(0)
                stream, registered = device.stream(), device.register(array)
                if by_event:
                    event = gpumem.import_event(self.heard(connection), device=device)
                    self.assertEqual(self.heard(connection), "published")
                    stream.wait_event(event)
                else:
                    ring = gpumem.open_ring(self.heard(connection), instance=instance)
                    self.assertEqual(self.heard(connection), "published")
                    ring.wait(stream, LIMIT).copy_to(registered, stream=stream)
                registered.fill(1, stream=stream)
                watchdog = threading.Timer(LIMIT, process.kill)
                watchdog.start()
                close(instance)
                watchdog.cancel()
                self.assertTrue(instance.closed)
                self.assertTrue(process.is_alive(), "it was waited for")
                process.kill()

    def test_messages_that_are_held(self):
        process, connection = self.start(producer, 4, True)
        handle = self.heard(connection)
        with gpumem.open_ring(handle, instance=self.instance) as ring:
            self.assertEqual(self.heard(connection), "published")
            with ring.wait() as first, ring.wait() as second, ring.wait() as third:
                for slot in (first, second, third):
                    self.assertEqual((contents(slot, slot.size), slot.tag), (message(slot.number), tag_of(slot.number)))
                view = second.view()
                with self.assertRaises(BufferError):
                    second.release()
                with self.assertRaises(BufferError):
                    ring.close()
                del view
                self.assertEqual(ring.info().held_count, 3)
            # They left in the reverse order.
            self.assertEqual((ring.info().held_count, ring.info().released), (0, 3))
            with self.assertRaises(gpumem.StaleHandle):
                first.info()
            connection.send("finish")
            self.assertEqual([slot.number for slot in ring], [3])
            with self.assertRaises(gpumem.Closed):
                ring.wait()
        self.assertTrue(self.heard(connection))

    def consumed(self, count):
        """A ring of another process, whose producer publishes so many messages."""
        connection = self.start(producer, count, True)[1]
        ring = gpumem.open_ring(self.heard(connection), instance=self.instance)

        def end():
            ring.close()
            self.assertEqual(self.heard(connection), "published")
            connection.send("finish")
            self.assertTrue(self.heard(connection))
        return ring, end

    def test_a_message_whose_stream_is_closed_when_it_is_passed_on(self):
        ring, end = self.consumed(20)
        passed = []
        pass_on = c.gpumem_ring_release

        def noted(handle, stream, number, error):
            passed.append((number, stream, is_complete()))
            return pass_on(handle, stream, number, error)
        with self.work_until_an_event_is_waited_for() as (stream, is_complete):
            first, second = ring.wait(), ring.wait(stream)
            second.release()
            stream.close()
            with mock.patch.object(c, "gpumem_ring_release", noted):
                first.release()
        self.assertEqual(passed, [(0, None, False), (1, None, True)])
        first, second = ring.wait(), ring.wait()
        with self.assertRaisesRegex(gpumem.StaleHandle, "pass one that is open"):
            second.release(stream=stream)
        second.release()
        first.release()
        for number in range(4, 20):
            with ring.wait(timeout=LIMIT) as slot:
                self.assertEqual(slot.number, number)
        end()

    def test_the_first_release_decides_on_the_stream(self):
        ring, end = self.consumed(2)
        with self.device.stream() as stream:
            first, second = ring.wait(), ring.wait()
            with gpumem.Instance(BACKEND) as instance, instance.device(0).stream() as foreign:
                with self.assertRaises(gpumem.InvalidArgument):
                    second.release(stream=foreign)
            self.assertFalse(second.closed)
            second.release(stream=stream)
            second.release()
            with mock.patch.object(c, "gpumem_ring_release", wraps=c.gpumem_ring_release) as passed:
                first.release()
        self.assertEqual([call.args[1] for call in passed.call_args_list], [None, stream.handle])
        end()

    def test_closing_waits_for_the_work_on_a_message_that_is_passed_on_later(self):
        ring, end = self.consumed(2)
        with self.work_until_an_event_is_waited_for() as (stream, is_complete), self.pinned(SIZE) as found:
            first, second = ring.wait(), ring.wait(stream)
            second.copy_to(found, stream=stream)
            second.release()
            self.assertFalse(is_complete())
            ring.close()
            self.assertTrue(is_complete())
            self.assertEqual(bytes(found.buffer()[:second.size]), message(1))
            stream.synchronize()
        self.assertTrue(first.closed)
        end()

    def test_a_release_or_a_wait_that_is_interrupted(self):
        """A signal handler raises at each line in turn."""
        ring, end = self.consumed(1000)
        number = 0
        for act in ("first", "second", "wait"):
            for limit in range(1, 200):
                with self.device.stream() as stream:
                    first, second = ring.wait(timeout=LIMIT), ring.wait(stream, LIMIT)
                    self.assertEqual((first.number, ring.info().held_count), (number, 2), f"{act}, line {limit}")
                    raised = act == "second" and raises_at(limit, _ring, second.release)
                    second.release()
                    raised = act == "first" and raises_at(limit, _ring, first.release) or raised
                    first.release()
                number += 2
                if act == "wait":
                    raised = raises_at(limit, _ring, functools.partial(ring.wait, timeout=LIMIT))
                    for slot in list(ring._held):  # which was returned
                        slot.release()
                        number += 1
                if not raised:
                    break
            self.assertFalse(raised, "there are more lines")
        end()


if __name__ == "__main__":
    unittest.main()
