# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""numpy arrays that other processes get without a copy."""

import os
import pickle
import signal
import unittest
from concurrent.futures import ProcessPoolExecutor

import gpumem

from .support import BACKEND, Case, needs_numpy, numpy, on_host, python
from .test_sharing import LIMIT, SharingCase, spawning


def pickled(array, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(array, protocol))


def address(array):
    return array.__array_interface__["data"][0]


# ---- what other processes do ----

def writer(row):
    """Adds 1 to what it gets, and returns that."""
    row += 1
    return row


class Late:
    """Is pickled as an array that its process has dropped by then."""

    def __init__(self, array):
        self.reduced = array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    def __reduce__(self):
        return self.reduced


def late():
    return Late(gpumem.shared_array(3))


def same(value):
    return value


def user(connection):
    """Uses an array whenever it is told to."""
    array = connection.recv()
    while (value := connection.recv()) is not None:
        array[0] += value
        connection.send(array[0])


def maker(connection, ending):
    array = gpumem.shared_array(3)
    array[:] = 7
    connection.send(array)
    connection.recv()
    if ending == "drop":
        array = None
    elif ending == "exit":
        os._exit(0)
    connection.send("dropped")
    connection.recv()


@needs_numpy
class SharedArrayTest(Case):
    def shared(self, *arguments, **options):
        return gpumem.shared_array(*arguments, device=self.device, **options)

    def test_it_is_a_numpy_array(self):
        for shape, dtype, order in ((7, "u1", "C"), ((3, 5), "float32", "F"), ((), "c16", "C"), ((2, 3, 4), "M8[ns]", "C"),
                                    (4, [("a", "i4"), ("b", "f8")], "C")):
            array, expected = self.shared(shape, dtype, order), numpy.zeros(shape, dtype, order)
            self.assertIsInstance(array, numpy.ndarray)
            self.assertEqual((array.dtype, array.shape, array.strides), (expected.dtype, expected.shape, expected.strides))
            self.assertEqual(array.tobytes(), expected.tobytes())
        array = self.shared(3, name="rows")
        self.assertEqual(array.dtype, float)
        self.assertEqual(repr(array), "shared_array([0., 0., 0.])")
        self.assertIn("rows", self.instance.report())
        array += 1
        self.assertEqual(repr(array), "shared_array([1., 1., 1.])")
        self.assertIs(numpy.add(array, 1, out=array), array)
        self.assertEqual([type(result) for result in (array + 1, array.sum(), array[0])],
                         [numpy.ndarray, numpy.float64, numpy.float64])
        info = self.instance.pointer_info(address(array))
        self.assertEqual((info.kind, info.location), (gpumem.Kind.VIRTUAL, gpumem.Location.HOST_NUMA))
        with self.device.memory(array.nbytes) as memory, self.device.stream() as stream:
            memory.copy_from(array, stream=stream)
            memory.copy_to(array[::-1][::-1], stream=stream)
            stream.synchronize()
        self.assertEqual(array.tolist(), [2, 2, 2])

    def test_it_is_pickled_without_a_copy(self):
        array = self.shared((4, 6), "i4")
        array[:] = numpy.arange(24).reshape(4, 6)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            same = pickled(array, protocol)
            self.assertLess(len(pickle.dumps(array[0], protocol)), 2000)
            same[0, 0] += 1
            self.assertEqual(array[0, 0], protocol + 1)
        again = pickled(same)  # by the handle that it came with
        again[0, 0] = 0
        self.assertEqual((array[0, 0], same[0, 0]), (0, 0))
        views = [array.T, array[1], array[::-1, 4:1:-2], array[2:2], array[3, 5:], array[..., None], array.view("f4"),
                 numpy.broadcast_to(array[1], (2, 6), subok=True), array[1:][1:][0].reshape(2, 3)]
        for view, same in zip(views, pickled(views)):
            self.assertEqual((view.dtype, view.shape, view.strides), (same.dtype, same.shape, same.strides))
            self.assertEqual(view.tobytes(), same.tobytes())
        array[:] = 7
        self.assertTrue(all((same == view).all() for view, same in zip(views, pickled(views))))
        # A copy and a result have no handle.
        for other in (array + 0, array.copy(), array[[0, 1]], numpy.asarray(array), array[0, 0], array.copy()[0]):
            same = pickled(other)
            array[:] = 9
            self.assertTrue((same == 7).all())
            self.assertNotIsInstance(same, gpumem._shared.SharedArray)
            array[:] = 7

    def test_read_only_views_stay_read_only(self):
        array = self.shared(5, "u1")
        view = array[1:]
        view.flags.writeable = False
        same = pickled(view)
        array[1] = 3
        self.assertEqual(same[0], 3)
        for found in (same, pickled(same)):
            with self.assertRaises(ValueError):
                found[0] = 1
            with self.assertRaises(ValueError):
                found.flags.writeable = True
        self.assertTrue(pickled(array).flags.writeable)

    def test_elements_that_are_arrays(self):
        table = gpumem.shared_array(3, "(2,)f4", device=self.device)
        self.assertEqual((table.shape, table.dtype, table.any()), ((3, 2), numpy.float32, False))
        del table

    def test_without_elements(self):
        for shape in (0, (3, 0, 4)):
            same = pickled(self.shared(shape, "f4"))
            self.assertEqual((same.shape, same.dtype), (numpy.empty(shape).shape, numpy.float32))

    def test_what_is_refused(self):
        for shape, dtype, error in ((3, object, TypeError), (3, [("a", "O")], TypeError), ("3", "f4", TypeError),
                                    (-1, "f4", gpumem.InvalidArgument), (1 << 62, "f8", gpumem.InvalidArgument),
                                    ((1 << 40, 1 << 40), "u1", gpumem.InvalidArgument),
                                    (1 << 60, "u1", gpumem.OutOfAddressSpace)):
            with self.subTest(shape=shape, dtype=dtype), self.assertRaises(error):
                self.shared(shape, dtype)
        with self.assertRaisesRegex(gpumem.InvalidArgument, "order"):
            self.shared(3, "f4", "A")

    @on_host
    def test_where_it_cannot_be_shared(self):
        for masked in ("vmm", "sharing"):
            with gpumem.Instance("host", host=gpumem.HostOptions(masked=masked)) as instance:
                with self.assertRaisesRegex(gpumem.Unsupported, r"; use multiprocessing.shared_memory, and Device.register\(\)"):
                    gpumem.shared_array(3, device=instance.device(0))
                self.assertEqual(instance.stats().live_objects, 0)

    def test_a_handle_keeps_nothing(self):
        array = self.shared(3)
        data = pickle.dumps(array)
        del array
        with self.assertRaisesRegex(gpumem.StaleHandle, "keep the array there"):
            pickle.loads(data)


@needs_numpy
class ProcessTest(SharingCase):
    def shared(self, *arguments):
        return gpumem.shared_array(*arguments, device=self.device)

    def test_a_pool(self):
        array = self.shared((4, 1000), "float32")
        with spawning.Pool(2) as pool:
            for row in pool.map(writer, array):
                row += 1
        self.assertTrue((array == 2).all())

    def test_a_pool_that_is_too_late(self):
        """A Pool waits for ever if unpickling raises, in a worker or for a result. So the use of the array does."""
        uses = (lambda array: array[0], lambda array: array.sum(), lambda array: array + 1, lambda array: 1 | array, len, list, bool,
                lambda array: array == 1, lambda array: array.__setitem__(0, 1), numpy.asarray, lambda array: numpy.add(1, array),
                numpy.sum, lambda array: array.anything)
        with spawning.Pool(1) as pool:
            with self.assertRaisesRegex(gpumem.StaleHandle, "keep the array there"):
                pool.apply_async(writer, (Late(self.shared(3)),)).get(LIMIT)
            for function, arguments in ((late, ()), (same, (Late(self.shared(3)),))):
                lost = pool.apply_async(function, arguments).get(LIMIT)
                self.assertRegex(repr(lost), "keep the array there")
                for use in uses:
                    with self.assertRaisesRegex((gpumem.PeerGone, gpumem.StaleHandle), "keep the array there"):
                        use(lost)
            self.assertEqual(pool.apply_async(same, (5,)).get(LIMIT), 5)
            # What a task unpickles itself raises at once.
            with self.assertRaisesRegex(gpumem.StaleHandle, "keep the array there"):
                pool.apply_async(pickle.loads, (pickle.dumps(Late(self.shared(3))),)).get(LIMIT)

    def test_an_executor_that_is_too_late(self):
        """It can do no more once unpickling has raised."""
        with ProcessPoolExecutor(1, mp_context=spawning) as executor:
            with self.assertRaisesRegex(gpumem.StaleHandle, "keep the array there"):
                executor.submit(writer, Late(self.shared(3))).result(LIMIT)
            with self.assertRaisesRegex(gpumem.StaleHandle, "keep the array there"):
                executor.submit(late).result(LIMIT).sum()
            self.assertEqual(executor.submit(same, 5).result(LIMIT), 5)

    def test_a_worker_keeps_what_its_maker_has_dropped(self):
        _, connection = self.start(user)
        array = self.shared(3)
        array[0] = 40
        connection.send(array)
        connection.send(1)
        self.assertEqual(self.heard(connection), 41)
        self.assertEqual(array[0], 41)
        del array
        self.assertEqual(self.instance.stats().live_objects, 0)
        connection.send(1)
        self.assertEqual(self.heard(connection), 42)
        connection.send(None)

    def test_a_worker_that_dies(self):
        process, connection = self.start(user)
        array = self.shared(3)
        connection.send(array)
        connection.send(5)
        self.assertEqual(self.heard(connection), 5)
        process.kill()
        process.join()
        array += 1
        self.assertEqual(array.tolist(), [6, 1, 1])
        process, connection = self.start(user)
        connection.send(array)
        connection.send(5)
        self.assertEqual(self.heard(connection), 11)
        connection.send(None)

    def test_a_maker_that_ends(self):
        for ending in ("exit", "drop"):
            process, connection = self.start(maker, ending)
            self.assertTrue(connection.poll(LIMIT))
            data = connection.recv_bytes()
            array = pickle.loads(data)
            connection.send("end")
            if ending == "exit":
                process.join(LIMIT)
            else:
                self.assertEqual(self.heard(connection), "dropped")
            array += 1
            self.assertEqual(array.tolist(), [8, 8, 8])
            del array
            with self.assertRaisesRegex((gpumem.PeerGone, gpumem.StaleHandle), "keep the array there"):
                pickle.loads(data)
            if ending == "drop":
                connection.send("end")

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_fork(self):
        """What is pickled to a forked child arrives, if the driver survives the fork. What it inherits is not there."""
        answers = python("""
import multiprocessing, gpumem
forking = multiprocessing.get_context("fork")

def attach(connection):
    try:
        array = connection.recv()
        array[0] = 7
        connection.send("written")
    except gpumem.Forked as problem:
        connection.send(problem.message)

def touch(array):
    array[0] = 8

array = gpumem.shared_array(3)
ours, theirs = forking.Pipe()
child = forking.Process(target=attach, args=(theirs,))
child.start()
ours.send(array)
print(ours.recv())
child.join()
print(array[0])
child = forking.Process(target=touch, args=(array,))
child.start()
child.join()
print(child.exitcode, array[0] == 8)
with forking.Pool(1) as pool:
    try:
        print(pool.map_async(sum, [array[1:]]).get(60))
    except gpumem.Forked as problem:
        print(problem.message)
""")[1].splitlines()
        arrives = BACKEND == "host"
        self.assertRegex(answers[0], "^written$" if arrives else "the start method \"spawn\"")
        self.assertEqual(answers[1:3], ["7.0" if arrives else "0.0", f"{-signal.SIGSEGV} False"])
        self.assertRegex(answers[3], r"^\[(np.float64\()?0\.0\)?\]$" if arrives else "the start method \"spawn\"")


class WithoutNumpyTest(unittest.TestCase):
    def test_it_says_what_it_needs(self):
        status, _, said = python("import sys, gpumem\nsys.modules['numpy'] = None\ngpumem.shared_array(3)", check=False)
        self.assertEqual((status, said.splitlines()[-1]), (1, "ImportError: shared_array() needs numpy"))


if __name__ == "__main__":
    unittest.main()
