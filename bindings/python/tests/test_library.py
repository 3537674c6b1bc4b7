# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The raw layer: declarations against the library's own layout, and finding, refusing and loading the library."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import gpumem
from gpumem import _library as c
from gpumem._native import Growing

from .support import PACKAGE, python


def layout():
    path = os.environ.get("GPUMEM_LAYOUT")
    return [line.split() for line in Path(path).read_text(encoding="utf-8").splitlines()] if path else []


@unittest.skipUnless(layout(), "GPUMEM_LAYOUT names no file")
class LayoutTest(unittest.TestCase):
    def compare(self, word, check):
        lines = [line for line in layout() if line[0] == word]
        self.assertTrue(lines)
        for line in lines:
            with self.subTest(" ".join(line)):
                check(line)

    def test_structs(self):
        def check(line):
            struct = getattr(c, line[1])
            self.assertEqual((ctypes.sizeof(struct), ctypes.alignment(struct)), (int(line[3]), int(line[5])))
        self.compare("struct", check)

    def test_fields(self):
        def check(line):
            struct, field = line[1].split(".")
            found = getattr(getattr(c, struct), field)
            self.assertEqual((found.offset, found.size), (int(line[3]), int(line[5])))
        self.compare("field", check)

    def test_no_field_of_our_own(self):
        fields = {line[1] for line in layout() if line[0] == "field"}
        for line in layout():
            if line[0] == "struct":
                declared = {f"{line[1]}.{name}" for name, *_ in getattr(c, line[1])._fields_}
                self.assertEqual(declared - fields, set())

    def test_constants(self):
        self.compare("constant", lambda line: self.assertEqual(getattr(c, line[1]), int(line[2])))

    def test_functions(self):
        self.compare("function", lambda line: self.assertIn(line[1], c.PROTOTYPES))
        self.assertEqual(set(c.PROTOTYPES), {line[1] for line in layout() if line[0] == "function"})

    def test_nothing_unknown(self):
        self.assertEqual({line[0] for line in layout()}, {"struct", "field", "constant", "function"})


class RawTest(unittest.TestCase):
    def test_a_new_struct_is_zeroed_with_its_size(self):
        structs = [struct for struct in vars(c).values() if isinstance(struct, type) and issubclass(struct, Growing)]
        self.assertGreater(len(structs), 10)
        for struct in structs:
            with self.subTest(struct.__name__):
                size = ctypes.sizeof(struct)
                self.assertEqual(bytes(struct()), size.to_bytes(8, sys.byteorder) + bytes(size - 8))

    def test_notes_are_no_failures(self):
        self.assertEqual([c.GPUMEM_FAILED(status) for status in (c.GPUMEM_SUCCESS, c.GPUMEM_NOT_READY,
                                                                 c.GPUMEM_ERROR_BUSY)], [False, False, True])

    def test_table_has_every_function(self):
        table = c.table()
        for name, *_ in c.gpumem_table._fields_[1:]:
            self.assertEqual(getattr(table, name), ctypes.cast(getattr(c, name), ctypes.c_void_p).value, name)

    def test_unknown_attribute(self):
        with self.assertRaises(AttributeError):
            c.gpumem_no_such_function

    def test_wrong_struct_is_refused_by_ctypes(self):
        with self.assertRaises(ctypes.ArgumentError):
            c.gpumem_memory_get_info(None, c.gpumem_stream_info(), None)


REPORT = """
import gpumem
try:
    gpumem.version()
except gpumem.Error as error:
    print(type(error).__name__, error)
"""


class LoadingTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def library(self, source):
        """A library made for the test."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            self.skipTest("no C compiler")
        path = self.folder / "libgpumem.so.0"
        (self.folder / "made.c").write_text(source, encoding="utf-8")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", path, self.folder / "made.c"], check=True)
        return str(path)

    def test_import_loads_nothing(self):
        _, out, _ = python("""
import gpumem
with open("/proc/self/maps") as maps:
    text = maps.read()
print("libgpumem" in text, "libcuda" in text)
""")
        self.assertEqual(out, "False False\n")

    def test_import_needs_no_library(self):
        python("import gpumem, gpumem.host", GPUMEM_LIBRARY="/nowhere/libgpumem.so.0")

    def test_missing(self):
        _, out, _ = python(REPORT, GPUMEM_LIBRARY="/nowhere/libgpumem.so.0")
        self.assertTrue(out.startswith("LibraryNotFound"), out)
        self.assertIn("/nowhere/libgpumem.so.0", out)
        self.assertIn("GPUMEM_LIBRARY", out)

    def test_missing_in_the_system(self):
        _, out, _ = python(REPORT, GPUMEM_LIBRARY=None, LD_LIBRARY_PATH=str(self.folder))
        if "LibraryNotFound" not in out:
            self.assertEqual(out, "")  # it is installed here, and good
        else:
            self.assertIn("GPUMEM_LIBRARY", out)

    def test_found_by_the_system(self):
        name = os.environ.get("GPUMEM_LIBRARY")
        if not name:
            self.skipTest("GPUMEM_LIBRARY is not set")
        _, out, _ = python("import gpumem; print(gpumem.version_text())", GPUMEM_LIBRARY=None,
                           LD_LIBRARY_PATH=str(Path(name).parent))
        self.assertEqual(out, gpumem.version_text() + "\n")

    def test_where_plug_ins_are(self):
        """Also in the folder of the library, where that of `gpumem trace record` is."""
        found = os.environ.get("GPUMEM_LIBRARY")
        if not found:
            self.skipTest("GPUMEM_LIBRARY is not set")
        names = "libgpumem-python.so", "libgpumem-torch.so", "libgpumem-tms.so"
        folder = self.folder.resolve() / "gpumem"
        folder.mkdir()
        for name in names:
            (folder / name).touch()
        for library in folder.parent / "libgpumem.so.0", folder / "libgpumem-trace.so":
            shutil.copyfile(found, library)
            _, out, _ = python(f"""
from gpumem.adapters import _plug_in
for name in {names}:
    print(_plug_in.path(name, "GPUMEM_NOT_SET"))
""", GPUMEM_LIBRARY=str(library))
            self.assertEqual(out.split(), [str(folder / name) for name in names])

    def test_another_file(self):
        _, out, _ = python(REPORT, GPUMEM_LIBRARY=__file__)
        self.assertTrue(out.startswith("LibraryNotFound"), out)

    def test_another_library(self):
        _, out, _ = python(REPORT, GPUMEM_LIBRARY=self.library("int something_else;"))
        self.assertTrue(out.startswith("LibraryNotFound"), out)
        self.assertIn("is not the gpumem library", out)

    def test_too_old(self):
        _, out, _ = python(REPORT, GPUMEM_LIBRARY=self.library("unsigned gpumem_version(void) { return 7; }"))
        self.assertTrue(out.startswith("VersionMismatch"), out)
        self.assertIn("0.0.7", out)

    def test_another_major_version(self):
        _, out, _ = python(REPORT, GPUMEM_LIBRARY=self.library("unsigned gpumem_version(void) { return 5u << 22; }"))
        self.assertTrue(out.startswith("VersionMismatch"), out)
        self.assertIn("5.0.0", out)

    def test_a_library_in_the_package(self):
        made, package = self.library("unsigned gpumem_version(void) { return 7; }"), self.folder / "carrying" / "gpumem"
        shutil.copytree(PACKAGE / "gpumem", package, ignore=shutil.ignore_patterns("__pycache__"))
        own = shutil.copy(made, package)
        report = "import sys\nsys.path.remove('')\n" + REPORT  # not the package in this folder
        _, out, _ = python(report, PYTHONPATH=str(package.parent), GPUMEM_LIBRARY=None)
        self.assertTrue(out.startswith("VersionMismatch"), out)
        self.assertIn(str(own), out)
        Path(own).write_bytes(b"not a library")
        _, out, _ = python(report, PYTHONPATH=str(package.parent), GPUMEM_LIBRARY=None)
        self.assertTrue(out.startswith("LibraryNotFound"), out)
        self.assertIn("part of this package", out)
        _, out, _ = python(report, PYTHONPATH=str(package.parent), GPUMEM_LIBRARY="/nowhere/libgpumem.so.0")
        self.assertIn("named by the environment variable", out)

    def test_right_version_without_the_functions(self):
        source = f"unsigned gpumem_version(void) {{ return {c.GPUMEM_VERSION}; }}"
        _, out, _ = python(REPORT, GPUMEM_LIBRARY=self.library(source))
        self.assertTrue(out.startswith("VersionMismatch"), out)
        self.assertIn("gpumem_version_text", out)

    def test_a_failure_is_not_remembered(self):
        _, out, _ = python("""
import os, gpumem
good = os.environ["GPUMEM_LIBRARY"]
os.environ["GPUMEM_LIBRARY"] = "/nowhere"
try:
    gpumem.version()
except gpumem.LibraryNotFound:
    print("refused")
os.environ["GPUMEM_LIBRARY"] = good
print(gpumem.version() >= (0, 1, 0))
""")
        self.assertEqual(out, "refused\nTrue\n")

    def test_many_threads_load_it_at_once(self):
        python("""
import threading, gpumem
barrier, failures = threading.Barrier(8), []
def load():
    barrier.wait()
    try:
        gpumem.version_text()
    except BaseException as problem:
        failures.append(problem)
threads = [threading.Thread(target=load) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failures, failures
""")
