# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Threads, fork, and the end of the interpreter with everything alive."""

import os
import threading
import unittest

import gpumem
from gpumem._stream import hold, release

from .support import BACKEND, Case, needs_numpy, on_host, python

HEAD = f"""
import gc, os, sys, threading, time
import gpumem
instance = gpumem.Instance({BACKEND!r})
device = instance.device(0)
"""


class ThreadTest(Case):
    def test_storm(self):
        failures, lock = [], threading.Lock()
        shared, stop = [], threading.Event()

        def work(number):
            try:
                with self.device.stream() as stream:
                    for turn in range(60):
                        with self.pinned(256) as source, self.pinned(256) as target:
                            source.buffer()[:] = bytes([number]) * 256
                            middle = self.instance.device(turn % 2).memory(256)
                            middle.copy_from(source, stream=stream)
                            middle.copy_to(target, stream=stream)
                            stream.synchronize()
                            if bytes(target.buffer()) != bytes([number]) * 256:
                                failures.append("content")
                        # Another thread may be the one that frees it.
                        with lock:
                            shared.append(middle)
                            oldest = shared.pop(0) if turn % 3 else None
                        if oldest is not None:
                            oldest.close()
                        if len(shared) > 16:
                            with lock:
                                shared.clear()
                        del middle, oldest
                        try:
                            self.device.memory(0)
                        except gpumem.InvalidArgument as error:
                            if error.function != "gpumem_memory_create":
                                failures.append(error.function)
            except BaseException as problem:
                failures.append(problem)

        def read():
            while not stop.is_set():
                self.instance.stats()
                self.instance.report()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        reader = threading.Thread(target=read)
        for thread in (*threads, reader):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        reader.join()
        self.assertEqual(failures, [])
        shared.clear()

    def test_one_closes_what_others_use(self):
        for _ in range(30):
            memory, failures = self.pinned(64), []

            def use(memory=memory, failures=failures):
                try:
                    for _ in range(50):
                        self.instance.copy(memory, bytes(64))
                except (gpumem.StaleHandle, gpumem.NotFound):
                    pass
                except BaseException as problem:
                    failures.append(problem)

            def close(memory=memory):
                while not memory.closed:
                    try:
                        memory.close()
                    except BufferError:
                        pass
            threads = [threading.Thread(target=function) for function in (use, use, close, close)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual([problem for problem in failures if not isinstance(problem, gpumem.Error)], [])

    def test_one_looks_at_what_another_one_ends(self):
        memory = self.pinned(64)
        held, view = hold([memory]), memory.view()
        looks = list(memory._holds)  # as closing does
        self.assertEqual(len(looks), 2)
        release(held)
        view._uncount()
        self.assertEqual(memory._holds, set())
        del held, view
        self.assertEqual([look() for look in looks], [None, None])
        memory.close()

    def test_the_interpreter_is_free_while_a_call_blocks(self):
        stream, release = self.held_stream()
        waiting = threading.Thread(target=stream.synchronize)
        waiting.start()
        # This thread could not run if the wait held the interpreter lock.
        release()
        waiting.join()
        stream.close()


@unittest.skipUnless(hasattr(os, "fork"), "no fork here")
class ForkTest(unittest.TestCase):
    def child(self, code):
        return python(HEAD + f"""
memory, pinned, stream, event = device.memory(64), device.memory(64, 2), device.stream(), device.event()
registered, managed = device.register(bytearray(8192)), device.memory(64, "managed")
unit = device.physical_granularity().minimum
addresses, block = instance.reserve(unit), device.physical(unit)
addresses.map(0, block)
group = instance.group()
buffer = device.buffer(unit, group=group)
path = f"@gpumem-python-{{os.getpid()}}-fork"
hub, link = instance.hub(path), instance.connect(path)
shareable = device.memory(2 << 20, require="shareable")
handle = shareable.export()
hub.publish("rows", handle)
memory.fill(1, stream=stream)
child = os.fork()
if not child:
{code}
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
stream.synchronize()
assert [entry.name for entry in link.list()] == ["rows"]
for thing in (event, stream, registered, managed, pinned, memory, addresses, block, buffer, group, link, hub, shareable):
    thing.close()
instance.close()
print("parent good")
""")

    def test_objects_of_the_parent_are_refused(self):
        _, out, _ = self.child("""
    for call in (instance.info, device.info, memory.info, memory.close, stream.synchronize, stream.query, event.query,
                 event.close, stream.close, instance.close, lambda: device.memory(64), lambda: instance.copy(memory, bytes(8)),
                 lambda: memory.fill(1, stream=stream), lambda: device.malloc(4, 64), lambda: managed.host_access().begin(),
                 lambda: managed.prefetch(stream), lambda: managed.advise("set_read_mostly"), addresses.info,
                 addresses.close, lambda: addresses.unmap(0, unit), addresses.mapping, block.close,
                 lambda: device.physical(unit), lambda: instance.reserve(unit), lambda: device.buffer(), buffer.info,
                 buffer.sleep, lambda: buffer.resize(2 * unit), lambda: buffer.fill(0), buffer.close, group.info, group.sleep,
                 group.wake, group.close, lambda: buffer.note_registration("nic"), buffer.set_callbacks, buffer.prepare,
                 shareable.export, lambda: instance.revoke(handle), lambda: instance.share_fds(handle),
                 lambda: instance.import_memory(handle), instance.flush_import_cache, lambda: instance.hub(path),
                 lambda: instance.connect(path), hub.info, hub.close, lambda: hub.publish("rows", handle), link.info, link.list,
                 lambda: link.wait("rows"), lambda: link.fetch("rows"), link.close, event.export):
        try:
            call()
        except gpumem.Forked as error:
            assert error.name == "GPUMEM_ERROR_FORKED" and "spawn" in error.message, error
        else:
            raise AssertionError(call)
""")
        self.assertEqual(out, "parent good\n")

    def test_locks_that_a_thread_of_the_parent_holds(self):
        python("""
import contextlib, faulthandler, os, sys, threading
import gpumem
from gpumem import _calls, _library
instance = gpumem.Instance("host")
device = instance.device(0)
memory, buffer, stream, group = device.memory(64, "pinned"), device.buffer(64), device.stream(), instance.group()
addresses = instance.reserve(1 << 21)
held, end = threading.Event(), threading.Event()

def hold():
    with contextlib.ExitStack() as locks:
        for lock in (_library._lock, _calls._log_lock, buffer._lock, group._lock, addresses._lock,
                     stream._queue._lock):
            locks.enter_context(lock)
        buffer._changing = group._changing = True
        held.set()
        end.wait()
    buffer._changing = group._changing = False
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if not child:
    faulthandler.dump_traceback_later(100, exit=True)
    _library.load()
    gpumem.set_log_function(None)
    with gpumem.Instance("host") as own, own.device(0).memory(64, "pinned") as theirs:
        theirs.__dlpack__()
    for call in (buffer.close, lambda: buffer.resize(1), group.close, group.sleep, addresses.close,
                 lambda: memory.fill(1, stream=stream)):
        try:
            call()
        except gpumem.Forked:
            pass
        else:
            os._exit(1)
    os._exit(0)
end.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0
for thing in (memory, buffer, stream, group, addresses, instance):
    thing.close()
""")

    def test_finalizers_are_silent(self):
        _, out, _ = self.child("""
    del memory, pinned, stream, event, registered, managed, addresses, block, buffer, group, hub, link, shareable
    del device, instance
    gc.collect()
""")
        self.assertEqual(out, "parent good\n")

    def test_the_child_may_end_with_everything_alive(self):
        self.child("    pass")

    @on_host
    def test_an_instance_of_the_child_s_own(self):
        self.child("""
    own = gpumem.Instance("host")
    with own.device(0).memory(64) as theirs:
        theirs.copy_from(bytes(64))
    own.close()
""")

    @on_host
    def test_the_default_instance_of_the_child(self):
        python("""
import os, sys, gpumem
parent = gpumem.default_instance()
child = os.fork()
if not child:
    own = gpumem.default_instance()
    assert own is not parent and own is gpumem.default_instance()
    own.device(0).memory(64).close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert gpumem.default_instance() is parent
""")


    @needs_numpy
    def test_bytes_of_the_parent_are_refused(self):
        """Touching them would end the child, or show other bytes."""
        self.assertEqual(python(HEAD + """
import numpy
memory, pool = device.memory(64, "pinned"), device.pool("pageable")
memory.fill(1)
rows, buffer, block = gpumem.GrowableArray(3, "f4", device=device), device.buffer(64, location="host"), pool.alloc(64)
view, part = memory.view("f4"), memory.view("u1", (8, 8))[2]
repr(view)
child = os.fork()
if not child:
    for name, use in sorted({
            "array": lambda: rows.array, "buffer of a buffer": buffer.buffer, "buffer of memory": memory.buffer,
            "buffer of a view": view.buffer, "block": lambda: block.view()[0], "element": lambda: view[0],
            "element of a new view": lambda: memory.view("f4")[0], "element of a part": lambda: part[1],
            "element of rows": lambda: rows[0], "loop": lambda: list(rows), "dlpack": view.__dlpack__,
            "arrow": view.__arrow_c_device_array__, "numpy": view.numpy, "numpy of memory": memory.numpy,
            "numpy.asarray": lambda: numpy.asarray(view), "set": lambda: view.__setitem__(0, 1), "set rows": lambda: rows.__setitem__(0, 1),
            "append": lambda: rows.append(1), "slice": lambda: view[1:], "slice of rows": lambda: rows[:2], "iter": lambda: next(iter(view)),
            "set slice": lambda: view.__setitem__(slice(2), bytes(8)), "interface": lambda: view.__array_interface__}.items()):
        try:
            use()
        except gpumem.Forked:
            continue
        print(name, "was not refused", flush=True)
    assert repr(view).endswith("of device 0>")
    with gpumem.Instance("host") as own, own.device(0).memory(4, "pinned") as mine:
        mine.view()[0] = 7
        child = os.fork()
        if not child:
            try:
                mine.view()
            except gpumem.Forked:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert mine.view()[0] == 7
    os._exit(0)
print(os.waitpid(child, 0)[1])
assert view[0] and rows[0] == 0
""")[1], "0\n")


class ExitTest(unittest.TestCase):
    """Nothing is printed, nothing crashes, and the exit status is 0."""

    def test_with_everything_alive(self):
        python(HEAD + """
memory, stream, event = device.memory(64), device.stream(), device.event()
pinned = device.memory(64, gpumem.Kind.PINNED)
registered = device.register(bytearray(8192))
view, buffer, capsule = pinned.view("f4"), pinned.buffer(), pinned.__dlpack__()
taken = gpumem.from_dlpack(pinned)
pair, column = pinned.__arrow_c_device_array__(), gpumem.from_arrow(pinned)
managed, unit = device.memory(64, "managed"), device.physical_granularity().minimum
access = managed.host_access()
access.begin()
addresses, block = instance.reserve(unit), device.physical(unit)
addresses.map(0, block)
part = addresses.part()
cycle = [memory, device.memory(64)]
cycle.append(cycle)
gpumem.set_log_function(lambda level, message: None, gpumem.LogLevel.DEBUG)
memory.fill(1, stream=stream)
""")

    def test_with_buffers_alive(self):
        python(HEAD + """
unit = device.physical_granularity().minimum
group = instance.group()
buffers = [device.buffer(unit, reserve=8 * unit, group=group) for _ in range(3)]
buffers[0].set_ahead(unit)
buffers[1].set_callbacks(lambda buffer: buffers, lambda buffer, generation: group)
note = buffers[0].note_registration("nic")
buffers[2].sleep("pageable")
buffers[1].prepare(bytes_per_second=1)
rows = gpumem.GrowableArray(9, "i4", device=device)
""")

    def test_with_hubs_and_links_alive(self):
        python(HEAD + """
path = f"@gpumem-python-{os.getpid()}-exit"
hub, link = instance.hub(path), instance.connect(path)
memory = device.memory(2 << 20, require="shareable")
hub.publish("rows", memory.export())
handle = link.fetch("rows")
threading.Thread(target=link.wait, args=("never",), daemon=True).start()
time.sleep(0.05)
""")

    def test_a_sleep_that_ctrl_c_has_left(self):
        """It is undone before the interpreter ends."""
        _, out, _ = python(HEAD + """
import os, signal, time
from gpumem import _library as c
sleep, undone = c.gpumem_buffer_sleep, []
def slow(*arguments):
    time.sleep(0.5)
    undone.append(sleep(*arguments))
    print(undone, flush=True)
    return undone[0]
c.gpumem_buffer_sleep = slow
buffer = device.buffer(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    buffer.sleep()
except KeyboardInterrupt:
    assert not undone
""")
        self.assertEqual(out, "[-208]\n")

    @needs_numpy
    def test_with_arrays_alive(self):
        python("""
import gpumem, numpy
arrays = [gpumem.pagelocked_zeros((10, 10), "f4") for _ in range(10)]
views = [array[2:5].T for array in arrays]
registered = gpumem.register_host_memory(gpumem.aligned_zeros(4096, "u1"))
taken = numpy.from_dlpack(gpumem.default_device().memory(64, gpumem.Kind.PINNED))
""")

    def test_with_the_default_instance(self):
        python("""
import gpumem
memory = gpumem.default_device().memory(64)
""")

    def test_a_host_function_that_is_pending_runs(self):
        _, out, _ = python(HEAD + """
flag, stream = device.memory(4, gpumem.Kind.PINNED), device.stream()
flag.buffer()[:] = bytes(4)
stream.wait_value(flag, 1)
stream.launch_host_function(lambda: print("it ran", flush=True))
import atexit  # what is registered last runs first
def let_go(view=flag.buffer()):
    view[0] = 1
atexit.register(let_go)
""")
        self.assertEqual(out, "it ran\n")

    def test_a_host_function_that_can_never_run(self):
        python(HEAD + """
from gpumem import _calls
_calls._EXIT_SECONDS = 0.05
flag, stream = device.memory(4, gpumem.Kind.PINNED), device.stream()
flag.buffer()[:] = bytes(4)
stream.wait_value(flag, 1)
stream.launch_host_function(print, "never")
""")

    @on_host
    def test_a_host_function_on_a_lost_device(self):
        python(HEAD + """
import gpumem.host
from gpumem import _calls
_calls._EXIT_SECONDS = 1000  # longer than this process may take
flag, stream = device.memory(4, gpumem.Kind.PINNED), device.stream()
flag.buffer()[:] = bytes(4)
stream.wait_value(flag, 1)
stream.launch_host_function(print, "never")
gpumem.host.lose(device)
""")

    def test_in_a_thread_that_does_not_end(self):
        python(HEAD + """
flag, stream = device.memory(4, gpumem.Kind.PINNED), device.stream()
flag.buffer()[:] = bytes(4)
stream.wait_value(flag, 1)
started = threading.Event()
def wait():
    started.set()
    stream.synchronize()
threading.Thread(target=wait, daemon=True).start()
started.wait()
""")

    def test_sys_exit_and_exceptions(self):
        status, _, err = python(HEAD + "memory = device.memory(64)\nsys.exit(3)", check=False)
        self.assertEqual((status, err), (3, ""))
        status, _, err = python(HEAD + "with device.memory(64) as memory:\n    raise KeyError('x')", check=False)
        self.assertEqual(status, 1)
        self.assertEqual(err.splitlines()[-1], "KeyError: 'x'")

    def test_objects_used_by_atexit_functions(self):
        python(HEAD + """
import atexit
memory = device.memory(64)
@atexit.register
def last():
    memory.copy_from(bytes(64))
    memory.close()
    instance.close()
""")


class SpawnTest(unittest.TestCase):
    def test_multiprocessing_spawn(self):
        python("""
import multiprocessing, gpumem
if __name__ == "__main__":
    gpumem.default_device().memory(64).close()
    process = multiprocessing.get_context("spawn").Process(target=gpumem.version)
    process.start()
    process.join()
    assert process.exitcode == 0
""")
