# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Memory and events of other processes: handles, sockets, descriptors, hubs and keepers."""

import multiprocessing
import os
import pathlib
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import gpumem
from gpumem import Access, HandleTypes, ImportState, Kind, MemoryFlags, ShareType, ShareWay

from .support import BACKEND, PACKAGE, Case, needs_numpy, numpy

LIMIT = 60  # seconds that another process may take for an answer
SIZE = 2 << 20
spawning = multiprocessing.get_context("spawn")


def contents(memory, size, offset=0):
    found = bytearray(size)
    memory.copy_to(found, size, offset=offset)
    return bytes(found)


def eventually(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come true")
        time.sleep(0.005)


# ---- what other processes do ----

def reader(connection, handle):
    """Imports a handle, tells what is there, and writes an answer."""
    with gpumem.Instance(BACKEND) as instance:
        with instance.import_memory(handle, name="theirs") as memory:
            connection.send((contents(memory, 5), memory.kind, memory.size, memory.import_info(), os.getpid()))
            memory.copy_from(b"reply")
            connection.send("written")
            connection.recv()


def receiver(connection, ending):
    """Receives handles until it is told to stop, and returns what is there."""
    with gpumem.Instance(BACKEND) as instance:
        while (share := gpumem.receive_share(connection, instance=instance, timeout=LIMIT)) is not None:
            info = share.info()
            if info.type == ShareType.EVENT:
                with gpumem.import_event(share, instance=instance) as event:
                    connection.send(event.synchronize(LIMIT))
            else:
                with gpumem.import_memory(share) as memory:
                    connection.send((contents(memory, 5, memory.offset), memory.offset, info))
            if connection.recv() == ending:
                return


def publisher(connection, path):
    """Opens a hub, publishes what it is told to, and ends when it is told to."""
    with gpumem.Instance(BACKEND) as instance:
        device = instance.device(0)
        with instance.hub(path, token=b"secret", name="theirs") as hub:
            connection.send(hub.path)
            kept = []
            while (order := connection.recv()) is not None:
                name, text, options = order
                if text is None:
                    hub.withdraw(name)
                    connection.send(hub.info())
                    continue
                memory = device.buffer(len(text), handle_types="posix_fd")
                memory.copy_from(text)
                kept.append(memory)
                connection.send(hub.publish(name, memory.export(), **options))
            for memory in kept:
                memory.close()


def depositor(connection, path):
    """Publishes in a keeper, and ends with everything open."""
    instance = gpumem.Instance(BACKEND)
    memory = instance.device(0).buffer(SIZE, handle_types="posix_fd")
    memory.copy_from(b"saved")
    link = instance.connect(path)
    connection.send((link.info(), [link.publish("state", memory.export(), keep=2) for _ in range(2)]))
    link.withdraw("state", 1)
    connection.send(link.list())
    connection.recv()
    os._exit(0)


class SharingCase(Case):
    def start(self, function, *arguments):
        """Starts another process, and returns the connection to it."""
        ours, theirs = spawning.Pipe()
        process = spawning.Process(target=function, args=(theirs, *arguments))
        process.start()
        theirs.close()

        def end():
            ours.close()
            process.join(LIMIT)
            process.kill()
            process.join()
            self.assertIn(process.exitcode, (0, -9))
        self.addCleanup(end)
        return process, ours

    def heard(self, connection):
        self.assertTrue(connection.poll(LIMIT), "the other process says nothing")
        return connection.recv()

    def shareable(self, text=b"hello"):
        memory = self.device.memory(SIZE, require="shareable", name="ours")
        memory.copy_from(text)
        return memory

    def by_descriptors(self, text=b"hello"):
        if not self.device.capability("vmm_handle_posix_fd"):
            self.skipTest(self.device.capability("vmm_handle_posix_fd").reason)
        buffer = self.device.buffer(SIZE, handle_types="posix_fd", name="ours")
        buffer.copy_from(text)
        return buffer


class HandleTest(SharingCase):
    def test_bytes(self):
        with self.shareable() as memory:
            handle = memory.export()
            self.assertIsInstance(handle, bytes)
            self.assertEqual(len(handle), 256)
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                again = pickle.loads(pickle.dumps(handle, protocol))
                self.assertIsInstance(again, gpumem.ShareHandle)
                self.assertEqual(again, handle)
            self.assertEqual(gpumem.ShareHandle(bytearray(handle)).info(), handle.info())
            self.assertEqual(handle, memory.export())
            for text in (repr(handle), str(handle), f"{handle}", "%s" % (handle,)):
                self.assertEqual(text, f"<gpumem.ShareHandle: {SIZE} bytes, legacy, of process {os.getpid()}>")
            info = handle.info()
            self.assertEqual((info.type, info.way, info.size, info.offset, info.exporter_pid),
                             (ShareType.MEMORY, ShareWay.LEGACY, SIZE, 0, os.getpid()))
            self.assertEqual(info.device_uuid, self.device.info().uuid)
            self.assertEqual(info.buffer_id, memory.info().buffer_id)
            self.assertEqual(memory.export(offset=4096).info().offset, 4096)
            self.assertEqual(self.instance.export(int(memory) + 5).info().offset, 5)

    def test_bytes_that_are_no_handle(self):
        for data in (b"", bytes(255), bytes(257)):
            with self.assertRaisesRegex(gpumem.InvalidArgument, "256 bytes"):
                gpumem.ShareHandle(data)
        with self.assertRaisesRegex(TypeError, "^a handle is 256 bytes, and not str$"):
            gpumem.ShareHandle("text")
        with self.device.memory(SIZE) as memory, self.assertRaisesRegex(TypeError, r"and not Memory; its export\(\) makes one$"):
            self.instance.import_memory(memory)
        none = gpumem.ShareHandle(bytes(256))
        for call in (none.info, lambda: self.instance.revoke(none), lambda: self.instance.share_fds(bytes(256)),
                     lambda: self.instance.import_memory(bytes(256)),
                     lambda: gpumem.import_event(bytes(256), device=self.device)):
            with self.assertRaises(gpumem.InvalidArgument):
                call()
        self.assertRegex(repr(none), "^<gpumem.ShareHandle: .+>$")

    def test_the_end_of_an_export(self):
        memory = self.shareable()
        handle = memory.export()
        fds = self.instance.share_fds(handle)
        self.assertEqual(len(fds), handle.info().fd_count)
        for fd in fds:
            os.close(fd)
        self.instance.revoke(handle)
        for call in (lambda: self.instance.revoke(handle), lambda: self.instance.share_fds(handle)):
            with self.assertRaises(gpumem.NotFound):
                call()
        handle = memory.export()
        memory.close()
        with self.assertRaises(gpumem.NotFound):
            self.instance.revoke(handle)

    def test_what_is_refused(self):
        with self.shareable() as memory, self.pinned() as pinned, self.device.memory(SIZE, "managed") as managed:
            with self.assertRaises(gpumem.WrongKind):
                managed.export()
            with self.assertRaises(gpumem.Unsupported):
                pinned.export()
            with self.assertRaises(gpumem.Unsupported):
                memory.export(way="legacy", access="read")
            for call in (lambda: memory.export(way="banana"), lambda: memory.export(access="banana"),
                         lambda: memory.export(way="dma_buf"), lambda: memory.export(flags=1 << 40),
                         lambda: self.instance.export(None), lambda: self.instance.share_way(memory, "any"),
                         lambda: gpumem.import_memory(memory.export(), device=self.device, timeout=-1),
                         lambda: self.instance.set_import_cache(-1)):
                with self.assertRaises(gpumem.InvalidArgument):
                    call()
            for call in (lambda: gpumem.import_memory(memory.export(), device=self.device),
                         lambda: self.instance.import_memory(memory.export())):
                with self.assertRaises(gpumem.InvalidState):  # this process has the memory itself
                    call()
            with self.assertRaises(gpumem.Unsupported):
                memory.export(way="posix_fd")
            with self.device.event() as event:
                with self.assertRaises(gpumem.Unsupported):
                    event.export()
            with self.assertRaises(TypeError):
                gpumem.send_share("socket", memory.export())
            with self.assertRaises(TypeError):
                gpumem.ImportedMemory()

    def test_refusals_say_how_to_share(self):
        with self.shareable() as memory, self.device.event() as event:
            for thing in (memory, event):
                with self.assertRaisesRegex(TypeError, r"give another process what export\(\) returns, .*spawn"):
                    pickle.dumps(thing)
        with self.by_descriptors() as buffer, gpumem.Instance(BACKEND) as other:
            with other.import_memory(buffer.export()) as imported:
                with self.assertRaisesRegex(TypeError, "the handle that it was imported with"):
                    pickle.dumps(imported)
                with self.assertRaisesRegex(gpumem.WrongKind, "pass on the handle that it came with"):
                    imported.export()

    def test_ways(self):
        with self.shareable() as memory:
            ways = self.instance.share_ways(memory)
            self.assertEqual(list(ways), [ShareWay.LEGACY, ShareWay.POSIX_FD, ShareWay.FABRIC, ShareWay.DMA_BUF])
            self.assertTrue(ways[ShareWay.LEGACY])
            self.assertFalse(ways[ShareWay.POSIX_FD])
            self.assertEqual(ways[ShareWay.POSIX_FD].status_name, "GPUMEM_ERROR_UNSUPPORTED")
            self.assertIn("(GPUMEM_ERROR_UNSUPPORTED)", repr(ways[ShareWay.POSIX_FD]))
            self.assertEqual(ways[ShareWay.LEGACY].status_name, "GPUMEM_SUCCESS")
            self.assertTrue(ways[ShareWay.POSIX_FD].message)
        with self.by_descriptors() as buffer:
            info = self.instance.share_way(buffer, "posix_fd")
            self.assertTrue(info)
            self.assertEqual(info.fd_count, 1)
            self.assertTrue(self.instance.share_way(buffer, "posix_fd", "container").needs_socket)

    def test_a_dma_buf(self):
        with self.shareable() as memory:
            if self.instance.share_way(memory, "dma_buf"):
                for options in ({}, {"prefer_pcie": True}):
                    fd = self.instance.export_dma_buf(memory, **options)
                    self.assertFalse(os.get_inheritable(fd))
                    os.close(fd)
            else:
                with self.assertRaises(gpumem.Unsupported):
                    self.instance.export_dma_buf(memory)
            with self.assertRaises(TypeError):
                self.instance.export_dma_buf(int(memory))

    def test_descriptors(self):
        with self.by_descriptors() as buffer:
            handle = buffer.export()
            self.assertEqual((handle.info().way, handle.info().fd_count), (ShareWay.POSIX_FD, 1))
            fds = self.instance.share_fds(handle)
            self.assertEqual(len(fds), 1)
            self.assertFalse(os.get_inheritable(fds[0]))
            os.close(fds[0])


    def test_blocks_of_pools(self):
        if not self.device.capability("vmm_handle_posix_fd"):
            self.skipTest(self.device.capability("vmm_handle_posix_fd").reason)
        with self.device.pool(handle_types="posix_fd") as pool, pool.alloc(5) as first, pool.alloc(5) as second:
            self.assertIs(pool.info().handle_types, HandleTypes.POSIX_FD)
            first.copy_from(b"first")
            second.copy_from(b"other")
            for call in (second.export, lambda: self.instance.export(second), lambda: self.instance.export(int(second))):
                with self.assertRaisesRegex(gpumem.Unsupported, "neighbours"):
                    call()
            handle = second.export(flags="neighbours", offset=1)
            self.assertEqual((handle.info().way, handle.info().fd_count), (ShareWay.POSIX_FD, 1))
            self.assertEqual(self.instance.export(int(second) + 1, flags="neighbours"), handle)
            with self.instance.import_memory(handle) as memory:
                self.assertEqual(contents(memory, 4, memory.offset), b"ther")
                memory.copy_from(b"xxxx", offset=memory.offset)
            self.assertEqual((contents(first, 5), contents(second, 5)), (b"first", b"oxxxx"))
        with self.device.pool() as pool, pool.alloc(5) as block:
            self.assertEqual(pool.info().handle_types, 0)
            with self.assertRaises(gpumem.Unsupported):
                block.export(flags="neighbours")
        with self.assertRaises(gpumem.InvalidArgument):
            self.device.pool("pinned", handle_types="posix_fd")


class ProcessTest(SharingCase):
    def test_a_share_is_pickled_to_a_child(self):
        for memory in (self.shareable(), self.by_descriptors()):
            process, connection = self.start(reader, memory.export())
            found, kind, size, info, pid = self.heard(connection)
            self.assertEqual((found, kind, size), (b"hello", Kind.IMPORTED, SIZE))
            self.assertEqual((info.exporter_pid, info.import_count, info.state, info.access),
                             (os.getpid(), 1, ImportState.LIVE, Access.READWRITE))
            self.assertEqual((pid, self.heard(connection)), (process.pid, "written"))
            self.assertEqual(contents(memory, 5), b"reply")
            if memory.kind == Kind.DEVICE:
                with self.assertRaises(gpumem.Busy):  # legacy memory must outlive its imports
                    memory.close()
            connection.send("end")
            process.join(LIMIT)
            self.assertEqual(process.exitcode, 0)
            memory.close()

    def test_a_share_is_refused_when_it_has_ended(self):
        with self.shareable() as memory:
            handle = memory.export()
            self.instance.revoke(handle)
            process, connection = self.start(_refused, handle)
            self.assertEqual(self.heard(connection), "StaleHandle")

    def test_imports_count(self):
        process, connection = self.start(publisher, f"@gpumem-python-{os.getpid()}-count")
        with self.instance.connect(self.heard(connection), token=b"secret") as link:
            connection.send(("rows", b"x" * 4096, {"access": "readwrite"}))
            self.assertEqual(self.heard(connection), 1)
            handle = link.fetch("rows")
            one, two = gpumem.import_memory(handle), self.instance.import_memory(handle, name="again")
            self.assertEqual(one.import_info().import_count, 2)
            self.assertEqual((int(one), one.handle), (int(two), two.handle))
            self.assertEqual(one.device, self.device)
            one.close()
            for call in (one.info, one.import_info, lambda: one.fill(0), lambda: self.instance.copy(bytearray(5), one, 5)):
                with self.assertRaises(gpumem.StaleHandle):
                    call()
            self.assertEqual(two.import_info().import_count, 1)
            view = two.view()
            with self.assertRaises(BufferError):
                two.close()
            del view
            two.fill(7)
            self.assertEqual(contents(two, 5), b"\7" * 5)
            two.close()
            connection.send(None)

    def test_imports_are_for_other_libraries(self):
        process, connection = self.start(publisher, f"@gpumem-python-{os.getpid()}-arrays")
        with self.instance.connect(self.heard(connection), token=b"secret") as link:
            connection.send(("rows", b"x" * 4096, {}))
            self.heard(connection)
            with gpumem.import_memory(link.fetch("rows")) as memory:
                self.assertEqual(memory.import_info().access, Access.READ)
                self.assertTrue(memory.granted_flags & MemoryFlags.READ_ONLY)
                view = memory.view("float32", (16, 8))
                self.assertTrue(view.readonly)
                if BACKEND == "cuda":
                    interface = view.__cuda_array_interface__
                    self.assertEqual(interface["data"], (memory.device_pointer, True))
                    self.assertEqual(view.__dlpack_device__(), (2, 0))
                elif memory.host_pointer is None:
                    with self.assertRaises(BufferError):
                        view.__dlpack__()
                else:
                    self.assertEqual(view.__dlpack_device__(), (1, 0))
                    self.assertEqual(bytes(memory.buffer()[:4]), b"xxxx")
                with self.assertRaises(gpumem.NoAccess):
                    memory.fill(0)
                del view
            connection.send(None)

    @needs_numpy
    def test_an_array_of_another_process(self):
        process, connection = self.start(_shares_host_memory)
        handle = self.heard(connection)
        if not isinstance(handle, bytes):
            connection.send(None)
            self.skipTest(handle)
        with self.instance.import_memory(handle) as memory:
            if memory.host_pointer is None:
                connection.send(None)
                self.skipTest("the CPU has no access to imports of this backend")
            array = memory.numpy("int32", 4)
            self.assertEqual(list(array), [1, 2, 3, 4])
            array[:] = 7
            self.assertEqual(list(numpy.asarray(memory).view("int32")[:4]), [7, 7, 7, 7])
            del array
            connection.send(None)
            self.assertEqual(self.heard(connection), [7, 7, 7, 7])

    def test_over_a_connection(self):
        """A pipe of multiprocessing is a Unix socket, and the messages go between its own."""
        process, connection = self.start(receiver, "end")
        memory, buffer = self.shareable(b"_first"), self.by_descriptors(b"next_")
        gpumem.send_share(connection, memory.export(offset=1), lease=LIMIT)
        self.assertEqual(self.heard(connection)[:2], (b"first", 1))
        connection.send("on")
        gpumem.send_share(connection, buffer.export())
        found, offset, info = self.heard(connection)
        self.assertEqual((found, offset, info.fd_count), (b"next_", 0, 1))
        connection.send("on")
        if self.device.capability("share_events"):
            stream, release = self.held_stream()
            event = self.device.event(flags="interprocess|disable_timing")
            event.record(stream)
            handle = event.export()
            self.assertEqual(handle.info().type, ShareType.EVENT)
            self.assertRegex(repr(handle), r"^<gpumem.ShareHandle: event, of process \d+>$")
            gpumem.send_share(connection, handle, instance=self.instance)
            self.assertFalse(connection.poll(0.05), "the event is complete before its work")
            release()
            self.assertTrue(self.heard(connection))
            connection.send("end")
            process.join(LIMIT)
            event.close()
            stream.close()
        else:
            gpumem.send_share(connection, memory.export())
            self.heard(connection)
            connection.send("end")
            process.join(LIMIT)
        memory.close()
        buffer.close()

    def test_over_a_socket_to_a_subprocess(self):
        buffer = self.by_descriptors()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            code = f"""
import gpumem, socket
with gpumem.Instance({BACKEND!r}) as instance, socket.socket(fileno={theirs.fileno()}) as channel:
    share = gpumem.receive_share(channel, instance=instance, timeout={LIMIT})
    with gpumem.import_memory(share, access="read") as memory:
        found = bytearray(5)
        memory.copy_to(found, 5)
        channel.sendall(found)
        channel.recv(1)
"""
            child = self.program(code, theirs)
            gpumem.send_share(ours, buffer.export())
            ours.settimeout(LIMIT)
            self.assertEqual(ours.recv(5), b"hello")
            ours.sendall(b".")
            self.ended(child)
        buffer.close()

    def test_descriptors_of_a_subprocess(self):
        buffer = self.by_descriptors()
        handle = buffer.export()
        fds = self.instance.share_fds(handle)
        code = f"""
import gpumem, sys
handle = gpumem.ShareHandle(sys.stdin.buffer.read(256))
with gpumem.Instance({BACKEND!r}) as instance:
    with instance.import_memory(handle, fds={fds!r}) as memory:
        memory.copy_from(b"reply")
"""
        child = self.program(code, *fds, stdin=subprocess.PIPE)
        for fd in fds:
            os.close(fd)
        _, errors = child.communicate(handle, timeout=LIMIT)
        self.assertEqual((child.returncode, errors), (0, b""))
        self.assertEqual(contents(buffer, 5), b"reply")
        buffer.close()

    def program(self, code, *files, **options):
        fds = [file if isinstance(file, int) else file.fileno() for file in files]
        return subprocess.Popen([sys.executable, "-W", "error", "-c", code], pass_fds=fds, stderr=subprocess.PIPE,
                                env={**os.environ, "PYTHONPATH": str(PACKAGE)}, **options)

    def ended(self, child):
        _, errors = child.communicate(timeout=LIMIT)
        self.assertEqual((child.returncode, errors), (0, b""))

    def test_a_socket_that_is_none(self):
        with self.shareable() as memory:
            handle, (reading, writing) = memory.export(), os.pipe()
            os.write(writing, b"x")
            with self.assertRaises(gpumem.InvalidArgument):
                gpumem.send_share(writing, handle)
            with self.assertRaises(gpumem.InvalidArgument):
                gpumem.receive_share(reading, instance=self.instance)
            os.close(reading)
            os.close(writing)
            with socket.create_server(("127.0.0.1", 0)) as listening, mock.patch.object(select, "poll", None):  # it waits for nothing
                with self.assertRaises(gpumem.InvalidArgument):
                    gpumem.send_share(listening, handle)
            ours, theirs = socket.socketpair()
            with ours:
                self.assertIsNone(gpumem.receive_share(ours, instance=self.instance, timeout=0.01))
                theirs.close()
                with self.assertRaises(gpumem.PeerGone):
                    gpumem.receive_share(ours, instance=self.instance)
                with self.assertRaises(gpumem.PeerGone):
                    gpumem.send_share(ours, handle)

    def test_a_part_of_a_message_is_waited_for_no_longer_than_asked(self):
        """The call gets what is left of the limit, or 5 seconds if there is none."""
        receive, given = gpumem._library.gpumem_share_receive, []

        def seen(instance, number, timeout_ns, *more):
            given.append(timeout_ns)
            return receive(instance, number, min(timeout_ns, 1), *more)
        for timeout, most in ((0, 0), (0.25, 250_000_000), (LIMIT, 5_000_000_000), (None, 5_000_000_000)):
            ours, theirs = socket.socketpair()
            with ours, theirs, mock.patch.object(gpumem._library, "gpumem_share_receive", seen):
                theirs.send(b"gpms")
                with self.assertRaisesRegex(gpumem.Busy, "only a part of the message came in time"):
                    gpumem.receive_share(ours, instance=self.instance, timeout=timeout)
            self.assertEqual(len(given), 1)
            self.assertLessEqual(given.pop(), most)

    def test_sending_waits_only_without_room(self):
        """A socket has room long after it ceases to be ready, and a whole call waits no longer than asked."""
        send, waits = gpumem._library.gpumem_share_send, []

        class Poll:
            def register(self, number, events):
                self.number, self.events = number, events

            def poll(self, milliseconds):
                waits.append(milliseconds / 1e3)
                return ready(self.number, self.events)

        def ready(number, events):
            found = poll()
            found.register(number, events)
            return found.poll(0)

        def seen(instance, handle, number, desc, *more):
            waits.append(desc.timeout_ns / 1e9)
            return send(instance, handle, number, desc, *more)
        poll = select.poll
        ours, theirs = socket.socketpair()
        with self.shareable() as memory, ours, theirs, mock.patch.object(select, "poll", Poll):
            handle = memory.export()
            while ready(ours.fileno(), select.POLLOUT):
                gpumem.send_share(ours, handle)
            del waits[:]
            gpumem.send_share(ours, handle)
            self.assertFalse(waits, "it waits although there is room")
            ours.setblocking(False)
            with self.assertRaises(BlockingIOError):
                while True:
                    ours.send(b"x")
            with mock.patch.object(gpumem._library, "gpumem_share_send", seen), self.assertRaisesRegex(gpumem.Busy, "no room in time"):
                gpumem.send_share(ours, handle, timeout=0.25)
            self.assertGreater(len(waits), 1, "a signal waits for the whole call")
            self.assertLessEqual(sum(waits), 0.25)

    def test_closing_ends_a_wait_for_a_handle(self):
        raised, instance = [], gpumem.Instance(BACKEND)

        def wait():
            try:
                gpumem.receive_share(ours, instance=instance)
            except gpumem.Error as error:
                raised.append(type(error))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join(0.2)
            self.assertTrue(thread.is_alive())
            instance.close(force=True)
            thread.join(LIMIT)
            ended = not thread.is_alive()
        thread.join()
        self.assertTrue(ended)
        self.assertEqual(raised, [gpumem.Closed])

    def test_the_end_of_the_exporter(self):
        process, connection = self.start(publisher, f"@gpumem-python-{os.getpid()}-end")
        link = self.instance.connect(self.heard(connection), token=b"secret")
        connection.send(("rows", b"x" * 4096, {}))
        self.heard(connection)
        memory = gpumem.import_memory(link.fetch("rows"))
        process.kill()
        eventually(lambda: memory.import_info().state == ImportState.PEER_GONE)
        self.assertEqual(contents(memory, 5), b"xxxxx")  # by descriptors, the memory outlives its exporter
        memory.close()
        with self.assertRaises(gpumem.PeerGone):
            link.list()
        self.assertFalse(link.info().connected)
        link.close()

    def test_the_cache(self):
        self.instance.set_import_cache(LIMIT, bytes_max=1 << 30)
        process, connection = self.start(publisher, f"@gpumem-python-{os.getpid()}-cache")
        with self.instance.connect(self.heard(connection), token=b"secret") as link:
            connection.send(("rows", b"x" * 4096, {}))
            self.heard(connection)
            addresses = set()
            for _ in range(3):
                with gpumem.import_memory(link.fetch("rows")) as memory:
                    addresses.add(int(memory))
            self.assertEqual(len(addresses), 1)
            self.instance.flush_import_cache()
            self.instance.set_import_cache()
            connection.send(None)


def _refused(connection, handle):
    with gpumem.Instance(BACKEND) as instance:
        try:
            instance.import_memory(handle)
        except gpumem.Error as problem:
            connection.send(type(problem).__name__)


def _shares_host_memory(connection):
    with gpumem.Instance(BACKEND) as instance:
        try:
            buffer = instance.device(0).buffer(4096, location=("host_numa", 0), handle_types="posix_fd")
        except gpumem.Error as problem:
            connection.send(str(problem))
            connection.recv()
            return
        with buffer:
            array = buffer.numpy("int32", 4)
            array[:] = [1, 2, 3, 4]
            connection.send(buffer.export())
            connection.recv()
            connection.send(list(map(int, array)))
            del array


class HubTest(SharingCase):
    def setUp(self):
        super().setUp()
        self.path = f"@gpumem-python-{os.getpid()}-{self._testMethodName}"

    def test_paths_as_python_has_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in (pathlib.Path(folder) / "hub", os.fsencode(folder) + b"/bytes", os.fsdecode(os.fsencode(folder) + b"/\xff")):
                with self.subTest(path=path), self.instance.hub(path), self.instance.connect(path) as link:
                    self.assertEqual(link.list(), [])
                    self.assertTrue(os.path.exists(path))

    def test_a_hub(self):
        process, connection = self.start(publisher, self.path)
        self.assertEqual(self.heard(connection), self.path)
        with self.assertRaises(gpumem.PermissionDenied):
            self.instance.connect(self.path, token=b"guess")
        with self.instance.connect(self.path, token=b"secret", timeout=LIMIT) as link:
            info = link.info()
            self.assertEqual((info.pid, info.uid, info.connected, info.keeper, info.path),
                             (process.pid, os.getuid(), True, False, self.path))
            self.assertEqual(repr(link), f"<gpumem.Link: {self.path}, process {process.pid}>")
            self.assertEqual(link.list(), [])
            self.assertIsNone(link.wait("batch", timeout=0.05))
            self.assertIsNone(link.import_next("batch", timeout=0.05))
            with self.assertRaises(gpumem.NotFound):
                link.fetch("batch")
            self.ways_of(link)

            fingerprint = bytes(range(32))
            connection.send(("batch", b"first" * 1000, {"keep": 3}))
            entry = link.wait("batch", timeout=LIMIT)
            self.assertEqual((entry.name, entry.version, entry.type, entry.way, entry.access, entry.publisher_pid,
                              entry.publisher_gone, entry.publisher_uid, entry.fingerprint),
                             ("batch", 1, ShareType.MEMORY, ShareWay.POSIX_FD, Access.READ, process.pid, False, os.getuid(), None))
            self.assertEqual(self.heard(connection), 1)
            first = gpumem.import_memory(link.fetch("batch"))
            connection.send(("batch", b"second" * 1000, {"version": 7, "keep": 3, "fingerprint": fingerprint}))
            self.assertEqual(link.wait("batch", 1).version, 7)
            self.assertEqual(self.heard(connection), 7)
            memory, entry = link.import_next("batch", 1, access="read", memory_name="next")
            self.assertEqual((entry.version, memory.info().name, contents(memory, 6)), (7, "next", b"second"))
            memory.close()
            self.assertIsNone(link.import_next("batch", 7, timeout=0.05))
            self.assertEqual([(entry.version, entry.fingerprint) for entry in link.list()], [(1, None), (7, fingerprint)])
            for options, text in (({}, b"second"), ({"version": 1}, b"firstf"), ({"fingerprint": fingerprint}, b"second")):
                with gpumem.import_memory(link.fetch("batch", **options)) as memory:
                    self.assertEqual(contents(memory, 6), text)
            with self.assertRaises(gpumem.NotFound):
                link.fetch("batch", fingerprint=bytes([9] * 32))
            self.assertEqual(first.import_info().state, ImportState.LIVE)
            connection.send(("batch", None, {}))
            self.assertEqual(self.heard(connection).name_count, 0)
            eventually(lambda: first.import_info().state == ImportState.WITHDRAWN)
            self.assertEqual(contents(first, 5), b"first")
            first.close()
            connection.send(None)
            process.join(LIMIT)
            with self.shareable() as memory:  # What is not kept is asked.
                gone = link.share_ways(memory)[ShareWay.LEGACY]
            self.assertEqual(gone.status_name, "GPUMEM_ERROR_PEER_GONE")
            self.assertTrue(gone.message)

    def ways_of(self, link):
        with self.by_descriptors() as buffer:
            self.assertEqual(link.share_way(buffer, "posix_fd"), (ShareWay.POSIX_FD, 0, 1, False, False, ""))
            across = link.share_way(buffer, "posix_fd", "other_device")
            self.assertTrue(across and across.slow, across)
            self.assertIn("on another device", across.message)
            # Nobody opens a dma-buf, which could be exported.
            way = link.share_way(buffer, "dma_buf")
            self.assertEqual((gpumem.status_name(way.status), way.fd_count, way.slow), ("GPUMEM_ERROR_UNSUPPORTED", 0, False))
            self.assertIn("opens none", way.message)
            with self.assertRaises(gpumem.InvalidArgument):
                link.share_way(buffer, "any")

    def test_a_keeper(self):
        with gpumem.Instance(BACKEND) as holder, holder.hub(self.path, flags="keeper", links_max=3, name="kept") as hub:
            process, connection = self.start(depositor, self.path)
            info, versions = self.heard(connection)
            self.assertTrue(info.keeper)
            self.assertEqual(versions, [1, 2])
            self.assertEqual([entry.version for entry in self.heard(connection)], [2])
            connection.send("end")
            process.join(LIMIT)
            with self.instance.connect(self.path) as link:
                eventually(lambda: link.list()[0].publisher_gone)
                with self.instance.import_memory(link.fetch("state")) as memory:
                    self.assertEqual(contents(memory, 5), b"saved")
                link.withdraw("state")
                self.assertEqual(link.list(), [])
            found = hub.info()
            self.assertEqual((found.name_count, found.version_count, found.fd_count, found.path, found.name),
                             (0, 0, 0, self.path, "kept"))

    def test_what_is_refused(self):
        with self.assertRaises(gpumem.NotFound):
            self.instance.connect(self.path)
        with self.shareable() as memory, self.instance.hub(self.path) as hub:
            self.assertRegex(repr(hub), f"^<gpumem.Hub: {self.path}, 0 names>$")
            handle = memory.export()
            with self.assertRaises(gpumem.AlreadyExists):
                self.instance.hub(self.path)
            for name in ("", "a/b", "x" * 64, "a\0b", "a\nb"):
                with self.subTest(name), self.assertRaises(gpumem.InvalidArgument):
                    hub.publish(name, handle)
            with self.assertRaises(TypeError):
                hub.publish(None, handle)
            with self.assertRaises(gpumem.InvalidArgument):
                hub.publish("rows", handle, fingerprint=b"short")
            self.assertEqual(hub.publish("rows", handle, version=5), 5)
            with self.assertRaises(gpumem.AlreadyExists):
                hub.publish("rows", handle, version=5)
            hub.withdraw("rows", 5)
            with self.assertRaises(gpumem.NotFound):
                hub.withdraw("rows")
            with self.instance.connect(self.path) as link:
                with self.assertRaises(gpumem.Unsupported):  # it is no keeper
                    link.publish("rows", handle)
                with self.assertRaises(gpumem.Unsupported):
                    link.withdraw("rows")
        for call in (hub.info, link.info, lambda: hub.publish("rows", handle), link.list):
            with self.assertRaises(gpumem.StaleHandle):
                call()
        hub.close()
        link.close()
        self.assertEqual((repr(hub), repr(link)), ("<gpumem.Hub, closed>", "<gpumem.Link, closed>"))
        for call in (lambda: self.instance.hub("a\0b"), lambda: self.instance.hub(token=b"x" * 257),
                     lambda: self.instance.hub(self.path, mode=0o1000), lambda: self.instance.hub("x" * 200)):
            with self.assertRaises(gpumem.InvalidArgument):
                call()
        for call in (self.instance.hub, self.instance.connect):
            with self.assertRaisesRegex(TypeError, "token must be bytes"):
                call(self.path, token="secret")

    def test_a_file_for_certain_users(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"gpumem-python-{os.getpid()}")
        with self.instance.hub(path, mode=0o660, users=[os.getuid()], groups=[os.getgid()], names_max=1, versions_max=2,
                               fds_max=3, bytes_max=1 << 40, timeout=1) as hub:
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o660)
            with self.instance.connect(path) as link:
                self.assertEqual(hub.info().link_count, 1)
                self.assertEqual(link.info().path, path)
        self.assertFalse(os.path.exists(path))

    def test_dropped_hubs_and_links_are_closed(self):
        hub, link = self.instance.hub(self.path), self.instance.connect(self.path)
        del link
        del hub
        with self.assertRaises(gpumem.NotFound):
            self.instance.connect(self.path)

    def test_a_wait_ends_when_its_link_is_closed(self):
        problems = []
        with self.instance.hub(self.path), self.instance.connect(self.path) as link:
            def wait():
                try:
                    link.wait("never")
                except gpumem.Error as problem:
                    problems.append(problem)
            waiting = threading.Thread(target=wait)
            waiting.start()
            time.sleep(0.05)
            link.close()
            waiting.join()
        self.assertEqual([type(problem) for problem in problems], [gpumem.StaleHandle])


if __name__ == "__main__":
    unittest.main()
