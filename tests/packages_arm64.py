# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cases of packages.py about the Debian packages for arm64, which are compared with those for amd64 and run in qemu-user."""

import platform
import re
import shutil
import tempfile
from pathlib import Path

from arm64 import CROSS, EMULATOR, move
from packages import EXPECTED, Kind, attempt, cuda_include, make, missing_packages, run, snapshot

NATIVE, TRIPLET = "x86_64-linux-gnu", "aarch64-linux-gnu"
# Of xxHash the header alone is used.
NEEDS = {name: EXPECTED["deb"][name] - {"libxxhash0"} for name in (
    "libgpumem0", "libgpumem-dev", "gpumem-tools", "gpumem-fakecuda", "librust-gpumem-dev", "librust-gpumem-sys-dev")}


def fields(kind, name, path):
    """Nothing of the cross compiler is named, and no architecture."""
    said = kind.ask(path, "Architecture", "")
    problems = [] if said == "arm64" else [f"the architecture is {said}"]
    depends = kind.ask(path, "Depends", "")
    problems += [f"{what}: {depends}" for what in ("-cross", ":arm64") if what in depends]
    return problems + [f"needs {what}, or should" for what in sorted(kind.needs(path) ^ NEEDS[name])]


def unpack(path, folder):
    folder.mkdir(parents=True, exist_ok=True)
    run("dpkg-deb", "--extract", path, folder)
    return {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_symlink() or file.is_file()}


def like_amd64(ours, theirs, shared):
    """As a package of amd64, with the libraries in a folder of their own. `shared`: both can be installed beside each other."""
    problems = [f"only one has {name}" for name in sorted(ours.keys() ^ {name.replace(NATIVE, TRIPLET) for name in theirs})]
    return problems + [f"both have {name}, and it differs" for name in sorted(ours.keys() & theirs.keys() if shared else ())
                       if not ours[name].is_symlink() and ours[name].read_bytes() != theirs[name].read_bytes()]


def machines(files):
    """Of each program and library."""
    found = {name: re.search("Machine: +(.*)", run("readelf", "--file-header", file))[1] for name, file in files.items()
             if not file.is_symlink() and file.read_bytes()[:4] == b"\x7fELF"}
    return [f"{name} is for {machine}" for name, machine in found.items() if machine != "AArch64"] + ["there is none"] * (not found)


def program(source, root, env):
    """Built as pkg-config says."""
    built, libraries = root / "program", env["LD_LIBRARY_PATH"]
    flags = run("pkg-config", "--cflags", "--libs", "gpumem", env={
        **env, "PKG_CONFIG_LIBDIR": f"{libraries}/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": str(root)}).split()
    run(f"{CROSS}gcc", "-std=c99", "-Wall", "-Werror", source / "tests" / "consumers" / "linked.c", "-o", built, *flags,
        f"-L{libraries}")
    said = run(*EMULATOR, built, env=env)
    return [] if "round trip good" in said else [said]


def over_fake_driver(root, env):
    """The program and the fake driver of these packages."""
    libraries = env["LD_LIBRARY_PATH"]
    said = run(*EMULATOR, root / "usr" / "bin" / "gpumem", "info", "--backend", "cuda", env={
        **env, "LD_LIBRARY_PATH": f"{libraries}/gpumem/fake-cuda:{libraries}", "FAKE_CUDA_DEVICES": "2"})
    return [] if "Fake CUDA device 1" in said else [said]


def installed_and_removed(kind, root):
    """Nothing is left of them in a root of amd64, which lacks the libraries of arm64 that they need. dpkg knows more than one
    architecture there only meanwhile."""
    names, before = kind.packages(), snapshot(root)
    run("dpkg", f"--root={root}", "--add-architecture", "arm64")
    run("dpkg", f"--root={root}", "--force-depends", "--install", *names.values())
    new = snapshot(root)
    problems = [f"changed: {name}" for name, state in before.items() if new.get(name) != state]
    problems += [] if f"usr/lib/{TRIPLET}/libgpumem.so.0" in new else ["the library is not there"]
    problems += [line for line in run("dpkg", f"--root={root}", "--verify", *(f"{name}:arm64" for name in names)).splitlines() if line]
    run("dpkg", f"--root={root}", "--purge", *(f"{name}:arm64" for name in names))
    run("dpkg", f"--root={root}", "--remove-architecture", "arm64")
    return problems + [f"left behind or changed: {name}" for name, _ in sorted({*snapshot(root).items()} ^ {*before.items()})]


def cases(tap, source, folder):
    """Returns the packages, if there are any."""
    if platform.machine() == "aarch64":
        tap.skip("deb-arm64: packages", "this machine is arm64: the other Debian packages are for it")
        return None
    missing = missing_packages(source, "deb_arm64")
    if missing:
        tap.skip("deb-arm64: packages", f"not installed: {' '.join(missing)}")
        return None
    if not make(tap, "deb-arm64", source, folder, "deb-arm64: built by an ordinary user, without error or warning from lintian"):
        return None
    kind = Kind("deb", folder)
    amd64 = kind.packages()
    kind.folder = folder / "packages" / "deb-arm64"
    found = kind.packages()
    expected = NEEDS.keys() - (set() if cuda_include() else {"gpumem-fakecuda"})
    tap.check("deb-arm64: the packages that there should be", sorted(expected ^ found.keys()))
    with tempfile.TemporaryDirectory() as temporary:
        root, files = Path(temporary) / "root", {}
        for name in sorted(expected & found.keys()):
            path = found[name]
            attempt(tap, f"deb-arm64: {name} is for arm64, and needs nothing unexpected", lambda: fields(kind, name, path))
            ours = unpack(path, Path(temporary) / "arm64" / name)
            case = f"deb-arm64: {name} has what that of amd64 has"
            if name in amd64:
                theirs, shared = unpack(amd64[name], Path(temporary) / "amd64" / name), kind.ask(path, "Multi-Arch", "") == "same"
                attempt(tap, case, lambda: like_amd64(ours, theirs, shared))
            else:
                tap.skip(case, f"there are no Debian packages of amd64 in {folder}")
            files |= unpack(path, root)
        attempt(tap, "deb-arm64: programs and libraries are for arm64", lambda: machines(files))
        env = {"PATH": "/usr/bin:/bin", "GPUMEM_BACKEND": "host", "LD_LIBRARY_PATH": str(root / "usr" / "lib" / TRIPLET)}
        for case, package, steps in (
                ("gpumem has the devices of the fake driver", "gpumem-fakecuda", lambda: over_fake_driver(root, env)),
                ("a C program is built and runs", "libgpumem-dev", lambda: program(source, root, env)),
                ("gpumem moves a file by every kind of memory", "gpumem-tools", lambda: move(source, root / "usr" / "bin" / "gpumem", env=env))):
            if package not in found:
                tap.skip(f"deb-arm64: {case}", f"there is no {package}")
            elif shutil.which(EMULATOR[0]):
                attempt(tap, f"deb-arm64: {case}", steps)
            else:
                tap.skip(f"deb-arm64: {case}", "not installed: qemu-user")
    return kind
