# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which headers of CUDA packaging/build takes, beside those that Meson takes. Usage: cuda_headers.py SOURCE_ROOT"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tap import Tap


def main():
    root = Path(sys.argv[1])
    tap = Tap()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)

        def toolkit(folder, version, *, typedefs=True, define="#define CUDA_VERSION {}"):
            include = work / folder / "include"
            include.mkdir(parents=True)
            (include / "cuda.h").write_text(f"#ifndef __cuda_cuda_h__\n{define.format(version)}\n#if CUDA_VERSION >= 99000\n#endif\n#endif\n",
                                            encoding="utf-8")
            if typedefs:
                (include / "cudaTypedefs.h").write_text("", encoding="utf-8")
            return include

        old, new, newer = toolkit("11.8", 11080), toolkit("13.0", 13000), toolkit("a newer one", 13020, define="#  define CUDA_VERSION\t{} /**/")
        part, none = toolkit("part", 13000, typedefs=False), work / "none"
        typedefs = work / "typedefs alone"
        typedefs.mkdir()
        (typedefs / "cudaTypedefs.h").write_text("", encoding="utf-8")
        unknown = toolkit("unknown", "SOMETHING")

        def found(*folders, **variables):
            result = subprocess.run(["bash", "-euo", "pipefail", "-c", 'source "$0"; find_cuda_headers "$@"', root / "packaging" / "dependencies", *folders],
                                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, env={**os.environ, **variables})
            return result.returncode, result.stdout

        for what, folders, expected in (
                ("an old Toolkit is not taken", [old], None), ("13.0 is taken", [new], new), ("a newer one is taken", [newer], newer),
                ("one behind an old one is taken", [old, none, new], new), ("the first of two is taken", [newer, new], newer),
                ("one without cudaTypedefs.h is not taken", [part], None), ("one without cuda.h is not taken", [typedefs], None),
                ("one whose version cannot be read is not taken", [unknown], None), ("no folder is no Toolkit", [none], None)):
            said = found(*folders)
            tap.check(what, [] if said == ((0, f"{expected}\n") if expected else (1, "")) else [said])
        said = found(CUDA_HOME=str(newer.parent), CUDA_PATH=str(new.parent))
        tap.check("CUDA_HOME is taken before all others", [] if said == (0, f"{newer}\n") else [said])
        said = found(CUDA_HOME=str(old.parent))
        tap.check("an old CUDA_HOME does not stand for itself", [] if str(old) not in said[1] else [said])
    build = (root / "impl" / "backends" / "cuda" / "meson.build").read_text(encoding="utf-8")
    shell = (root / "packaging" / "dependencies").read_text(encoding="utf-8")
    least = [re.findall(r"version(?::-0})? >= (\d+)", text) for text in (build, shell)]
    tap.check("Meson asks for the same version", [] if least[0] == least[1] and len(least[0]) == 1 else [least])
    tap.finish()


if __name__ == "__main__":
    main()
