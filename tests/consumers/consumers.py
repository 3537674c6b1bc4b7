#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Uses the library as others do.
Usage: consumers.py installed|options|subproject|toolkits|quickstart SOURCE_ROOT BUILD_ROOT C_COMPILER... -- CPP_COMPILER...

installed: installs the build into an empty folder; builds and runs programs with pkg-config, with CMake, with dlopen and
with Python's ctypes against that folder alone, with two copies at once, and statically if there is a static library.
options: builds the library with the other values of the options that decide what is installed, and where; builds and runs a program
with pkg-config and with CMake against each.
subproject: builds and runs a Meson project that has gpumem in its subprojects/ folder, with Clang if that is there.
toolkits: configures without the Toolkit, with an old one, and with one elsewhere.
quickstart: runs packaging/quickstart, the first command of the README, in a copy of the sources that cannot be written.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packages import cuda_include, missing_packages, ordinary_user
from tap import Tap

WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def run(*command, **env):
    """Output of a command; a failure raises with all that it printed."""
    result = subprocess.run([str(word) for word in command], text=True, env={**os.environ, **env},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{result.stdout}exit status {result.returncode}")
    return result.stdout


def guide(source, language):
    """What docs/building.md says in a language."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", (source / "docs" / "building.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return block


def case(tap, name, steps):
    try:
        tap.check(name, [] if "round trip good" in steps() else ["the round trip did not report success"])
    except RuntimeError as problem:
        tap.check(name, str(problem))


def not_in_driver(fake, names):
    """Of the functions that another library loads, those that the fake driver has not."""
    shown = {line.split()[-1] for line in run("nm", "--dynamic", "--defined-only", fake / "libcuda.so.1").splitlines()}
    return sorted({*names} - shown) + ["no name was found"] * (len(names) < 30)


def install(build, folder):
    """Installs a build that is up to date into a folder that stands for the root of a system."""
    run("meson", "install", "-C", build, "--no-rebuild", DESTDIR=str(folder))
    return folder


def options_of(build):
    return {option["name"]: option["value"] for option in json.loads(run("meson", "introspect", "--buildoptions", build))}


def wrong_files(root, source, options):
    """What is installed beside what the options ask for, or is missing."""
    library, version = options["libdir"], re.search(r"version: '(.*)'", (source / "meson.build").read_text()).group(1)
    expected = {f"{options['includedir']}/gpumem/{path.name}" for path in (source / "capi/include/gpumem").glob("*.h*")}
    expected |= {f"{library}/{name}" for name in ("pkgconfig/gpumem.pc", "cmake/gpumem/gpumem-config.cmake",
                                                  "cmake/gpumem/gpumem-config-version.cmake")}
    expected.add(f"{options['datadir']}/licenses/gpumem/LICENSE")
    if options["default_library"] != "static":
        expected |= {f"{library}/libgpumem.so", f"{library}/libgpumem.so.0", f"{library}/libgpumem.so.{version}"}
        if options["cli"]:
            expected.add(f"{library}/gpumem/libgpumem-trace.so")
        if options["adapters"]:
            expected |= {f"{library}/gpumem/libgpumem-{name}.so" for name in ("python", "tms", "torch")}
    if options["default_library"] != "shared":
        expected.add(f"{library}/libgpumem.a")
    if options["cli"]:
        expected |= {f"{options['bindir']}/gpumem", f"{options['mandir']}/man1/gpumem.1",
                     "lib/systemd/user/gpumem-keeper.service", "lib/systemd/user/gpumem-keeper.socket"}
        expected |= {f"{options['datadir']}/{name}" for name in (
            "bash-completion/completions/gpumem", "zsh/site-functions/_gpumem", "fish/vendor_completions.d/gpumem.fish")}
    if options["fake_driver"]:
        expected |= {f"{library}/gpumem/fake-cuda/{name}" for name in ("libcuda.so", "libcuda.so.1", "fake_cuda.h")}
    if options["bench"]:
        expected.add(f"{options['libexecdir']}/gpumem/gpumem_bench")
    html = f"{options['datadir']}/doc/gpumem/html"
    prefix = root / options["prefix"].lstrip("/")
    found = {str(path.relative_to(prefix)) for path in root.rglob("*") if not path.is_dir()}
    pages = {name for name in found if options["docs"] and name.startswith(html + "/")}
    missing = expected - found
    if options["docs"] and not {f"{html}/index.html", f"{html}/memory_8h.html"} <= pages:
        missing.add(f"{html} with its pages")
    return [f"missing: {name}" for name in sorted(missing)] + [f"too much: {name}" for name in sorted(found - expected - pages)]


def pkg_config(folder, *words):
    (pc,) = folder.rglob("gpumem.pc")
    return shlex.split(run("pkg-config", *words, "gpumem", PKG_CONFIG_LIBDIR=str(pc.parent), PKG_CONFIG_SYSROOT_DIR=str(folder)))


def without_shared(folder, copy):
    """A copy of an installation as if only the static library had been built, so that no linker takes the other."""
    shutil.copytree(folder, copy, symlinks=True)
    for path in copy.rglob("libgpumem.so*"):
        path.unlink()
    return copy


def installed(tap, source, build, compiler, cpp_compiler, folder):
    here = source / "tests" / "consumers"
    root = install(build, folder / "root")
    (header,) = root.rglob("gpumem.h")
    (library,) = (path for path in root.rglob("libgpumem.so.*") if re.fullmatch(r"libgpumem\.so\.\d+", path.name))
    archives = list(root.rglob("libgpumem.a"))
    tap.check("what the options ask for is installed, and nothing else", wrong_files(root, source, options_of(build)))
    (licence,) = root.rglob("LICENSE")
    if options_of(build)["bench"] and options_of(build)["cli"]:
        (program,) = root.rglob("bin/gpumem")
        try:
            said = run(program, "bench", "--list", LD_LIBRARY_PATH=str(library.parent))
        except RuntimeError as problem:
            said = str(problem)
        tap.check("the program finds the benchmarks that are installed with it", [] if "\npool " in said else [said])
    tap.check("the licence is installed", "" if licence.read_bytes() == (source / "LICENSE").read_bytes() else "it differs")

    def linked(name, flags, **env):
        program = folder / name
        run(*compiler, *WARNINGS, here / "linked.c", "-o", program, *flags)
        return run(program, **env)

    def in_cpp():
        program = folder / "in-cpp"
        run(*cpp_compiler, "-std=c++17", *WARNINGS[1:], here / "linked.cpp", "-o", program, *pkg_config(root, "--cflags", "--libs"))
        return run(program, LD_LIBRARY_PATH=str(library.parent))

    def loaded():
        program = folder / "loaded"
        run(*compiler, *WARNINGS, here / "loaded.c", f"-I{header.parent.parent}", "-o", program, "-ldl")
        return run(program, library)

    def two_copies():
        program, other = folder / "two-copies", folder / "another" / library.name
        other.parent.mkdir()
        shutil.copy(library.resolve(), other)
        run(*compiler, *WARNINGS, here / "two_copies.c", "-o", program, *pkg_config(root, "--cflags", "--libs"), "-ldl")
        return run(program, other, LD_LIBRARY_PATH=str(library.parent))

    case(tap, "two copies in one process, one linked and one loaded", two_copies)
    case(tap, "C, linked by pkg-config",
         lambda: linked("linked", pkg_config(root, "--cflags", "--libs"), LD_LIBRARY_PATH=str(library.parent)))
    case(tap, "C++, linked by pkg-config", in_cpp)
    case(tap, "C, loaded with dlopen, through the function table", loaded)
    case(tap, "Python, ctypes", lambda: run(sys.executable, here / "ctypes_round_trip.py", library))
    cmake(tap, "CMake", here, root, folder / "cmake", compiler, "SHARED_LIBRARY")

    if not archives:
        for name in ("C, linked statically", "a plug-in", "CMake, static"):
            tap.skip(name, "this build has no static library: see --default-library")
        return
    alone = without_shared(root, folder / "static")
    flags = pkg_config(alone, "--static", "--cflags", "--libs")
    case(tap, "C, linked statically by pkg-config --static", lambda: linked("static-linked", flags))
    case(tap, "C, linked with -static, nothing loaded at run time",
         lambda: linked("static-all", [*flags, "-static"]))

    def named():
        program = folder / "system-error"
        run(*compiler, *WARNINGS, here / "system_error.c", "-o", program, *flags, "-static")
        said = run(program)
        return [] if said.startswith("EMFILE: ") and ": Too many open files" in said else [said]

    tap.check("C, linked with -static, has the names of the system's errors", named())
    plug_in(tap, here, folder / "plug-in.so", compiler, flags)
    tap.check("the static library defines the interface and nothing that could collide", strangers(archives[0]))
    cmake(tap, "CMake, with the static library alone", here, alone, folder / "cmake-static", compiler, "STATIC_LIBRARY")
    cmake(tap, "CMake, with the static library chosen", here, root, folder / "cmake-chosen", compiler, "STATIC_LIBRARY",
          "-Dgpumem_USE_STATIC_LIBS=ON")


def plug_in(tap, here, path, compiler, flags):
    """A shared library that has the static one inside exports its own functions only."""
    def problems():
        run(*compiler, "-shared", "-fPIC", "-Dmain=plug_in_main", here / "linked.c", "-o", path, *flags)
        exported = run("nm", "--dynamic", "--defined-only", "--format=just-symbols", path).split()
        if "plug_in_main" not in exported:
            raise RuntimeError("its own function is not exported")
        return [f"exported: {name}" for name in exported if "gpumem" in name]

    try:
        tap.check("a plug-in with the static library inside does not export it", problems())
    except RuntimeError as problem:
        tap.check("a plug-in with the static library inside does not export it", str(problem))


def strangers(archive):
    """Symbols that a program with the archive might define itself. Weak ones are the C++ library's templates."""
    names = {line.split()[-1] for line in run("nm", "--defined-only", "--extern-only", archive).splitlines()
             if re.match(r"[0-9a-f]+ [A-TX-Z] ", line)}
    ours = {name for name in names if re.match(r"gpumem_\w+$|_Z\w*N\w?6gpumem", name)}
    return [f"defined: {name}" for name in sorted(names - ours)] + ["no gpumem_copy"][:"gpumem_copy" not in names]


def cmake(tap, name, here, root, build, compiler, kind, *options):
    """The project in cmake/ finds, links and runs the library; it is refused what the version file refuses."""
    if not shutil.which("cmake"):
        tap.skip(name, "cmake is not installed")
        return
    (config,) = root.rglob("gpumem-config.cmake")
    said_by_guide = build.with_suffix(".guide")
    said_by_guide.write_text(guide(here.parents[1], "cmake"), encoding="utf-8")
    version = re.search(r'PACKAGE_VERSION "(.*)"', (config.parent / "gpumem-config-version.cmake").read_text()).group(1)

    def configure(wanted):
        # A launcher before the compiler is a word that CMake keeps apart.
        return run("cmake", "-S", here / "cmake", "-B", build, f"-Dgpumem_DIR={config.parent}",
                   f"-DCMAKE_C_COMPILER={compiler[-1]}", f"-DGPUMEM_WANTED={wanted}", f"-DGPUMEM_GUIDE={said_by_guide}", *options)

    def steps():
        said = configure(version)
        if f"gpumem {version} is a {kind}" not in said:
            raise RuntimeError(f"not a {kind}:\n{said}")
        run("cmake", "--build", build)
        return run(build / "program")

    case(tap, name, steps)
    refused = []
    for wanted in ("0.0.1", "0.1...<1"):
        try:
            configure(wanted)
        except RuntimeError as problem:
            refused.append(f"version {wanted} was refused: {problem}")
    for wanted in ("1.0", "0.999", "0.0.1...0.0.9"):
        try:
            configure(wanted)
            refused.append(f"version {wanted} was accepted")
        except RuntimeError as problem:
            if "version" not in str(problem):
                refused.append(f"version {wanted}: {problem}")
    tap.check(f"{name}: versions that fit", refused)


def from_shell(source, root, static, compiler, program):
    """By a shell, because pkg-config escapes each byte of a letter that is not ASCII."""
    (pc,) = root.rglob("gpumem.pc")
    words = [*compiler, *WARNINGS, source / "tests" / "consumers" / "linked.c", "-o", program]
    run("sh", "-c", f'eval "$0" "$(pkg-config {"--static " * static}--cflags --libs gpumem)"', shlex.join(map(str, words)),
        PKG_CONFIG_LIBDIR=str(pc.parent), PKG_CONFIG_SYSROOT_DIR=str(root))
    return run(program, LD_LIBRARY_PATH=str(pc.parent.parent))


def options(tap, source, build, c_compiler, cpp_compiler, folder):
    """One build, brought from one set of options to the next, because its objects stay the same."""
    # At the same distance from the sources as tests/run builds, so that ccache knows the objects.
    for path in source.iterdir():
        if path.name != "build":
            (folder / path.name).symlink_to(path)
    again, before = folder / "build" / "options", options_of(build)
    same = [f"-D{name}={str(before[name]).lower()}" for name in ("optimization", "debug", "werror", "cuda")]
    same += [f"-Dtoolkit_include={before['toolkit_include']}"]
    environment = {"CC": shlex.join(c_compiler), "CXX": shlex.join(cpp_compiler)}
    # As tests/run sets it.
    os.environ.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")
    fake_driver = (build / "tests" / "fake_cuda" / "libcuda.so.1").exists()
    unusual = {"prefix": "/opt/50% plätze", "libdir": "bücher/fach 2"}
    for number, chosen in enumerate((
            {"default_library": "shared", "cli": True, "fake_driver": fake_driver},
            {"default_library": "shared", "cli": False, "adapters": False, "fake_driver": False, **unusual},
            {"default_library": "static", "cli": True, **unusual})):
        name = "installed with " + ", ".join(f"{key}={str(value).lower()}" for key, value in chosen.items())
        try:
            run("meson", "setup", *["--reconfigure"][:number], again, folder, *same, "-Dtests=false", "-Ddocs=false",
                *(f"-D{key}={str(value).lower()}" for key, value in chosen.items()), **environment)
            run("meson", "compile", "-C", again)
            root = install(again, folder / f"root{number}")
            tap.check(name, wrong_files(root, source, options_of(again)))
            static = chosen["default_library"] == "static"
            case(tap, f"{name}: C, linked by pkg-config", lambda: from_shell(source, root, static, c_compiler, folder / f"linked{number}"))
            cmake(tap, f"{name}: CMake", source / "tests" / "consumers", root, folder / f"cmake{number}", c_compiler,
                  f"{chosen['default_library'].upper()}_LIBRARY")
            if chosen["cli"]:
                (program,) = root.rglob("bin/gpumem")
                where = {} if static else {"LD_LIBRARY_PATH": str(next(root.rglob("libgpumem.so")).parent)}
                said = run(program, "--version", **where)
                tap.check(f"{name}: the program runs", [] if said.startswith("gpumem ") else [said])
                (unit,) = root.rglob("gpumem-keeper.service")
                wanted = f'ExecStart="/{program.relative_to(root)}" keep --store'.replace("%", "%%")
                tap.check(f"{name}: the unit of the keeper names it", [] if wanted in unit.read_text(encoding="utf-8").splitlines() else [wanted])
        except RuntimeError as problem:
            tap.check(name, str(problem))


def subproject(tap, source, folder):
    here = source / "tests" / "consumers"
    project = folder / "consumer"
    (project / "subprojects").mkdir(parents=True)
    (project / "meson.build").write_text((here / "subproject" / "meson.build").read_text(encoding="utf-8") + guide(source, "meson"), encoding="utf-8")
    (project / "program.c").symlink_to(here / "linked.c")
    (project / "round_trip.h").symlink_to(here / "round_trip.h")
    (project / "subprojects" / "gpumem").symlink_to(source)

    def steps():
        # Without optimisation and debug information: whether it builds is the question. Without precompiled headers, so
        # that a source that does not include what it uses is found; without CUDA, as on most machines.
        # With Clang, whose code no other test runs without a sanitizer.
        clang = {"CC": "clang", "CXX": "clang++"} if shutil.which("clang") and shutil.which("clang++") else {}
        launcher = "ccache " if shutil.which("ccache") else ""
        run("meson", "setup", folder / "build", project, "--buildtype=plain", "-Db_pch=false", "-Dgpumem:cuda=disabled",
            "-Dgpumem:werror=true", "--force-fallback-for=gpumem",
            **{name: launcher + compiler for name, compiler in clang.items()})
        run("meson", "compile", "-C", folder / "build")
        return run(folder / "build" / "program")

    case(tap, "C, with gpumem as a Meson subproject", steps)
    if (folder / "build" / "build.ninja").exists():
        root = install(folder / "build", folder / "root")
        chosen = options_of(folder / "build") | {"adapters": False, "cli": False, "docs": False, "bench": False, "fake_driver": False}
        tap.check("a subproject installs the library without cuda and without the program", wrong_files(root, source, chosen))


def toolkits(tap, source, build, c_compiler, cpp_compiler, folder):
    """What Meson and packaging/build say of a Toolkit that is missing, old or elsewhere."""
    usual, named = cuda_include(), options_of(build)["toolkit_include"]
    none, old, good = folder / "none", folder / "old" / "include", folder / "ein großes Toolkit" / "include"
    none.mkdir()
    old.mkdir(parents=True)
    (old / "cuda.h").write_text("#define CUDA_VERSION 11080\n", encoding="utf-8")
    (old / "cudaTypedefs.h").touch()
    unset = {"CUDA_HOME": "", "CUDA_PATH": ""}
    compilers = {"CC": shlex.join(c_compiler), "CXX": shlex.join(cpp_compiler)}

    def configured(words, *options, fails=False, **env):
        command = ["meson", "setup", tempfile.mkdtemp(dir=folder), source, "-Dtests=false", "-Dcli=false", "-Dadapters=false", *options]
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                                env={**os.environ, **unset, **compilers, **env})
        return [] if words in result.stdout and bool(result.returncode) == fails else [result.stdout, f"exit status {result.returncode}", words]

    def chosen(**env):
        """The folder that packaging/build takes, or an empty text."""
        return subprocess.run(["bash", "-c", 'source "$0" && find_cuda_headers', source / "packaging" / "dependencies"], text=True,
                              stdout=subprocess.PIPE, check=False, env={**os.environ, **unset, **env}).stdout.strip()

    lacking, outdated = f"no cuda.h and cudaTypedefs.h in {none}", f"CUDA 11.8 in {old} is too old, 13.0 is needed"
    asked = "the cuda backend was asked for, but: "
    tap.check("no Toolkit: a build without the cuda backend", configured(f"no: {lacking}", f"-Dtoolkit_include={none}"))
    tap.check("no Toolkit, and the backend asked for", configured(asked + lacking, f"-Dtoolkit_include={none}", "-Dcuda=enabled", fails=True))
    tap.check("an old Toolkit: a build without the cuda backend", configured(f"no: {outdated}", f"-Dtoolkit_include={old}"))
    tap.check("an old Toolkit, and the backend asked for", configured(asked + outdated, f"-Dtoolkit_include={old}", "-Dcuda=enabled", fails=True))
    tap.check("an old Toolkit: packaging/build passes it over", [folder for folder in [chosen(CUDA_HOME=str(old.parent))] if folder == str(old)])
    if not (usual or named):
        tap.skip("a Toolkit elsewhere", "there is none here")
        return
    good.parent.mkdir()
    good.symlink_to(usual or named)
    for variable in "CUDA_HOME", "CUDA_PATH":
        env = {variable: str(good.parent)}
        tap.check(f"a Toolkit elsewhere, named by {variable}", configured(f"in {good}", "-Dcuda=enabled", **env))
        tap.check(f"a Toolkit elsewhere, named by {variable}: packaging/build takes it", [folder for folder in [chosen(**env)] if folder != str(good)])
    if chosen() == "/usr/local/cuda/include":
        tap.check("an old Toolkit that is named, and a newer one in its usual place",
                  configured("in /usr/local/cuda/include", "-Dcuda=enabled", CUDA_HOME=str(old.parent)))


def quickstart(tap, source, c_compiler, cpp_compiler, folder):
    # It would install them.
    missing = missing_packages(source, "build")
    if missing:
        tap.skip("packaging/quickstart", f"not installed: {' '.join(missing)}")
        return
    user = ordinary_user()

    def by_user(name, steps):
        """A case that says nothing if root, who can write everywhere, is its user."""
        if user is None:
            tap.skip(name, "this is root, and unshare --user is refused here")
        else:
            tap.check(name, steps())

    copy, toolkit = folder / "a clone", folder / "toolkit"
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", "build", "__pycache__"))
    run("chmod", "--recursive", "a-w", copy)
    toolkit.mkdir()
    (toolkit / "largest").write_bytes(bytes(range(256)) * 4000)
    (toolkit / "another").write_bytes(b"smaller")
    before = {path for path in copy.rglob("*") if path.name != "__pycache__" and path.suffix != ".pyc"}
    # By default it takes the largest file of the Toolkit. Meson looks for headers in other places, too.
    env = {**os.environ, "CC": shlex.join(c_compiler), "CXX": shlex.join(cpp_compiler), "CUDA_HOME": str(toolkit), "GPUMEM_BACKEND": "host",
           "GPUMEM_BUILD_DIR": str(folder / "build")}
    env.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")

    def said(status, words, *arguments):
        result = subprocess.run([*(user or []), copy / "packaging" / "quickstart", *arguments], text=True, env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, check=False)
        lost = [word for word in words if word not in result.stdout]
        return [] if result.returncode == status and not lost else [result.stdout, f"exit status {result.returncode}", f"not said: {lost}"]

    def installed():
        try:
            built = folder / "build" / "quickstart"
            run(*user, "meson", "install", "-C", built, DESTDIR=str(folder / "root"))
            return wrong_files(folder / "root", source, options_of(built))
        except RuntimeError as problem:
            return str(problem)

    by_user("packaging/quickstart builds sources that cannot be written, and moves the largest file",
            lambda: said(0, ["taking the largest", f"{toolkit / 'largest'}", "pageable", "buffer"]))
    by_user("packaging/quickstart moves a file of one's own, in the build that is there",
            lambda: said(0, [str(copy / "LICENSE"), "buffer"], copy / "LICENSE"))
    tap.check("packaging/quickstart refuses what it does not know",
              said(2, ["unknown option --fast"], "--fast") + said(2, ["is not a readable file"], folder / "none") + said(2, ["Usage:"], "a", "b"))
    by_user("packaging/quickstart writes nothing to the sources", lambda: [
        str(path) for path in copy.rglob("*") if path not in before and path.name != "__pycache__" and path.suffix != ".pyc"])
    by_user("what packaging/quickstart built is installed without writing to the sources", installed)
    run("chmod", "--recursive", "u+w", copy)


def main():
    way, source, build, *words = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:]
    c_compiler, cpp_compiler = words[:words.index("--")], words[words.index("--") + 1:]
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        if way == "installed":
            installed(tap, source, build, c_compiler, cpp_compiler, Path(folder))
        elif way == "options":
            options(tap, source, build, c_compiler, cpp_compiler, Path(folder))
        elif way == "toolkits":
            toolkits(tap, source, build, c_compiler, cpp_compiler, Path(folder))
        elif way == "quickstart":
            quickstart(tap, source, c_compiler, cpp_compiler, Path(folder))
        else:
            subproject(tap, source, Path(folder))
    tap.finish()


if __name__ == "__main__":
    main()
