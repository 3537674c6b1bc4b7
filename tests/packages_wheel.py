# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cases of packages.py about Python's wheel and source distribution."""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

from arm64 import EMULATOR
from packages import attempt, make, make_root, missing_packages, ordinary_user, run, works
from packages_nuget import has_cross_compiler, on_arm64

# What the library in a wheel may need, by the machine. GCC's unwinder is a library; before glibc 2.34 so were parts of glibc.
NEEDED = {"x86_64": {"libc.so.6", "ld-linux-x86-64.so.2"}, "aarch64": {"libc.so.6", "ld-linux-aarch64.so.1"}}
BY_GCC, BY_ZIG = {"libgcc_s.so.1"}, {"libm.so.6", "libdl.so.2", "libpthread.so.0"}
PYTHON = "/usr/bin/python3"  # packaging/build takes that of the system too
LIBRARIES = ["gpumem/libgpumem.so.0", *(f"gpumem/adapters/libgpumem-{name}.so" for name in ("python", "tms", "torch"))]


def environment(**more):
    """Nothing of whoever started this."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "GPUMEM_BACKEND": "host", **more}


def said(*command, **more):
    """(exit status, output)"""
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, env=environment(**more))
    return result.returncode, result.stdout


def offline():
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    return alone if works(*alone, "true") else []


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# The files of each plug-in's functions, which this macro shows.
PLUG_INS = {"python": ("EXPORT", "python/cupy.cpp", "python/dlpack.cpp"), "tms": ("TMS_API", "tms/tms.cpp"),
            "torch": ("EXPORT", "torch/allocator.cpp")}


def libraries_of(path):
    return {*re.findall(r"NEEDED\).*\[(\S+)\]", run("readelf", "--dynamic", path))}


def plug_ins(source, unpacked, own_runtime):
    """They show their own functions and nothing else. That for PyTorch, to which it hands types of C++, has the C++ runtime of the
    system; with `own_runtime` the others bring theirs."""
    problems = []
    for name, (macro, *files) in PLUG_INS.items():
        path = unpacked / f"gpumem/adapters/libgpumem-{name}.so"
        text = "".join((source / "adapters" / file).read_text(encoding="utf-8") for file in files)
        expected = {*re.findall(rf"^{macro} .*?(\w+)\(", text, re.MULTILINE)}
        shown = {line.split()[-1] for line in run("nm", "--dynamic", "--defined-only", path).splitlines()}
        if not expected or shown != expected:
            problems.append(f"{path.name} shows {sorted(shown - expected)}, and not {sorted(expected - shown)}")
        runtime = {"libstdc++.so.6", "libgcc_s.so.1"} & libraries_of(path)
        if (name == "torch" and len(runtime) != 2) or (name != "torch" and own_runtime and runtime):
            problems.append(f"{path.name} takes {sorted(runtime)} of the system's C++ runtime")
    return problems


def tag_is_true(source, wheel, unpacked, machine="x86_64", by_zig=False):
    """The name promises no older system than one that has what the libraries need."""
    promised = re.fullmatch(rf"gpumem-[0-9.]+-py3-none-manylinux_2_(\d+)_{machine}\.whl", wheel.name)
    if not promised:
        return [f"the name is {wheel.name}"]
    problems = [f"no {name}" for name in LIBRARIES if not (unpacked / name).is_file()]
    for name in LIBRARIES:
        symbols = run("readelf", "--wide", "--dyn-syms", unpacked / name)
        needed = {int(minor) for minor in re.findall(r"@GLIBC_2\.(\d+)", symbols)}
        problems += [f"{name} needs glibc 2.{minor}" for minor in sorted(needed) if minor > int(promised[1])]
        # A small plug-in needs the library alone.
        if not needed and (name == LIBRARIES[0] or "gpumem_pool_alloc_native" not in symbols):
            problems.append(f"{name} needs no glibc, says readelf")
    description = (unpacked / f"gpumem-{wheel.name.split('-')[1]}.dist-info" / "WHEEL").read_text(encoding="utf-8")
    metadata = (unpacked / f"gpumem-{wheel.name.split('-')[1]}.dist-info" / "METADATA").read_text(encoding="utf-8")
    problems += [f"METADATA lacks {line}" for line in ("Author: The gpumem authors", "License: Apache-2.0 WITH LLVM-exception")
                 if line not in metadata.splitlines()]
    expected = {"Root-Is-Purelib: false", f"Tag: {wheel.name.split('-', 2)[2].removesuffix('.whl')}"}
    problems += [f"WHEEL lacks {line}" for line in sorted(expected - {*description.splitlines()})]
    # The C++ runtime is inside, and none of it is seen from outside.
    library = unpacked / LIBRARIES[0]
    may_need = NEEDED[machine] | (BY_ZIG if by_zig else BY_GCC)
    problems += [f"the library needs {name}" for name in sorted(libraries_of(library) - may_need)]
    listed = {*re.findall(r"^ +(gpumem_\w+);", (source / "capi" / "gpumem.map").read_text(encoding="utf-8"), re.MULTILINE)}
    shown = {line.split()[-1].split("@")[0] for line in run("nm", "--dynamic", "--defined-only", library).splitlines()}
    shown = {name for name in shown if not name.startswith("GPUMEM_")}
    return problems + plug_ins(source, unpacked, by_zig) + [f"the exported functions differ: {sorted(listed ^ shown)[:9]}"] * (listed != shown)


def refused(source, folder):
    """packaging/manylinux.py on libraries that no wheel may have."""
    (folder / "needed.c").write_text("void needed(void) {}\n", encoding="utf-8")
    (folder / "needing.c").write_text("void needed(void); void needing(void) { needed(); }\n", encoding="utf-8")
    (folder / "text").write_text("no library\n", encoding="utf-8")
    (folder / "map").write_text("GLIBCXX_3.4.99 { global: needed; };\n", encoding="utf-8")
    problems = []
    for soname, expected in (("libother.so.1", "needs libother.so.1"), ("libstdc++.so.6", "needs GLIBCXX_3.4.99")):
        run("gcc", "-shared", "-fPIC", "-nostdlib", folder / "needed.c", "-o", folder / soname, f"-Wl,-soname,{soname}",
            f"-Wl,--version-script={folder / 'map'}")
        run("gcc", "-shared", "-fPIC", "-nostdlib", folder / "needing.c", folder / soname, "-o", folder / "needing.so")
        status, output = said(PYTHON, source / "packaging" / "manylinux.py", folder / "needing.so")
        problems += [] if status == 1 and expected in output and output.count("\n") == 1 else [f"{expected}: {status} {output}"]
    status, output = said(PYTHON, source / "packaging" / "manylinux.py", folder / "text")
    return problems + ([] if status == 1 and "is no library" in output and output.count("\n") == 1 else [output])


def names_what_is_missing(source, folder):
    """packaging/build on a system that lacks a tool, which its user may not install."""
    (folder / "dpkg-query").write_text('#!/bin/sh\ncase "$3" in python3-build) echo not-installed ;; *) echo -n installed ;; esac\n',
                                       encoding="utf-8")
    (folder / "dpkg-query").chmod(0o755)
    status, output = said(*ordinary_user(), source / "packaging" / "build", "wheel", PATH=f"{folder}:/usr/bin:/bin",
                          GPUMEM_BUILD_DIR=folder / "none")
    good = status == 1 and "install --no-install-recommends python3-build\n" in output and not (folder / "none").exists()
    return [] if good else [f"exit status {status}", output]


def by_platform(python, wheel, folder):
    """What is wrong with the systems for which pip chooses the wheel, of a folder that has it: its own, and neither an older glibc nor musl."""
    command = [python, "-m", "pip", "download", "--no-index", "--no-deps", "--only-binary=:all:", "--dest", folder, "--find-links",
               wheel.parent, "gpumem", "--platform"]
    glibc, machine = re.search(r"-manylinux_(2_\d+)_(\w+)\.whl$", wheel.name).groups()
    run(*command, f"manylinux_{glibc}_{machine}", env=environment())
    problems = [] if (folder / wheel.name).is_file() else ["not downloaded"]
    for other in f"manylinux_2_17_{machine}", f"musllinux_1_2_{machine}":
        status, output = said(*command, other)
        if not status or "No matching distribution found for gpumem" not in output:
            problems += [f"{other}: exit status {status}", output]
    return problems


def use(tap, source, wheel, folder, kind="wheel"):
    """Installs the wheel in an environment of its own, uses it there and removes it."""
    home = folder / "with space und Ümlaut"
    status, output = said(PYTHON, "-m", "venv", home)
    if status:
        tap.skip(f"{kind}: installed and used", "no environment can be made without python3-venv: " + output.strip().split("\n")[-1])
        return
    python = home / "bin" / "python3"
    (site,) = home.glob("lib/python3*/site-packages")
    run(python, "-m", "pip", "--version", env=environment())
    before = files(home)
    if not attempt(tap, f"{kind}: installed without the network",
                   lambda: run(*offline(), python, "-m", "pip", "install", "--no-index", wheel, env=environment()) and None):
        return
    program = folder / "basic.py"
    shutil.copy(source / "bindings" / "python" / "examples" / "basic.py", program)
    expected = (source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
    # Another library that the system would find.
    (folder / "other.c").write_text("unsigned gpumem_version(void) { return 7; }\n", encoding="utf-8")
    other = folder / "other" / "libgpumem.so.0"
    other.parent.mkdir()
    run("gcc", "-shared", "-fPIC", folder / "other.c", "-o", other)

    def check(name, wanted, *command, **variables):
        status, output = said(python, "-W", "error", *command, **variables)
        tap.check(f"{kind}: {name}", [] if status == 0 and output == wanted else [f"exit status {status}", output])

    check("a program runs, without numpy", f"False\n{expected}", "-c", "import importlib.util, runpy, sys\n"
          f"print(importlib.util.find_spec('numpy') is not None)\nrunpy.run_path({str(program)!r})")
    maps = "import pathlib\nprint({line.split(maxsplit=5)[5] for line in pathlib.Path('/proc/self/maps').read_text().splitlines() if 'gpumem' in line or 'cuda' in line})"
    check("import loads neither the library nor a driver", "set()\n", "-c", f"import gpumem\n{maps}")
    check("its own library comes before that of the system", f"{ {str(site / LIBRARIES[0])} }\n",
          "-c", f"import gpumem\ngpumem.version_text()\n{maps}", LD_LIBRARY_PATH=str(other.parent))
    report = "import gpumem\ntry:\n  gpumem.version()\nexcept gpumem.Error as error:\n  print(type(error).__name__, error)\n"
    check("an older library that GPUMEM_LIBRARY names is refused",
          f"VersionMismatch {other} has version 0.0.7; this package needs version 0.x with x at least 1\n", "-c", report,
          GPUMEM_LIBRARY=str(other))
    check("the plug-ins come with it, and can be loaded", "".join(f"{site / name}\n" for name in LIBRARIES[1:]),
          "-c", "from gpumem.adapters import _plug_in\nfor name in ('python', 'tms', 'torch'):\n"
          "  path = _plug_in.path(f'libgpumem-{name}.so', 'NOT_SET')\n  _plug_in.load(path)\n  print(path)")
    attempt(tap, f"{kind}: pip takes it for glibc, and refuses it for musl", lambda: by_platform(python, wheel, folder / "downloaded"))
    if attempt(tap, f"{kind}: removed", lambda: run(python, "-m", "pip", "uninstall", "--yes", "gpumem", env=environment()) and None):
        tap.check(f"{kind}: removed without a trace", sorted(files(home) ^ before))


def source_distribution(source, path, folder):
    """A wheel is built of it without the network, and of nothing else."""
    with tarfile.open(path) as archive:
        archive.extractall(folder)
    (top,) = folder.iterdir()
    want = {"LICENSE", "README.md", "pyproject.toml", "setup.py"}
    for part in ("gpumem", "tests", "examples"):
        base = source / "bindings" / "python"
        want |= {str(file.relative_to(base)) for file in (base / part).rglob("*") if file.is_file() and file.suffix != ".pyc"}
    problems = [f"lacks {name}" for name in sorted(want - files(top))]
    problems += [f"has {name}" for name in sorted(files(top)) if name.endswith((".so", ".so.0", ".pyc"))]
    run(*offline(), PYTHON, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "dist", top, env=environment())
    (wheel,) = (folder / "dist").iterdir()
    if not wheel.name.endswith("-py3-none-any.whl"):
        problems.append(f"the wheel is {wheel.name}")
    with zipfile.ZipFile(wheel) as archive:
        problems += [f"the wheel has {name}" for name in archive.namelist() if ".so" in name]
    return problems


def on_debian_11(tap, source, wheel, root, kind):
    """A system whose glibc, 2.31, is older than this one's, and has no names for errors."""
    if not make_root(tap, root, f"{kind}: a Debian 11", "bullseye", ("python3-venv",)):
        return
    for path in (wheel, source / "bindings" / "python" / "examples" / "basic.py"):
        shutil.copy(path, root / "tmp")
    (root / "tmp" / "system_error.py").write_text(
        "import gpumem, resource\nwith gpumem.Instance('host') as instance:\n  resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\n"
        "  try:\n    instance.device(0).memory(4096)\n  except gpumem.LimitExceeded as error:\n    print(error)\n", encoding="utf-8")

    def inside(*command):
        return run("/usr/sbin/chroot", root, *command, env=environment())

    def used():
        inside("python3", "-m", "venv", "/tmp/home")
        inside("/tmp/home/bin/pip", "install", "--no-index", f"/tmp/{wheel.name}")
        expected = (source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
        said = inside("/tmp/home/bin/python3", "/tmp/basic.py")
        problem = inside("/tmp/home/bin/python3", "/tmp/system_error.py")
        return [text for text, good in ((said, said == expected), (problem, ": Too many open files" in problem)) if not good]

    attempt(tap, f"{kind}: installed and used on Debian 11", used)


def by_zig(tap, source, folder, new):
    """The wheels for an older glibc than that of this system."""
    kind = "wheel for glibc 2.28"
    found = subprocess.run(["bash", "-c", 'source "$0" && fetch_zig', source / "packaging" / "dependencies"], text=True,
                           capture_output=True, check=False)
    if found.returncode:
        tap.skip(kind, found.stderr.strip())
        return
    status, output = said(source / "packaging" / "build", "wheel", GPUMEM_ZIG=str(source), GPUMEM_BUILD_DIR=str(folder))
    tap.check(f"{kind}: a folder without Zig is refused", [] if (status, output) == (
        1, f'packaging/build: GPUMEM_ZIG is "{source}", but there is no program zig in it\n') else [f"exit status {status}", output])
    if not make(tap, "wheel", source, folder, f"{kind}: built by an ordinary user, without the network", "--net",
                GPUMEM_ZIG=found.stdout.strip()):
        return
    made = {path.name.split("_2_28_")[-1].removesuffix(".whl"): path for path in (folder / "packages" / "wheel").glob("*.whl")}
    tap.check(f"{kind}: there is one for each machine", sorted(made.keys() ^ {"x86_64", *(["aarch64"] if has_cross_compiler() else [])}))
    for machine, wheel in sorted(made.items()):
        unpacked = new(machine)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        attempt(tap, f"{kind}: that for {machine} needs what its name promises", lambda: tag_is_true(source, wheel, unpacked, machine, True))
        if machine == "x86_64":
            use(tap, source, wheel, new("use-2.28"), kind)
            on_debian_11(tap, source, wheel, new("debian") / "root", kind)
        elif not shutil.which(EMULATOR[0]):
            tap.skip(f"{kind}: a C program for {machine} runs with its library", "not installed: qemu-user")
        else:
            attempt(tap, f"{kind}: a C program for {machine} runs with its library",
                    lambda: on_arm64(source, unpacked / LIBRARIES[0], new("programs") / "arm64"))


def cases(tap, source, folder):
    missing = missing_packages(source, "wheel")
    if missing:
        tap.skip("wheel: packages", f"not installed: {' '.join(missing)}")
        return
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)

        def new(name):
            (temporary / name).mkdir()
            return temporary / name

        copy = temporary / "source"
        shutil.copytree(source, copy, ignore=lambda folder, names: {  # what is no source
            ".git", "target", "__pycache__", ".cache", *(["build"] if folder == str(source) else [])})
        run("chmod", "--recursive", "a-w", copy)
        good = make(tap, "wheel", copy, folder, "wheel: built by an ordinary user from a source that cannot be written, without the network",
                    "--net")
        run("chmod", "--recursive", "u+w", copy)
        attempt(tap, "wheel: libraries that other systems lack, or with too new symbols, are refused", lambda: refused(source, new("refused")))
        if ordinary_user() is None:
            tap.skip("wheel: packaging/build names a missing package", "this is root, and unshare --user is refused here")
        else:
            attempt(tap, "wheel: packaging/build names a missing package", lambda: names_what_is_missing(source, new("missing")))
        if not good:
            return
        made = sorted(path for path in (folder / "packages" / "wheel").iterdir() if path.name != "log")
        if [path.suffix for path in made] != [".whl", ".gz"]:
            tap.check("wheel: the packages that there should be", [str(path) for path in made] or ["none"])
            return
        wheel, distribution = made
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(temporary / "unpacked")
        attempt(tap, "wheel: it needs what its name promises", lambda: tag_is_true(source, wheel, temporary / "unpacked"))
        use(tap, source, wheel, new("use"))
        attempt(tap, "wheel: the source distribution makes one without the network",
                lambda: source_distribution(source, distribution, new("sdist")))
        by_zig(tap, source, folder, new)
