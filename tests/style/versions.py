# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""That every place has the version of meson.build, and that each would be seen if it had another. Usage: versions.py SOURCE_ROOT"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tap import Tap

sys.path.insert(0, str(Path(sys.argv[1]) / "packaging"))
import versions  # pylint: disable=wrong-import-position

# What names the version of a package.
MANIFESTS = {"Cargo.toml", "pyproject.toml", "package.json", "CMakeLists.txt"}
SUFFIXES = {".csproj", ".spec", ".nuspec"}


def main():
    root = Path(sys.argv[1])
    tap = Tap()
    tap.check("every place has the version of meson.build", versions.problems(root))
    places = [(versions.HEADER, rf"^#define GPUMEM_VERSION_{part} (\d+)") for part in ("MAJOR", "MINOR", "PATCH")] + versions.PLACES
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in {name for name, _ in [versions.SOURCE, *places]}:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, copy / name)
        for number, (name, pattern) in enumerate(places, 1):
            path = copy / name
            text = path.read_text(encoding="utf-8")
            match = re.search(pattern, text, re.MULTILINE)
            begin, end = match.span(1)
            for what, other in (("another version", text[:begin] + "77.8.9"[:end - begin] + text[end:]),
                                ("no version", text[:match.start()] + text[match.end():])):
                path.write_text(other, encoding="utf-8")
                said = list(versions.problems(copy))
                tap.check(f"{what} in {name} is seen (place {number})",
                          [] if len(said) == 1 and said[0].startswith(f"{name}: ") else [said or "not seen"])
            path.write_text(text, encoding="utf-8")
        path = copy / "meson.build"
        path.write_text(re.sub("version: '[^']*'", "version: '0.1'", path.read_text(encoding="utf-8"), count=1), encoding="utf-8")
        result = subprocess.run([sys.executable, root / "packaging" / "versions.py", copy], text=True, capture_output=True, check=False)
        tap.check("a version of two numbers is refused in one line", [] if result.returncode == 1 and result.stderr.count("\n") == 1 and
                  "write three numbers" in result.stderr else [result])
    known = {name for name, _ in versions.PLACES}
    tap.check("every manifest of a package is compared",
              [str(path.relative_to(root)) for folder in ("adapters", "bindings", "packaging") for path in (root / folder).rglob("*")
               if (path.name in MANIFESTS or path.suffix in SUFFIXES) and str(path.relative_to(root)) not in known and
               re.search(r"^\s*(version = \"|<[Vv]ersion>|Version: +)[0-9]", path.read_text(encoding="utf-8"), re.MULTILINE)])
    tap.finish()


if __name__ == "__main__":
    main()
