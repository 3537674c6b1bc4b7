# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Gives the tests of the bindings what an installation would: the headers, the library and its pkg-config file in a
folder of their own, and an environment that leads to them."""

import contextlib
import os
import re
import subprocess
import tempfile
from pathlib import Path


# The gate runs the tests of each binding once. All that is around them, and the other backends and runtimes, come with
# tests/run --all.
GATE = bool(os.environ.get("GPUMEM_TEST_GATE"))


class Stage:
    def __init__(self, prefix, build_root):
        self.prefix = prefix
        self.build_root = Path(build_root)
        self.source_root = Path(__file__).resolve().parents[2]
        self.report = prefix / "violations"
        (self.pkgconfig,) = prefix.rglob("gpumem.pc")
        (self.library,) = (path for path in prefix.rglob("libgpumem.so.*")
                           if re.fullmatch(r"libgpumem\.so\.\d+", path.name))

    @property
    def backends(self):
        """The backends to test on; cuda needs the fake driver, which needs the Toolkit's headers to build."""
        if GATE:
            return ["host"]
        fake = self.build_root / "tests" / "fake_cuda" / "libcuda.so.1"
        return ["host", "cuda"] if fake.exists() else ["host"]

    def environment(self, backend):
        folders = [str(self.library.parent)]
        variables = {
            "PKG_CONFIG_PATH": str(self.pkgconfig.parent),
            "GPUMEM_LIBRARY": str(self.library),
            "GPUMEM_LAYOUT": str(self.build_root / "tests" / "bindings" / "layout.txt"),
            "GPUMEM_VECTORS": str(self.source_root / "tests" / "bindings" / "vectors.txt"),
            "GPUMEM_TEST_TEXTS": str(self.prefix / "texts"),
            "GPUMEM_TEST_BACKEND": backend,
            "GPUMEM_BACKEND": backend,
        }
        if backend == "cuda":
            folders.append(str(self.build_root / "tests" / "fake_cuda"))
            variables |= {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_REPORT": str(self.report)}
        variables["LD_LIBRARY_PATH"] = ":".join(folders + list(filter(None, [os.environ.get("LD_LIBRARY_PATH")])))
        return {**os.environ, **variables}

    def violations(self):
        """What the fake driver has to say against its callers since the last question."""
        if not self.report.exists():
            return []
        lines = self.report.read_text(encoding="utf-8").splitlines()
        self.report.unlink()
        return lines


def texts(source):
    """Every text in the sources of the library, a line for each: messages, their parts, and what goes into them. But for the
    keys of JSON, which are the same in every language."""
    key = r"\.add(?:_true|_address)?\(\s*\"\w+\""
    token = re.compile(key + r"|//[^\n]*|/\*.*?\*/|'(?:[^'\\\n]|\\.)'|^\s*#[^\n]*|" r'((?:"(?:[^"\\\n]|\\.)*"(?:\s|PRI\w+)*)+)',
                       re.DOTALL | re.MULTILINE)
    found = set()
    for path in [*(source / "impl").rglob("*"), *(source / "capi" / "src").rglob("*")]:
        if path.suffix in (".cpp", ".h", ".inc"):
            for literals in filter(None, (match[1] for match in token.finditer(path.read_text(encoding="utf-8")))):
                text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', literals))
                found.add(re.sub(r'\\"\w+\\":', "", text))
    return "".join(f"{text}\n" for text in sorted(found))


@contextlib.contextmanager
def staged(build_root):
    with tempfile.TemporaryDirectory() as folder:
        # The paths in gpumem.pc are moved too, as they would be in a package.
        subprocess.run(["meson", "install", "-C", str(build_root), "--no-rebuild", "--quiet", "--destdir", folder],
                       check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        (pc,) = Path(folder).rglob("gpumem.pc")
        text = pc.read_text(encoding="utf-8")
        prefix = re.search(r"^prefix=(.*)$", text, re.MULTILINE).group(1)
        pc.write_text(text.replace(f"prefix={prefix}", f"prefix={folder}{prefix}", 1), encoding="utf-8")
        made = Stage(Path(folder), build_root)
        (made.prefix / "texts").write_text(texts(made.source_root), encoding="utf-8")
        yield made
