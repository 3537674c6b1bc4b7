# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Copies between files and memory."""

import os
import tempfile
import threading
import unittest

import gpumem

from .support import Case

MIB = 1 << 20


class FilesTest(Case):
    def setUp(self):
        super().setUp()
        self.file = tempfile.TemporaryFile(buffering=0)
        self.addCleanup(self.file.close)

    def test_there_and_back(self):
        sent = os.urandom(9 * MIB + 5)
        self.file.write(b"head" + sent + b"tail")
        with self.device.memory(len(sent)) as memory:
            self.assertEqual(self.instance.read_file(memory, self.file, 4), (len(sent), 0))
            back = bytearray(len(sent))
            memory.copy_to(back)
            self.assertEqual(back, sent)
            self.file.seek(7)
            copied = self.instance.write_file(self.file.fileno(), memory, len(sent) + 8, direct=True)
            self.assertEqual(copied.size, len(sent))
            self.assertLessEqual(copied.direct, copied.size)
            self.assertEqual(self.file.tell(), 7)
            self.assertEqual(os.pread(self.file.fileno(), len(sent), len(sent) + 8), sent)

    def test_parts(self):
        self.file.write(b"0123456789")
        ours = bytearray(b"abcdef")
        self.assertEqual(self.instance.read_file(ours, self.file, 2, 3).size, 3)
        self.assertEqual(ours, b"234def")
        with self.device.memory(16) as memory:
            self.instance.fill(memory, value=ord("x"))
            self.instance.write_file(self.file, memory.view(shape=2, offset=4), 8)
        self.assertEqual(os.pread(self.file.fileno(), 20, 0), b"01234567xx")
        self.assertEqual(self.instance.read_file(None, -1, size=0), (0, 0))

    def test_progress_that_changes_the_buffer(self):
        """The copy waits for the function, so the function must not wait for the copy, nor another thread in its place."""
        refused = []

        def change():
            for call in (buffer.sleep, lambda: buffer.sleep(idle=True), lambda: buffer.resize(unit), buffer.close):
                with self.assertRaisesRegex(BufferError, "while a call copies or fills it"):
                    call()
                refused.append(call)

        def progress(done, total):
            change()
            thread = threading.Thread(target=change)
            thread.start()
            thread.join()
        unit = self.device.physical_granularity().recommended
        self.file.truncate(2 * unit)
        with self.device.buffer(2 * unit) as buffer:
            self.instance.read_file(buffer, self.file, progress=progress)
        self.assertEqual((len(refused) % 8, len(refused) > 0), (0, True))

    def test_progress(self):
        self.file.truncate(70 * MIB)
        told = []
        self.instance.read_file(bytearray(70 * MIB), self.file, progress=lambda *numbers: told.append(numbers))
        self.assertEqual((told[0], told[-1]), ((0, 70 * MIB), (70 * MIB, 70 * MIB)))

        def stop(done, total):
            raise KeyError(done)
        with self.assertRaises(KeyError):
            self.instance.read_file(bytearray(5), self.file, progress=stop)

        def cancel(done, total):
            raise gpumem.Cancelled("enough")
        with self.assertRaisesRegex(gpumem.Cancelled, "enough"):
            self.instance.write_file(self.file, bytes(5), progress=cancel)

    def test_copied_before_a_failure(self):
        size, cut = 6 * MIB, 5 * MIB + 5
        sent = os.urandom(size)
        self.file.write(sent)
        with self.device.memory(size) as memory:
            self.instance.fill(memory, value=0)
            with self.assertRaises(gpumem.InvalidState) as caught:
                self.instance.read_file(memory, self.file, progress=lambda done, total: self.file.truncate(cut))
            copied = caught.exception.copied
            self.assertTrue(0 < copied <= cut, copied)
            back = bytearray(size)
            memory.copy_to(back)
            self.assertEqual(back[:copied], sent[:copied])
            self.assertEqual(self.instance.read_file(memory, self.file, copied, cut - copied).size, cut - copied)

            def cancel(done, total):
                raise gpumem.Cancelled("enough")
            with self.assertRaises(gpumem.Cancelled) as caught:
                self.instance.write_file(self.file, memory, progress=cancel)
            self.assertEqual(caught.exception.copied, 0)
            with self.assertRaises(gpumem.InvalidArgument) as caught:
                self.instance.fill(memory, 0, size + 1)
            self.assertIsNone(caught.exception.copied)

    def test_refused(self):
        self.file.write(b"short")
        with self.assertRaisesRegex(gpumem.InvalidArgument, "has 5 bytes"):
            self.instance.read_file(bytearray(6), self.file)
        with self.assertRaisesRegex(gpumem.InvalidArgument, "not open"):
            self.instance.read_file(bytearray(6), 12345)
        ends = os.pipe()
        for end in ends:
            self.addCleanup(os.close, end)
        with self.assertRaisesRegex(gpumem.InvalidArgument, "a pipe"):
            self.instance.read_file(bytearray(6), ends[0])
        with self.assertRaisesRegex(gpumem.InvalidArgument, "read-only"):
            self.instance.read_file(b"constant", self.file)
        with self.assertRaises(gpumem.InvalidArgument):
            self.instance.read_file(bytearray(3), self.file, size=4)
        with self.assertRaisesRegex(TypeError, "size"):
            self.instance.read_file(4096, self.file)
        for path in ("file", b"file", None, 1.5):
            with self.assertRaisesRegex(TypeError, "^file must be a file object or a descriptor, not a "):
                self.instance.read_file(bytearray(3), path)
            with self.assertRaisesRegex(TypeError, "^file must be a file object or a descriptor, not a "):
                self.instance.write_file(path, bytes(3))
        with self.assertRaises(TypeError):
            self.instance.read_file("file", self.file)
        for number in (-1, 1 << 32, -1 << 40):  # none is cut to a descriptor that is open
            with self.assertRaises(gpumem.InvalidArgument):
                self.instance.read_file(bytearray(3), number)
        with open(os.devnull, "rb") as null, self.assertRaisesRegex(gpumem.InvalidArgument, "character device"):
            self.instance.read_file(bytearray(3), null)


if __name__ == "__main__":
    unittest.main()
