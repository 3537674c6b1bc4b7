# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the tests share: an instance of the backend under test, which must be empty again at the end of each test."""

import gc
import itertools
import os
import subprocess
import sys
import unittest
from pathlib import Path

import gpumem

try:
    import numpy
except ImportError:
    numpy = None

BACKEND = os.environ.get("GPUMEM_TEST_BACKEND", "host")
needs_numpy = unittest.skipIf(numpy is None, "numpy is not there")
on_host = unittest.skipIf(BACKEND != "host", "only the host backend has it")
on_cuda = unittest.skipIf(BACKEND != "cuda", "only the cuda backend has it")
PACKAGE = Path(gpumem.__file__).resolve().parents[1]


class Case(unittest.TestCase):
    """A test with an instance of its own, of which nothing may live at the end."""

    options = {}

    def setUp(self):
        self.instance = gpumem.Instance(BACKEND, **self.options)
        self.device = self.instance.device(0)
        # What goes to stderr by no caller's will is a failure.
        self.unraisable = []
        self.hook, sys.unraisablehook = sys.unraisablehook, self.unraisable.append

    def tearDown(self):
        gc.collect()
        sys.unraisablehook = self.hook
        self.assertEqual(self.unraisable, [])
        if not self.instance.closed:
            self.assertEqual(self.instance.report(), "nothing lives")
            self.instance.close()

    def pinned(self, size=4096, **options):
        return self.device.memory(size, gpumem.Kind.PINNED, **options)

    def held_stream(self):
        """A stream that waits until `release` is called."""
        flag = self.pinned(4)
        flag.buffer()[:] = bytes(4)
        stream = self.device.stream()
        stream.wait_value(flag, 1, condition=gpumem.WaitCondition.GEQ)

        def let_go():  # also after a failure, so that nothing waits for ever
            try:
                flag.buffer()[0] = 1
            except gpumem.Error:
                pass
        self.addCleanup(let_go)

        def release():
            flag.buffer()[0] = 1
            try:
                stream.synchronize()
            except gpumem.StaleHandle:
                pass  # another thread has closed it by now, which waits as well
            flag.close()
        return stream, release


def at_each_line(make, function, other):
    """Calls a function with what is made, and the other one at a line of it, as another thread may. Returns after the last line."""
    path = os.path.dirname(gpumem.__file__)
    for limit in itertools.count(1):
        made, lines = make(), itertools.count(1)

        def trace(frame, event, _):
            if not frame.f_code.co_filename.startswith(path):
                return None
            if event == "line" and next(lines) == limit:
                sys.settrace(None)
                other(made)
            return trace
        former = sys.gettrace()
        sys.settrace(trace)
        try:
            function(made)
        finally:
            sys.settrace(former)
        yield made
        if next(lines) <= limit:
            return


def python(code, *, check=True, **environment):
    """Runs a program in another interpreter, with warnings as errors, and returns (exit status, stdout, stderr)."""
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], text=True, capture_output=True,
                            env={name: value for name, value in variables.items() if value is not None}, check=False,
                            timeout=120)
    if check and (result.returncode or result.stderr):
        raise AssertionError(f"exit status {result.returncode}\n{result.stdout}{result.stderr}")
    return result.returncode, result.stdout, result.stderr
