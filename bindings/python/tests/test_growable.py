# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Arrays that grow in place."""

import array
import copy
import decimal
import fractions
import gc
import pickle
import sys
from unittest import mock

import gpumem
from gpumem import _waits, host

from .support import Case, needs_numpy, numpy, on_host


class GrowableCase(Case):
    def setUp(self):
        super().setUp()
        self.unit = self.device.physical_granularity("host").minimum

    def growable(self, shape=0, dtype="i4", *, reserve=None, **options):
        if reserve is None:
            reserve = 8 * self.unit // 4
        return gpumem.GrowableArray(shape, dtype, device=self.device, reserve=reserve, **options)


class GrowableTest(GrowableCase):
    """Works with numpy and without."""

    def test_it_grows(self):
        with self.growable(name="log") as rows:
            self.assertEqual((len(rows), rows.shape, rows.nbytes, rows.closed), (0, (0,), 0, False))
            base = rows.buffer.base
            for number in range(10):
                rows.append(number * number)
            rows.extend(range(3))
            rows.extend(array.array("i", (7, 8)))
            rows.extend(number for number in (5, 6))
            rows.extend(())
            self.assertEqual((rows.shape, rows.nbytes, rows.buffer.base), ((17,), 68, base))
            self.assertEqual(list(rows.view()), [*(number * number for number in range(10)), 0, 1, 2, 7, 8, 5, 6])
            self.assertRegex(repr(rows), r"^<gpumem.GrowableArray: <i4 rows of shape \(\) in <gpumem.Buffer 'log': 68 bytes, host>>$")
        self.assertTrue(rows.closed)
        with self.assertRaises(gpumem.StaleHandle):
            rows.view()

    def test_a_view_stays_where_it_is(self):
        with self.growable(2) as rows:
            view = rows.view()
            rows.extend([4] * (2 * self.unit // 4))  # over seams
            view[1] = 9
            later = rows.view()
            self.assertEqual((len(view), len(later), view.address, later[1], later[2], later[-1]),
                             (2, 2 * self.unit // 4 + 2, later.address, 9, 4, 4))
            for call in (lambda: rows.resize(1), rows.close, rows.buffer.sleep):
                with self.assertRaisesRegex(BufferError, "views of it are alive"):
                    call()
            self.assertEqual((later[1], later[-1]), (9, 4))
            del view, later
            rows.resize(2)
            self.assertEqual((list(rows.view()), rows.buffer.capacity), ([0, 9], self.unit))

    def test_new_rows_are_zero(self):
        with self.growable(3) as rows:
            self.assertEqual(list(rows.view()), [0, 0, 0])
            rows.extend([1, 2, 3])
            rows.resize(4)
            rows.resize(6)
            rows.resize(6)
            self.assertEqual(list(rows.view()), [0, 0, 0, 1, 0, 0])
            rows.resize(0)
            self.assertEqual(len(rows), 0)

    def test_rows(self):
        with self.growable((1, 2, 2), "u1") as rows:
            rows.append(memoryview(b"abcd").cast("B", (2, 2)))
            self.assertEqual(rows.shape, (2, 2, 2))
            self.assertEqual(bytes(rows.buffer.buffer()), b"\0\0\0\0abcd")
            for wrong in (memoryview(b"abc"), memoryview(b"abcde")):
                with self.assertRaises(gpumem.InvalidArgument):
                    rows.append(wrong)
            self.assertEqual(rows.shape, (2, 2, 2))

    def test_rows_without_numpy(self):
        with self.growable((1, 2), "u1") as rows, mock.patch.dict(sys.modules, {"numpy": None}):
            rows.append(b"ab")
            with self.assertRaisesRegex(TypeError, "^without numpy a row is a buffer with its bytes"):
                rows.append([1, 2])
            self.assertEqual(bytes(rows.buffer.buffer()), b"\0\0ab")
            self.assertEqual((rows[1, 0], bytes(rows[1].buffer()), [len(row) for row in rows]), (97, b"ab", [2, 2]))
            rows[0, 1] = 98
            self.assertEqual(bytes(rows.buffer.buffer()), b"\0bab")

    def test_truth_without_numpy(self):
        with self.growable(1, "bool") as rows, mock.patch.dict(sys.modules, {"numpy": None}):
            for wrong in ("x", 2, None):
                with self.assertRaises(TypeError):
                    rows.append(wrong)
            rows.append(True)
            self.assertEqual(list(rows.view()), [False, True])

    def test_integers_that_do_not_fit_without_numpy(self):
        with self.growable(1, "u1") as rows, mock.patch.dict(sys.modules, {"numpy": None}):
            for big in (256, -1, 1 << 70):
                with self.assertRaisesRegex(OverflowError, "does not fit into the type"):
                    rows.append(big)
            self.assertEqual(list(rows.view()), [0])

    def test_wrong(self):
        with self.growable(1) as rows:
            for wrong in ("x", None, [1, 2]):
                with self.assertRaises((TypeError, ValueError)):
                    rows.append(wrong)
            for wrong in (3, [1, "x"], [[1]], None):
                with self.assertRaises((TypeError, ValueError)):
                    rows.extend(wrong)
            for error, wrong in ((gpumem.InvalidArgument, -1), (gpumem.OutOfAddressSpace, rows.buffer.reserved_size),
                                 (gpumem.OutOfAddressSpace, 1 << 62), (TypeError, 1.5), (TypeError, None)):
                with self.assertRaises(error):
                    rows.resize(wrong)
            self.assertEqual((list(rows.view()), rows.buffer._holds), ([0], set()))
        for error, shape, options in ((gpumem.InvalidArgument, (), {}), (gpumem.InvalidArgument, (2, 0), {}),
                                      (gpumem.InvalidArgument, -1, {}), (TypeError, "x", {}), (TypeError, 1.5, {}),
                                      (gpumem.InvalidArgument, 1, {"location": "device"}),
                                      (gpumem.InvalidArgument, 1, {"location": self.device}),
                                      (gpumem.InvalidArgument, 1, {"location": "banana"}),
                                      (gpumem.InvalidArgument, 1, {"reserve": -1}), (gpumem.InvalidArgument, 1, {"reserve": 1 << 62})):
            with self.assertRaises(error):
                self.growable(shape, **options)
        with self.assertRaises(TypeError):
            self.growable(1, "no type")
        for act in (copy.copy, pickle.dumps):
            with self.growable(1) as rows, self.assertRaises(TypeError):
                act(rows)

    def test_it_grows_no_further_than_was_said(self):
        """Of the addresses of the buffer there are more."""
        with self.growable(reserve=5) as rows:
            rows.resize(5)
            for call in (lambda: rows.append(6), lambda: rows.resize(6), lambda: rows.reserve(6)):
                with self.assertRaisesRegex(gpumem.OutOfAddressSpace, "^the array has addresses for 5 rows, but 6 are needed"):
                    call()
            self.assertEqual(len(rows), 5)
        with self.assertRaisesRegex(gpumem.InvalidArgument, "^reserve is 5 rows, which is less than the 10 of the shape"):
            self.growable(10, reserve=5)

    def test_it_grows_up_to_its_reservation(self):
        with self.growable(reserve=2 * self.unit // 4) as rows:
            most = rows.buffer.reserved_size // 4
            rows.resize(most - 1)
            rows.append(5)
            # In rows, and without advice about flags, which only a buffer takes.
            said = f"^the array has addresses for {most} rows, but {most + 1} are needed; make it with a larger reserve$"
            for call in (lambda: rows.append(6), lambda: rows.resize(most + 1), lambda: rows.reserve(most + 1)):
                with self.assertRaisesRegex(gpumem.OutOfAddressSpace, said):
                    call()
            self.assertEqual((len(rows), rows.view()[-1], rows.buffer.capacity), (most, 5, rows.buffer.reserved_size))

    def test_memory_ahead(self):
        with self.growable(reserve=64 * self.unit // 4) as rows:
            rows.reserve(3 * self.unit // 4)
            self.assertEqual((len(rows), rows.buffer.capacity), (0, 3 * self.unit))
            rows.resize(3 * self.unit // 4)
            self.assertEqual(rows.buffer.info().block_count, 1)
            rows.reserve(0)  # no more than the rows need
            self.assertEqual(rows.buffer.capacity, 3 * self.unit)
            rows.reserve(32 * self.unit // 4)
            rows.resize(32 * self.unit // 4)
            rows.append(1)
            self.assertEqual(rows.buffer.capacity, 36 * self.unit)  # an eighth more

    def test_sleep(self):
        with self.instance.group() as group, self.growable(2, group=group, tag="cache") as rows:
            rows.append(7)
            group.sleep("pageable", tag="cache")
            self.assertEqual(len(rows), 3)
            for call in (rows.view, lambda: rows.append(1), lambda: rows.resize(9), lambda: rows.resize(1)):
                with self.assertRaises(gpumem.InvalidState):
                    call()
            group.wake()
            rows.append(8)
            self.assertEqual(list(rows.view()), [0, 0, 7, 8])

    def test_operands(self):
        with self.device.memory(12) as memory, self.growable(3) as rows, self.device.stream() as stream:
            memory.fill(1, value_size=4)
            stream.copy(rows, memory)
            rows.append(9)  # meanwhile
            stream.synchronize()
            self.assertEqual(list(rows.view()), [1, 1, 1, 9])
            self.assertEqual(self.instance.pointer_access(rows.buffer, self.device), gpumem.Access.READWRITE)

    def test_what_the_cpu_may_not_write(self):
        with self.growable(2, accesses={self.device: "readwrite", "host": "readwrite"}) as rows:
            rows.buffer.set_access({"host": "read"})
            for call in (lambda: rows.append(1), lambda: rows.resize(3)):
                with self.assertRaisesRegex(gpumem.InvalidArgument, "may only read"):
                    call()
            rows.buffer.set_access({"host": "none"})
            for call in (lambda: rows.append(1), lambda: rows.resize(3)):
                with self.assertRaises(BufferError):
                    call()
            self.assertEqual(len(rows), 2)
        with self.assertRaises(gpumem.InvalidArgument):
            self.growable(2, accesses={"host": "read"})
        gc.collect()
        with self.growable(0, accesses={"host": "read"}) as rows, self.assertRaises(gpumem.InvalidArgument):
            rows.append(1)

    @on_host
    def test_failing_steps(self):
        """A call that fails leaves the rows as they were."""
        failed = 0
        with self.growable(1, reserve=64 * self.unit // 4) as rows:
            data = array.array("i", bytes(2 * self.unit))  # more than an eighth, so that it is made in one call
            for step in range(1, 7):
                before, data[-1] = len(rows), step
                host.fail_step(self.instance, step)
                try:
                    rows.extend(data)
                except gpumem.Error:
                    failed += 1
                    self.assertEqual(len(rows), before)
                else:
                    self.assertEqual((len(rows), rows.view()[-1]), (before + len(data), step))
                host.fail_step(self.instance, 0)
        self.assertGreater(failed, 0)

    def test_forgotten(self):
        view = self.growable(3).view()
        gc.collect()
        view[0] = 1
        self.assertEqual(view[0], 1)
        del view
        gc.collect()
        self.assertEqual(self.instance.report(), "nothing lives")


@needs_numpy
class NumpyTest(GrowableCase):
    def test_items(self):
        with self.growable((0, 2), "f4") as rows, self.growable(2, None) as bytes_:
            rows.extend([(1, 2), (3, 4), (5, 6)])
            self.assertEqual((rows.dtype, bytes_.dtype), (numpy.float32, numpy.uint8))
            self.assertEqual((rows[1, 0], rows[-1].tolist(), rows[:2].tolist()), (3, [5, 6], [[1, 2], [3, 4]]))
            self.assertEqual(sum(row.sum() for row in rows), 21)
            rows[0] = 7
            rows[rows[:, 1] > 5, 1] = 0
            self.assertEqual(rows.array.tolist(), [[7, 0], [3, 4], [5, 0]])
            with self.assertRaises(IndexError):
                rows[3]
            part = rows[1:]
            with self.assertRaises(BufferError):
                rows.resize(2)
            del part
            rows.extend(rows)
            self.assertEqual(len(rows), 6)

    def test_array(self):
        with self.growable((0, 3), "f4") as rows:
            early = rows.array
            self.assertEqual((early.shape, early.dtype), ((0, 3), numpy.float32))
            rows.append([1, 2, 3])
            first = rows.array
            rows.extend(numpy.arange(3 * (self.unit // 12 + 5)).reshape(-1, 3))  # over a seam
            rows.extend([(4, 5, 6)])
            rows.extend(iter([(7, 8, 9)]))
            rows.extend(numpy.empty((0, 3)))
            rows.extend([])
            last = rows.array
            self.assertEqual(first.__array_interface__["data"], last.__array_interface__["data"])
            first[0, 1] = 20
            self.assertEqual((last[0].tolist(), last[-1].tolist(), last[-2].tolist()), ([1, 20, 3], [7, 8, 9], [4, 5, 6]))
            self.assertEqual(last[2].tolist(), [3, 4, 5])
            self.assertEqual(numpy.asarray(rows).shape, rows.shape)
            self.assertTrue(numpy.shares_memory(numpy.asarray(rows), first))
            with self.assertRaises(BufferError):
                rows.resize(1)
            del early, first, last
            rows.resize(1)
            self.assertEqual(rows.array.tolist(), [[1, 20, 3]])

    def test_wrong(self):
        with self.growable((1, 3), "f4") as rows:
            kept = rows.array
            for wrong in ([1, 2], 1, [[1, 2, 3]], ["x", 1, 2], [1, 2, 3, 4]):
                with self.assertRaises(TypeError if "x" in str(wrong) else ValueError):
                    rows.append(wrong)
            for wrong in ([1, 2, 3], [[1, 2]], numpy.zeros((2, 4)), 7, [[[1, 2, 3]]], [[1, 2, 3], [1]]):
                with self.assertRaises((ValueError, TypeError)):
                    rows.extend(wrong)
            self.assertEqual((rows.shape, kept.tolist()), ((1, 3), [[0, 0, 0]]))
            del kept

    def test_casts(self):
        """As numpy's "same_kind", but Python's integers only have to fit."""
        with self.growable(0, "i4") as numbers, self.growable(0, "u1") as bytes_, self.growable(0, "f4") as floats:
            for good in (True, 2, numpy.int64(3), numpy.uint8(4)):
                numbers.append(good)
            numbers.extend(numpy.arange(5, 7))
            self.assertEqual(numbers.array.tolist(), [1, 2, 3, 4, 5, 6])
            for wrong in (1.5, 1j, numpy.float32(1), numpy.array(1.5)):
                with self.assertRaises(TypeError):
                    numbers.append(wrong)
            with self.growable((0, 2), "i4") as pairs:
                for add, wrong in ((pairs.append, numpy.zeros(2, "f4")), (pairs.extend, numpy.zeros((1, 2), "f4"))):
                    with self.assertRaisesRegex(TypeError, "^rows of type float32 are not cast to int32"):
                        add(wrong)
            for rows in ([1, 2.5], numpy.arange(3.0), array.array("d", [1])):
                with self.assertRaises(TypeError):
                    numbers.extend(rows)
            self.assertEqual(len(numbers), 6)
            bytes_.extend([255, 0])
            bytes_.append(numpy.int64(1))
            bytes_.extend(array.array("i", [2]))
            floats.extend([1, 2.5])
            floats.append(numpy.float64(0.1))
            self.assertEqual((bytes_.array.tolist(), floats.array[:2].tolist()), ([255, 0, 1, 2], [1, 2.5]))

    def test_values_of_another_kind(self):
        """Whatever numpy would need an unsafe cast for."""
        half = fractions.Fraction(3, 2)
        for dtype, wrong in (("u1", ("300", "7", b"7", None, half, decimal.Decimal("1.5"), numpy.datetime64("2020-01-01"))),
                             ("f4", ("1.5", b"1", None, half, 1j)), ("?", ("x", 2, 1.5, None)), ("S3", ("abc", None)),
                             ("M8[s]", ("2020-01-01", 1.5)), ("c8", ("1j",))):
            with self.growable(1, dtype) as rows:
                for value in wrong:
                    for given in ([value], numpy.array([value]), numpy.array([value], object), iter([value])):
                        with self.subTest(dtype=dtype, given=given), self.assertRaises(TypeError):
                            rows.extend(given)
                self.assertEqual(len(rows), 1)
        with self.growable(0, "i4") as rows, self.growable(0, "f4") as floats:
            for given in ([1.5, 2], [2, 1.5], [1 << 70, 0.5]):
                with self.assertRaises(TypeError):
                    rows.extend(numpy.array(given, object))
                floats.extend(numpy.array(given, object))
            rows.extend(numpy.array([1, True, numpy.int8(3)], object))
            self.assertEqual((rows.array.tolist(), floats.array[:2].tolist()), ([1, 1, 3], [1.5, 2]))
            with self.assertRaises(OverflowError):
                rows.extend(numpy.array([1 << 40], object))

    def test_values_of_fields(self):
        inner = [("small", "u1"), ("place", "(2,)i2")]
        with self.growable(0, [("id", "i4"), ("inner", inner)]) as rows:
            for error, row in ((OverflowError, (1 << 40, (1, [1, 2]))), (OverflowError, (1, (300, [1, 2]))),
                               (OverflowError, (1, (1, [1, 1 << 20]))), (TypeError, (1.9, (1, [1, 2]))), (TypeError, ("1", (1, [1, 2]))),
                               (TypeError, (1, (1, [1, 2.5]))), (TypeError, (None, (1, [1, 2])))):
                with self.subTest(row=row), self.assertRaises(error):
                    rows.append(row)
            for error, types, row in ((OverflowError, ("i8", "i8", "(2,)i8"), (1, (300, [1, 2]))),
                                      (TypeError, ("f8", "u1", "(2,)i2"), (1.9, (1, [1, 2]))),
                                      (TypeError, ("i4", "U3", "(2,)i2"), (1, ("1", [1, 2])))):
                given = numpy.array([row], [("a", types[0]), ("b", [("c", types[1]), ("d", types[2])])])
                for one in (lambda: rows.extend(given), lambda: rows.append(given[0]), lambda: rows.extend([given[0]])):
                    with self.subTest(given=given), self.assertRaises(error):
                        one()
            good = numpy.array([(1, (2, [3, 4]))], [("a", "i8"), ("b", [("c", "i8"), ("d", "(2,)i8")])])
            rows.extend(good)
            rows.append(good[0])
            rows.append((1, (2, [3, 4])))
            self.assertEqual([row[1][1].tolist() for row in rows.array.tolist()], [[3, 4]] * 3)
            for wrong in ([(1,)], numpy.zeros(1, [("id", "i4")])):
                with self.subTest(wrong=wrong), self.assertRaises((TypeError, ValueError)):
                    rows.extend(wrong)
            self.assertEqual(len(rows), 3)

    def test_integers_that_do_not_fit(self):
        for dtype in ("u1", "i4", "i8", "u8"):
            info = numpy.iinfo(dtype)
            with self.growable(0, dtype) as rows:
                rows.extend([info.min, info.max])
                for big in (info.min - 1, info.max + 1, -(1 << 63), 1 << 63, 1 << 70):
                    if info.min <= big <= info.max:
                        continue
                    given = [[big], [0, big], (0, -1, big), iter([big])]
                    for other in ("i8", "u8"):
                        if numpy.iinfo(other).min <= big <= numpy.iinfo(other).max:
                            exact = numpy.array([big], other)
                            given += [exact, [exact[0]], exact.tolist(), memoryview(exact)]
                            given.append(array.array("q" if other == "i8" else "Q", [big]))
                    for values in given:
                        with self.subTest(dtype=dtype, values=values), self.assertRaises(OverflowError):
                            rows.extend(values)
                    with self.subTest(dtype=dtype, big=big), self.assertRaises(OverflowError):
                        rows.append(big)
                self.assertEqual(rows.array.tolist(), [info.min, info.max])
        with self.growable((0, 2), "i4") as rows:
            for wrong in ([1, 1 << 40], numpy.array([1, 1 << 40])):
                with self.assertRaises(OverflowError):
                    rows.append(wrong)
            self.assertEqual(len(rows), 0)

    def test_many_rows(self):
        """They are written in pieces, so that Ctrl-C is answered."""
        count = _waits.LARGE // 4
        with self.growable(0, reserve=4 * count) as rows:
            rows.extend(numpy.arange(2 * count, dtype="i4")[::2])  # with gaps
            rows.resize(2 * count)
            self.assertEqual((rows.array[[0, 1, count - 1, count, -1]].tolist()), [0, 2, 2 * (count - 1), 0, 0])
            self.assertEqual(rows.buffer._holds, set())
            rows.resize(0)
            rows.resize(count)
            self.assertFalse(rows.array.any())

    def test_types(self):
        record = numpy.dtype([("id", "i4"), ("weight", "f8")])
        with self.growable(0, record) as records, self.growable(0, "complex64") as numbers, self.growable(0, "u1") as bytes_:
            records.append((1, 2.5))
            records.extend(numpy.array([(2, 3.5)], record))
            self.assertEqual(records.array["weight"].tolist(), [2.5, 3.5])
            numbers.append(1 + 2j)
            self.assertEqual(numbers.array.tolist(), [1 + 2j])
            bytes_.extend(b"ab")
            bytes_.extend(bytearray(b"c"))
            self.assertEqual(bytes_.array.tobytes(), b"abc")
        with self.growable((1, 2), "(3,)f4") as blocks, self.growable(1, [("pair", "(2,)i2")]) as pairs:
            blocks.append([[1, 2, 3], [4, 5, 6]])
            self.assertEqual((blocks.shape, blocks.array.sum()), ((2, 2, 3), 21))
            pairs.append(([1, 2],))
            pairs.extend(pairs.array)
            self.assertEqual(pairs.array["pair"].tolist(), [[0, 0], [1, 2], [0, 0], [1, 2]])
        with self.assertRaises(TypeError):
            self.growable(0, object)
