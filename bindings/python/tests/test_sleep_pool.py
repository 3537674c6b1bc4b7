# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors that sleep, by a stand-in for PyTorch over the fake driver."""

import unittest

from .support import on_cuda, python
from .test_vllm import TORCH

POOL = TORCH + '''
import gpumem
import gpumem.adapters.torch as adapter

pool = adapter.SleepPool("training")
free = free_bytes()
pools = []  # all of PyTorch
made_before = MemPool.__init__
def noted(self, allocator):
    made_before(self, allocator)
    pools.append(self)
MemPool.__init__ = noted

def fill(count, size=2 * MIB):
    """Content of that many tensors, by their addresses."""
    made = {}
    with pool.use():
        for number in range(count):
            made[empty(size)] = bytes([number + 1]) * MIB
    for address, content in made.items():
        write(address, content)
    return made

def end(tensor):
    """Ends a tensor, whose memory PyTorch keeps."""
    (segment,) = (one for pool in pools for one in pool.segments if one["address"] == tensor and one["allocated_size"])
    segment["allocated_size"] = 0
    del more[tensor]

def intact(tensors):
    return all(read(address, MIB) == content for address, content in tensors.items())
'''


@on_cuda
class SleepPoolTest(unittest.TestCase):
    def test_it_sleeps_and_wakes(self):
        python(POOL + '''
import tempfile
tensors = fill(3)
for content, directory in ("pinned", None), ("pageable", None), (gpumem.Content.FILE, tempfile.gettempdir()):
    pool.sleep(content, directory=directory)
    info = pool.info()
    assert (info.size, info.buffer_count, info.awake_count, info.store_capacity) == (6 * MIB, 3, 0, 6 * MIB), info
    assert free_bytes() == free
    pool.wake()
    assert intact(tensors) and free_bytes() == free - 6 * MIB and pool.info().store_capacity == 0
pool.sleep()
pool.wake(keep="all")
assert intact(tensors) and pool.info().store_capacity == 6 * MIB
pool.sleep("drop")
pool.wake()
assert not intact(tensors)
''')

    def test_its_stores_are_prepared(self):
        python(POOL + '''
tensors = fill(2)
pool.prepare()
assert pool.info().store_capacity == 4 * MIB and pool.info().awake_count == 2
pool.sleep()
pool.wake()
assert intact(tensors)
''')

    def test_pools_sleep_apart_unless_they_share_a_tag(self):
        python(POOL + '''
tensors = fill(2)
other, same = adapter.SleepPool("other"), adapter.SleepPool("training")
with other.use():
    with same.use():
        inner = empty(2 * MIB)
    outer = empty(4 * MIB)
assert pool.info().size == same.info().size == 6 * MIB and other.info().size == 4 * MIB
same.sleep()
assert pool.info().awake_count == 0 and other.info().awake_count == 1
pool.wake()
assert intact(tensors)
other.sleep()
assert pool.info().awake_count == 3 and other.info().awake_count == 0
''')

    def test_expandable_segments_are_off_until_the_last_use_ends(self):
        """The setting is of the process."""
        for variable, value in (("PYTORCH_ALLOC_CONF", "a:1,expandable_segments:True"),
                                ("PYTORCH_CUDA_ALLOC_CONF", " expandable_segments : True ,a:1")):
            with self.subTest(value):
                python(POOL + '''
import threading
inside, leave = threading.Event(), threading.Event()

def first():
    with pool.use():
        inside.set()
        leave.wait()

thread = threading.Thread(target=first)
thread.start()
inside.wait()
given = os.environ[VARIABLE]
off = given.replace("True", "False")
with adapter.SleepPool("other").use():
    leave.set()
    thread.join()
    assert settings == [off], settings
assert settings == [off, given], settings
try:
    with pool.use():
        raise KeyError
except KeyError:
    pass
assert settings == 2 * [off, given], settings
'''.replace("VARIABLE", repr(variable)), **{variable: value})

    def test_what_is_unused_is_given_back_once(self):
        python(POOL + '''
with pool.use():
    kept, temporary = empty(2 * MIB), empty(2 * MIB)
    MemPool.current.segments[-1]["allocated_size"] = 0
assert pool.info().size == 2 * MIB
more = fill(2)  # one may lie where the temporary was
assert pool.info().size == 6 * MIB
end(next(iter(more)))
for _ in range(3):
    pool.sleep()
    assert (pool.info().size, pool.info().buffer_count) == (4 * MIB, 2), pool.info()
    pool.wake()
    assert intact(more)
''')

    def test_its_memory_outlives_it(self):
        python(POOL + '''
import gc
with pool.use():
    temporary = empty(2 * MIB)
    MemPool.current.segments[-1]["allocated_size"] = 0
del pool
pools.clear()
gc.collect()
pool = adapter.SleepPool("training")
tensors = fill(2)  # one lies where the temporary was
assert temporary in tensors and pool.info().size == 4 * MIB
pools.clear()
gc.collect()
pool.sleep()
pool.wake()
assert intact(tensors) and pool.info().size == 4 * MIB
''')

    def test_nested_uses_free_their_own(self):
        python(POOL + '''
with pool.use():
    first = empty(2 * MIB)
    with pool.use():
        second = empty(4 * MIB)
        MemPool.current.segments[-1]["allocated_size"] = 0
    assert pool.info().size == 2 * MIB
    third = empty(8 * MIB)
    MemPool.current.segments[-1]["allocated_size"] = 0
assert pool.info().size == 2 * MIB
try:
    with pool.use():
        empty(4 * MIB)
        MemPool.current.segments[-1]["allocated_size"] = 0
        raise KeyError("of the program")
except KeyError:
    pass
pool.sleep()
assert pool.info().size == 2 * MIB
''')

    def test_without_room_it_sleeps_on(self):
        python(POOL + '''
tensors = fill(4)
pool.sleep()
taken = c_uint64()
driver("cuMemAlloc_v2", byref(taken), c_size_t(free_bytes() - 3 * MIB))
try:
    pool.wake()
    raise AssertionError("there is no room")
except gpumem.OutOfDeviceMemory:
    pass
assert pool.info().awake_count == 0
driver("cuMemFree_v2", taken)
pool.wake()
assert intact(tensors)
''')

    def test_mistakes(self):
        python(POOL + '''
for tag in "", None, b"training", "a" * 64, "a\\n":
    try:
        adapter.SleepPool(tag)
        raise AssertionError(tag)
    except ValueError as problem:
        assert "1 to 63 bytes" in str(problem), problem
try:
    pool.sleep("silk")
    raise AssertionError("silk")
except ValueError:
    pass
adapter._installed = True
try:
    with pool.use():
        raise AssertionError("after install()")
except RuntimeError as problem:
    assert "install()" in str(problem), problem
''')
