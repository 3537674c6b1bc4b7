#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Makes the packages, installs them in a root of their own, uses them there and removes them.
Usage: packages.py SOURCE_ROOT FOLDER [KIND...]

packaging/build runs as an ordinary user even if this is run by root. The root is a fresh Debian with a compiler and
Python, and nothing of gpumem. Only root can make it. FOLDER is where the packages go. packages_wheel.py has the cases
of wheels, packages_nuget.py those of NuGet, packages_arm64.py those of Debian packages for arm64.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tap import Tap

# What a root needs so that every package can be installed, programs in C, Go and Rust compiled, and commands completed.
IN_ROOT = ["cargo", "fish", "gcc", "golang-go", "libc6-dev", "libstdc++6", "libxxhash0", "pkg-config", "python3", "zsh"]
# A program in C.
PROGRAM = "tests/consumers/linked.c", "tests/consumers/round_trip.h"
# What both kinds of package managers keep for themselves.
MANAGERS_OWN = ("etc/ld.so.cache", "var/cache/ldconfig/", "var/lib/dpkg/", "var/lib/rpm/", "root/.rpmdb/", "var/log/", "proc/",
                "dev/")
# And what man-db makes anew when a page comes or goes.
MAN_DBS_OWN = re.compile(r"var/cache/man/(?:.*/)?(?:index\.db|CACHEDIR\.TAG)")
FEDORAS_OWN = ("/site-packages", "usr/lib64/cmake", "usr/lib64/pkgconfig", "usr/share/licenses", "usr/share/bash-completion",
               "usr/share/bash-completion/completions", "usr/share/fish", "usr/share/fish/vendor_completions.d", "usr/share/zsh",
               "usr/share/zsh/site-functions", "usr/lib/systemd/user")
# Where what an RPM package brings is not where Debian looks.
RPM_PATHS = {"LD_LIBRARY_PATH": "/usr/lib64", "LIBRARY_PATH": "/usr/lib64", "PKG_CONFIG_PATH": "/usr/lib64/pkgconfig"}


# Prints the commands that begin with b, one a line. zsh shows them in a terminal alone, and Debian's does not look where Fedora's does.
COMPLETION = {
    "bash": "source /usr/share/bash-completion/completions/gpumem && COMP_WORDS=(gpumem b) && COMP_CWORD=1 && _gpumem gpumem && "
            "printf '%s\\n' \"${COMPREPLY[@]}\"",
    "fish": 'complete --do-complete "gpumem b"',
    "zsh": "fpath+=(FPATH) && autoload -U compinit && compinit -D -u && _describe() { print -l -- ${${(P)2}%%:*} } && "
           "words=(gpumem b) && CURRENT=2 && $_comps[gpumem]",
}


class Failed(RuntimeError):
    pass


def run(*command, **options):
    """Output of a command; a failure raises with the end of what it printed."""
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, **options)
    if result.returncode:
        lines = [" ".join(map(str, command)), *result.stdout.splitlines()[-60:], f"exit status {result.returncode}"]
        raise Failed("\n".join(lines))
    return result.stdout


def works(*command):
    return shutil.which(command[0]) and subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                                       check=False).returncode == 0


def attempt(tap, name, steps):
    """One case; returns whether it passed. `steps` raises, or returns problems."""
    try:
        # What a program should not have said may be nothing at all.
        problems = [problem or "nothing was said" for problem in steps() or []]
    except Failed as problem:
        problems = [str(problem)]
    tap.check(name, problems)
    return not problems


def missing_packages(source, kind):
    """What packaging/build would want to install."""
    listed = run("bash", "-c", 'source "$0"; printf "%s\\n" "${build_packages[@]}" "${' + kind + '_packages[@]}"',
                 source / "packaging" / "dependencies").split()
    if not shutil.which("dpkg-query"):
        return ["what is called here " + " ".join(listed)]
    shown = subprocess.run(["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\\n", *listed], text=True,
                           capture_output=True, check=False).stdout
    return sorted({*listed} - {line.split()[0] for line in shown.splitlines() if line.endswith(" installed")})


class Kind:
    """Debian or RPM packages: how they are read, installed and removed."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder / "packages" / name

    def packages(self):
        """Name -> file, without the packages of source and of debug information."""
        found = {}
        for path in sorted(self.folder.glob(f"*.{self.name}")):
            package = self.ask(path, "Package", "NAME")
            if "-dbg" not in package and "debug" not in package and not path.name.endswith(".src.rpm"):
                found[package] = path
        return found

    def ask(self, path, deb_field, rpm_tag):
        if self.name == "deb":
            return run("dpkg-deb", "--field", path, deb_field).strip()
        return run("rpm", "--query", "--package", "--queryformat", f"%{{{rpm_tag}}}", path).strip()

    def needs(self, path):
        """Names of what a package needs of the system, without versions."""
        if self.name == "deb":
            words = self.ask(path, "Depends", "").split(",")
        else:
            words = run("rpm", "--query", "--package", "--requires", path).splitlines()
        return {word.split()[0].split("(")[0] for word in words if word.strip() and not word.startswith("rpmlib(")}

    def install(self, root, files):
        if self.name == "deb":
            run("dpkg", f"--root={root}", "--install", *files)
        else:
            # rpm knows nothing of Debian's packages; needs() was looked at instead.
            run("rpm", f"--root={root}", "--install", "--nodeps", *files)

    def replace(self, root, files):
        """Installs other versions of what is installed."""
        if self.name == "deb":
            self.install(root, files)
        else:
            run("rpm", f"--root={root}", "--upgrade", "--oldpackage", "--nodeps", *files)

    def broken(self, root, names):
        """What the manager finds wrong with what is installed."""
        if self.name == "deb":
            return run("dpkg", f"--root={root}", "--audit") + run("dpkg", f"--root={root}", "--verify", *names)
        return run("rpm", f"--root={root}", "--verify", "--nodeps", *names)

    def remove(self, root, names):
        if self.name == "deb":
            run("dpkg", f"--root={root}", "--purge", *names)
        else:
            run("rpm", f"--root={root}", "--erase", "--nodeps", *names)


EXPECTED = {
    "deb": {"libgpumem0": {"libc6", "libgcc-s1", "libstdc++6"},
            "libgpumem-dev": {"libgpumem0"},
            "libgpumem-doc": set(),
            "gpumem-tools": {"init-system-helpers", "libc6", "libgcc-s1", "libstdc++6", "libgpumem0", "libxxhash0"},
            "gpumem-fakecuda": {"libc6", "libgcc-s1"},
            "golang-gpumem-dev": {"libgpumem-dev", "pkg-config"},
            "librust-gpumem-dev": {"librust-gpumem-sys-dev"},
            "librust-gpumem-sys-dev": {"libgpumem-dev", "pkg-config"},
            "python3-gpumem": {"python3:any", "libgpumem0"}},
    "rpm": {"gpumem-libs": {"libc.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libm.so.6", "libgpumem.so.0", "ld-linux-x86-64.so.2",
                            "rtld"},
            "gpumem-devel": {"gpumem-libs", "libgpumem.so.0", "/usr/bin/pkg-config"},
            "gpumem-doc": set(),
            "gpumem": {"/bin/sh", "libc.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libm.so.6", "libgpumem.so.0", "libxxhash.so.0",
                       "gpumem-libs", "rtld"},
            "gpumem-fakecuda": {"libc.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "rtld"},
            "golang-gpumem-devel": {"gpumem-devel"},
            "rust-gpumem-devel": {"rust-gpumem-sys-devel"},
            "rust-gpumem-sys-devel": {"gpumem-devel"},
            "python3-gpumem": {"python", "gpumem-libs"}},
}


def cuda_include():
    """Where packaging/build finds the headers of CUDA, without which there is no gpumem-fakecuda; or None."""
    dependencies = Path(__file__).resolve().parent.parent / "packaging" / "dependencies"
    found = subprocess.run(["bash", "-c", 'source "$0" && find_cuda_headers', dependencies], text=True, stdout=subprocess.PIPE, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def ordinary_user(*more):
    """What stands before a command that shall run without a right of root; None if this is root and cannot do that."""
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000", *more]
    if os.geteuid() != 0:
        return []
    return user if works(*user, "true") else None


def make(tap, kind, source, folder, name, *more, **variables):
    """packaging/build without a right of root, which is the case `name`; returns whether it succeeded."""
    user = ordinary_user(*more)
    if user is None:
        tap.skip(f"{kind}: packaging/build as an ordinary user", "this is root, and unshare --user is refused here")
    command = [*(user or []), source / "packaging" / "build", kind]
    # No flags and no make of whoever started this, and no library of theirs before the system's.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "LD_LIBRARY_PATH", "LIBRARY_PATH", "GPUMEM_ZIG")}
    env["GPUMEM_BUILD_DIR"] = str(folder)
    # The packages of debug information are made too, but of line numbers alone: all of it takes a third of the time.
    env |= {"DEB_CFLAGS_APPEND": "-g1", "DEB_CXXFLAGS_APPEND": "-g1", **variables}
    return attempt(tap, name, lambda: run(*command, env=env) and None)


def build(tap, kind, source, folder):
    """Returns whether there are the packages that there should be."""
    checker = "lintian" if kind.name == "deb" else "rpmlint"
    if not make(tap, kind.name, source, folder, f"{kind.name}: built by an ordinary user, without error or warning from {checker}"):
        return False
    expected, found = dict(EXPECTED[kind.name]), kind.packages()
    if cuda_include() is None:
        del expected["gpumem-fakecuda"]
        tap.skip(f"{kind.name}: gpumem-fakecuda", "the headers of CUDA are not here")
    tap.check(f"{kind.name}: the packages that there should be",
              [f"missing: {name}" for name in expected.keys() - found.keys()] +
              [f"too much: {name}" for name in found.keys() - expected.keys()])
    for name in sorted(expected.keys() & found.keys()):
        tap.check(f"{kind.name}: {name} needs nothing unexpected", [
            f"needs {what}" for what in sorted(kind.needs(found[name]) - expected[name])])
    return expected.keys() == found.keys()


def make_root(tap, root, name="a clean root", suite=None, include=IN_ROOT):
    """Whether there is a fresh Debian at `root`, of the same release as this system unless `suite` names one."""
    if os.geteuid() != 0:
        tap.skip(name, "only root can make one")
        return False
    if not shutil.which("mmdebstrap"):
        tap.skip(name, "mmdebstrap is not installed")
        return False
    if not works("unshare", "--mount", "true"):
        tap.skip(name, "this system lets nobody mount, as mmdebstrap does")
        return False
    release = dict(line.rstrip().split("=", 1) for line in open("/etc/os-release", encoding="utf-8") if "=" in line)
    own = release.get("VERSION_CODENAME", "")
    # The mirror of this machine, which may be near.
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages").split("\n")
    mirrors = [line.split()[0] for line in targets if line.endswith(f" {own}") and "debian" in line]
    try:
        run("mmdebstrap", "--variant=apt", '--aptopt=Acquire::Retries "5"', f"--include={','.join(include)}", suite or own, root,
            *mirrors[:1])
    except Failed as problem:
        # Of the mirror or of this system; the packages have no part in it.
        tap.skip(name, "mmdebstrap cannot make one: " + "; ".join(str(problem).strip().split("\n")[-2:]))
        return False
    tap.check(name, [])
    return True


def snapshot(root):
    """Path -> what tells a file from another, of all but what package managers keep for themselves."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            shown = os.path.relpath(path, root)
            if not f"{shown}/".startswith(MANAGERS_OWN) and not MAN_DBS_OWN.fullmatch(shown):
                state = os.lstat(path)
                found[shown] = (state.st_mode, None if name in folders else (state.st_size, state.st_mtime_ns))
    return found


def entering(kind, root):
    """What stands before a command that runs inside the root, where the packages may be installed."""
    enter = ["chroot", root]
    private = ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc"]
    if works(*private, "true"):
        enter = [*private, *enter]
    enter += ["env", "-i", "PATH=/usr/bin:/bin", "GPUMEM_BACKEND=host"]
    if kind.name == "rpm":
        # Fedora's macros pack the bytecode. Debian's rpmbuild does not, so that Python would leave its own.
        enter.append("PYTHONDONTWRITEBYTECODE=1")
        (python,) = {path.parent for path in root.glob("usr/lib/python3*/*/gpumem")}
        enter += [f"{name}={value}" for name, value in RPM_PATHS.items()] + [f"PYTHONPATH=/{python.relative_to(root)}"]
    return enter


def use(tap, kind, root, source):
    """A C and a Python program, the command line and its completion, inside the root."""
    enter = entering(kind, root)
    work = root / "tmp" / "consumer"
    work.mkdir()
    for name in (*PROGRAM, "bindings/python/examples/basic.py"):
        shutil.copy(source / name, work)

    def linked():
        run(*enter, "sh", "-c", "cd /tmp/consumer && gcc -std=c99 -Wall -Werror linked.c $(pkg-config --cflags --libs gpumem)")
        said = run(*enter, "/tmp/consumer/a.out")
        return [] if "round trip good" in said else [said]

    def module():
        said = run(*enter, "python3", "-W", "error", "/tmp/consumer/basic.py")
        expected = (source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
        return [] if said == expected else [said]

    def documentation():
        (folder,) = (path.parent for path in root.glob("usr/share/doc/*gpumem*/html"))
        pages = ["index.html", "memory_8h.html", *(f"{path.stem}.html" for path in (source / "docs").glob("*.md"))]
        program = f"/{folder.relative_to(root)}/examples/basic.c"
        said = run(*enter, "sh", "-c", f"cd /tmp/consumer && gcc {program} $(pkg-config --cflags --libs gpumem) && ./a.out")
        expected = (source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
        return [f"missing: {name}" for name in pages if not (folder / "html" / name).is_file()] + [said] * (said != expected)

    def completion(shell):
        said = run(*enter, "HOME=/tmp/consumer", shell, "-c", COMPLETION[shell].replace("FPATH", "/usr/share/zsh/site-functions" * (kind.name == "rpm")))
        found = [line.split("\t")[0] for line in said.splitlines()]
        # What _describe gets in zsh has all commands: it is the shell that chooses.
        return [] if (found.count("bench") == 1 if shell == "zsh" else found == ["bench"]) else [said]

    attempt(tap, f"{kind.name}: a C program is compiled and runs", linked)
    attempt(tap, f"{kind.name}: a Python program runs", module)
    attempt(tap, f"{kind.name}: the pages are there, and a program of them runs", documentation)
    for shell in COMPLETION:
        attempt(tap, f"{kind.name}: {shell} completes a command", lambda it=shell: completion(it))
    attempt(tap, f"{kind.name}: the program gpumem runs",
            lambda: [] if "host" in (said := run(*enter, "gpumem", "info")) else [said])
    attempt(tap, f"{kind.name}: gpumem bench measures",
            lambda: [] if "ratio" in (said := run(*enter, "gpumem", "bench", "--group", "call", "--quick")) else [said])
    attempt(tap, f"{kind.name}: the units of the keeper name a program, and are off", lambda: keeper_unit(kind, root))
    attempt(tap, f"{kind.name}: a Go program is built from the package", lambda: go_program(root, source, enter))
    attempt(tap, f"{kind.name}: a Rust program is built from the packages", lambda: rust_program(root, source, enter))
    if kind.name == "deb":
        autopkgtests(tap, kind, root, enter)
    if cuda_include() is not None:
        use_fake_driver(tap, kind, root, source, enter)
        attempt(tap, f"{kind.name}: the script for CI without a GPU passes", lambda: ci_script(root, source, enter))
    shutil.rmtree(work)


def autopkgtests(tap, kind, root, enter):
    """The scripts of debian/tests as autopkgtest runs them: in the unpacked source, where output on stderr is a failure."""
    folder = root / "tmp" / "consumer" / "package"
    folder.mkdir()
    for pattern, *options in (("*.orig.tar.xz", "--strip-components=1"), ("*.debian.tar.xz",)):
        (archive,) = kind.folder.glob(pattern)
        run("tar", "--extract", f"--file={archive}", f"--directory={folder}", "--no-same-owner", *options)
    scripts = folder / "debian" / "tests"
    stanzas = [dict(re.findall(r"^([\w-]+): (.*)$", stanza, re.MULTILINE))
               for stanza in (scripts / "control").read_text(encoding="utf-8").split("\n\n")]
    stanzas = [stanza for stanza in stanzas if "Tests" in stanza]
    tap.check("deb: each script of debian/tests is run",
              sorted({path.name for path in scripts.iterdir()} ^ {"control", *(stanza["Tests"] for stanza in stanzas)}))

    def script(stanza):
        run("dpkg", f"--root={root}", "--status", *stanza["Depends"].split(", "))
        scratch = Path(tempfile.mkdtemp(dir=root / "tmp" / "consumer"))
        # Not with the backend that the other cases have chosen.
        result = subprocess.run([*enter, f"AUTOPKGTEST_TMP=/{scratch.relative_to(root)}", "env", "--unset=GPUMEM_BACKEND",
                                 f"--chdir=/{folder.relative_to(root)}", f"debian/tests/{stanza['Tests']}"],
                                text=True, capture_output=True, check=False)
        return [result.stdout, result.stderr, f"exit status {result.returncode}"] if result.returncode or result.stderr else []

    for stanza in stanzas:
        if "gpumem-fakecuda" in stanza["Depends"] and cuda_include() is None:
            tap.skip(f"deb: debian/tests/{stanza['Tests']}", "the headers of CUDA are not here")
        else:
            attempt(tap, f"deb: debian/tests/{stanza['Tests']}", lambda stanza=stanza: script(stanza))


def keeper_unit(kind, root):
    unit = root / "usr" / "lib" / "systemd" / "user" / "gpumem-keeper.service"
    program = re.search(r'^ExecStart="/([^"]+)"', unit.read_text(encoding="utf-8"), re.MULTILINE)[1]
    return [f"missing: {path}" for path in (root / program, unit.with_suffix(".socket")) if not path.exists()] + [
        f"on: {link}" for link in root.rglob("*.wants/gpumem-keeper.*")] + (unknown_to_scripts(kind) if kind.name == "rpm" else [])


def unknown_to_scripts(kind):
    """Units for which the package does not do as Fedora's presets say when it comes, or which stay on when it goes."""
    scripts = run("rpm", "--query", "--package", "--scripts", kind.packages()["gpumem"])
    parts = dict(re.findall(r"^(\w+) scriptlet [^\n]*\n(.*?)(?=^\w+ scriptlet |\Z)", scripts, re.DOTALL | re.MULTILINE))
    return [f"{part} scriptlet: no {word} {unit}" for part, word in (("postinstall", "install-user-units"), ("preuninstall", "remove-user-units"))
            for unit in ("gpumem-keeper.service", "gpumem-keeper.socket") if not re.search(rf"{word}.*{unit}", parts.get(part, ""))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def go_program(root, source, enter):
    """As docs/go.md has it."""
    page, folder = source / "docs" / "go.md", root / "tmp" / "consumer" / "go"
    folder.mkdir()
    (program, *_) = (block for block in blocks(page, "go") if block.startswith("package main"))
    (folder / "program.go").write_text(program, encoding="utf-8")
    (command,) = (block for block in blocks(page, "sh") if "/usr/share/gocode" in block)
    said = run(*enter, "GOCACHE=/tmp/consumer/go/cache", "sh", "-ec", f"cd /tmp/consumer/go\n{command}")
    return [] if said == "to the device and back\n" else [said]


def rust_program(root, source, enter):
    """As docs/rust.md has it."""
    page, folder = source / "docs" / "rust.md", root / "tmp" / "consumer" / "rust"
    (folder / "src").mkdir(parents=True)
    (folder / ".cargo").mkdir()
    (folder / "src" / "main.rs").write_text(blocks(page, "rust")[0], encoding="utf-8")
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "program"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\ngpumem = "0.1"\n', encoding="utf-8")
    (config,) = (block for block in blocks(page, "toml") if "/usr/share/cargo/registry" in block)
    (folder / ".cargo" / "config.toml").write_text(config, encoding="utf-8")
    said = run(*enter, "CARGO_HOME=/tmp/consumer/rust/home", "sh", "-ec", "cd /tmp/consumer/rust && cargo run --offline --quiet")
    expected = (source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
    return [] if said == expected else [said]


def ci_script(root, source, enter):
    """As docs/ci.md has it, with the program of the README."""
    folder = root / "tmp" / "consumer" / "ci"
    folder.mkdir()
    (script,) = (block for block in blocks(source / "docs" / "ci.md", "sh") if "FAKE_CUDA_REPORT" in block)
    (folder / "without-a-gpu").write_text(script, encoding="utf-8")
    (folder / "program.c").write_text(blocks(source / "README.md", "c")[0], encoding="utf-8")
    (library,) = root.glob("usr/lib*/**/fake-cuda/libcuda.so.1")
    said = run(*enter, f"FAKE=/{library.parent.relative_to(root)}", "sh", "-c", "cd /tmp/consumer/ci && sh without-a-gpu")
    return [] if said.count("to the device and back\n") == 3 and "out of memory" in said else [said]


def refused(text, *command):
    """Whether a command fails and says this."""
    try:
        run(*command)
    except Failed as problem:
        return [] if text in str(problem) else [str(problem)]
    return ["it succeeded"]


def use_fake_driver(tap, kind, root, source, enter):
    """What the page of the fake driver shows, and the program gpumem over it; and that nobody gets it by accident."""
    name, copy = f"{kind.name}: the fake driver", root / "tmp" / "consumer" / "source"
    (library,) = root.glob("usr/lib*/**/fake-cuda/libcuda.so.1")
    folder = f"/{library.parent.relative_to(root)}"
    page = source / "docs" / "fake-driver.md"
    tap.check(f"{name} is where its page says", [] if re.search(rf"(?<=[`=]){folder}(?=[`\n])", page.read_text(encoding="utf-8")) else [folder])
    if kind.name == "deb":
        given = [path.name for path in root.glob("var/lib/dpkg/info/gpumem-fakecuda*.shlibs")]
    else:
        given = re.findall("libcuda.*", run("rpm", "--query", "--package", "--provides", kind.packages()["gpumem-fakecuda"]))
    tap.check(f"{name} is no package's driver", given)
    attempt(tap, f"{name} is not found by default",
            lambda: refused("GPUMEM_ERROR_DRIVER_NOT_FOUND", *enter, "gpumem", "move", "/tmp/consumer/basic.py", "--backend", "cuda"))

    fake = source / "tests" / "fake_cuda"
    for path in (page, source / "docs" / "examples" / "fake_driver.c", source / "tests" / "tap.py", fake / "fake_driver.py", *fake.glob("*.cpp")):
        (copy / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy / path.relative_to(source))
    shutil.copy(cuda_include() / "cuda.h", copy)
    inside = f"/{copy.relative_to(root)}"
    attempt(tap, f"{name}: a program is compiled, runs, and has its calls fail", lambda: run(
        *enter, f"PYTHONPATH={inside}/tests", "python3", f"{inside}/tests/fake_cuda/fake_driver.py", inside, folder, inside, "gcc") and None)
    found = ":".join([folder] + [RPM_PATHS["LD_LIBRARY_PATH"]] * (kind.name == "rpm"))
    over_it = [*enter, f"LD_LIBRARY_PATH={found}", "gpumem", "move", "/tmp/consumer/basic.py", "--backend", "cuda"]
    attempt(tap, f"{name}: gpumem moves a file", lambda: [] if "Device 0 of cuda: Fake CUDA device 0" in (said := run(*over_it)) else [said])
    attempt(tap, f"{name}: gpumem reports a failure of the driver", lambda: refused(
        "GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY", *over_it[:-5], "FAKE_CUDA_FAIL=cuMemAlloc:1:always:CUDA_ERROR_OUT_OF_MEMORY", *over_it[-5:]))


def cycle(tap, kind, root, source):
    """Install, use, remove, and see that all is as before."""
    before, files = snapshot(root), kind.packages()
    if not attempt(tap, f"{kind.name}: installed", lambda: kind.install(root, files.values())):
        return
    new = snapshot(root)
    tap.check(f"{kind.name}: nothing that was there changed",
              [name for name, state in before.items() if new.get(name) != state])
    use(tap, kind, root, source)
    if attempt(tap, f"{kind.name}: removed", lambda: kind.remove(root, files)):
        after = snapshot(root)
        if kind.name == "rpm":  # on Debian nothing owns these folders, which packages of Fedora do
            after = {name: state for name, state in after.items() if name in before or not name.endswith(FEDORAS_OWN)}
        tap.check(f"{kind.name}: removed without a trace",
                  [f"left behind: {name}" for name in sorted(after.keys() - before.keys())] +
                  [f"gone or changed: {name}" for name, state in sorted(before.items()) if after.get(name) != state])


def older(kind, name, path, folder):
    """A package of version 0.0.1 that has what another one has, and one file more."""
    tree, mark = folder / name, Path("usr", "share", "doc", f"{name}-old")
    if kind.name == "deb":
        run("dpkg-deb", "--raw-extract", path, tree)
        control = tree / "DEBIAN" / "control"
        text = control.read_text(encoding="utf-8")
        version = re.search("^Version: (.*)$", text, re.MULTILINE)[1]
        control.write_text(text.replace(version, "0.0.1-1").replace(version.split("-")[0], "0.0.1"), encoding="utf-8")
        (tree / mark).parent.mkdir(parents=True, exist_ok=True)
        (tree / mark).touch()
        run("dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, f"{tree}.deb")
        return Path(f"{tree}.deb")
    (tree / mark).parent.mkdir(parents=True)
    (tree / mark).touch()
    run("bash", "-c", 'set -o pipefail; rpm2cpio "$0" | cpio --extract --make-directories --quiet', path, cwd=tree)
    owned = [*run("rpm", "--query", "--package", "--list", path).split(), f"/{mark}"]
    files = "\n".join(f'%dir "{name}"' if (found := tree / name[1:]).is_dir() and not found.is_symlink() else f'"{name}"' for name in owned)
    spec = folder / f"{name}.spec"
    spec.write_text(f"Name: {name}\nVersion: 0.0.1\nRelease: 1\nSummary: An older one\nLicense: Apache-2.0\nAutoReqProv: no\n%description\n"
                    f"%install\ncp -a {tree}/. %{{buildroot}}\n%files\n{files}\n", encoding="utf-8")
    run("rpmbuild", "-bb", f"--define=_topdir {folder}/build", "--define=__os_install_post %nil", "--define=debug_package %nil",
        "--define=_build_id_links none", spec)
    (made,) = (folder / "build" / "RPMS").rglob(f"{name}-0.0.1-*.rpm")
    return made


# A program that has begun with one version and goes on with another.
GOES_ON = """
import gpumem
memory = gpumem.default_device().memory(4096, "pinned")
print("ready", flush=True)
input()
memory.close()
gpumem.default_device().memory(4096, "device").close()
print("good", flush=True)
"""


def upgrade(tap, kind, root, folder):
    """An older version is replaced while a program uses it, comes back, and goes. Returns whether the root is as before."""
    files = {name: path for name, path in kind.packages().items()
             if name in ("libgpumem0", "libgpumem-dev", "gpumem-tools", "gpumem-libs", "gpumem-devel", "gpumem", "python3-gpumem")}
    old, before = [], snapshot(root)

    def made():
        old.extend(older(kind, name, path, folder) for name, path in files.items())

    def marks():
        return [str(path) for path in root.glob("usr/share/doc/*gpumem*-old")]

    def replaced():
        kind.install(root, old)
        enter = entering(kind, root)
        program = [*enter, "PYTHONDONTWRITEBYTECODE=1", "python3", "-W", "error", "-c", GOES_ON]
        with subprocess.Popen(program, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            first = process.stdout.readline()
            kind.replace(root, files.values())
            rest, _ = process.communicate("\n")
        return ([] if (first, rest, process.returncode) == ("ready\n", "good\n", 0) else [f"the program: {first}{rest}{process.returncode}"]) + [
            f"left of the older one: {path}" for path in marks()] + [
            line for line in kind.broken(root, files).splitlines() if line]

    def back():
        kind.replace(root, old)
        said = run(*entering(kind, root), "PYTHONDONTWRITEBYTECODE=1", "gpumem", "info")
        return [said] * ("host" not in said) + ["not all are the older ones", *marks()] * (len(marks()) != len(old))

    def removed():
        kind.remove(root, files)
        after = snapshot(root)
        return [f"left behind: {name}" for name in sorted(after.keys() - before.keys())
                if kind.name == "deb" or not name.endswith(FEDORAS_OWN)] + [
            f"gone or changed: {name}" for name, state in sorted(before.items()) if after.get(name) != state]
    for name, steps in (("there are older packages", made), ("an older version is replaced while a program uses it", replaced),
                        ("an older version replaces a newer one", back), ("the older version is removed without a trace", removed)):
        if not attempt(tap, f"{kind.name}: {name}", steps):
            return False
    return True


def half_installed(tap, kind, root, source):
    """Debian packages that were unpacked without what they need say so, and are complete once it comes."""
    files, before = kind.packages(), snapshot(root)
    names = ["gpumem-tools", "libgpumem-dev", "python3-gpumem"]
    enter = [*entering(kind, root), "PYTHONDONTWRITEBYTECODE=1"]
    module = [*enter, "python3", "-c", "import gpumem; gpumem.default_device()"]

    def lacking():
        run("dpkg", f"--root={root}", "--unpack", *(files[name] for name in names))
        problems = [line for name in names for line in refused(
            "depends on libgpumem0", "env", "LC_ALL=C.UTF-8", "dpkg", f"--root={root}", "--configure", name)]
        return problems + refused("install the library", *module) + refused("libgpumem.so.0", *enter, "gpumem", "info")

    def linked():
        run(*enter, "sh", "-ec", "gcc -o /tmp/linked /tmp/linked.c $(pkg-config --cflags --libs gpumem)")
        said = run(*enter, "/tmp/linked")
        for name in ("linked", *(Path(name).name for name in PROGRAM)):
            (root / "tmp" / name).unlink()
        return [] if "round trip good" in said else [said]

    def without_plug_in():
        (plug_in,) = root.glob("usr/lib/*/gpumem/libgpumem-torch.so")
        plug_in.rename(root / "tmp" / plug_in.name)
        problems = refused(f"there is no {plug_in.name}: looked for /usr/lib/python3/dist-packages/gpumem/adapters/{plug_in.name}, "
                           f"/{plug_in.relative_to(root)}, ", *enter, "python3", "-c",
                           f"from gpumem.adapters import _plug_in; _plug_in.path('{plug_in.name}', 'GPUMEM_TORCH_LIBRARY')")
        (root / "tmp" / plug_in.name).rename(plug_in)
        return problems

    def completed():
        run("dpkg", f"--root={root}", "--unpack", files["libgpumem0"])
        run(*module)  # before anything is configured, too
        run("dpkg", f"--root={root}", "--configure", "--pending")
        return linked() + ([] if "host" in (said := run(*enter, "gpumem", "info")) else [said])

    def removed():
        kind.remove(root, ["libgpumem0", *names])
        return [f"changed: {name}" for name, _ in sorted({*snapshot(root).items()} ^ {*before.items()})]
    for name in PROGRAM:
        shutil.copy(source / name, root / "tmp")
    attempt(tap, "deb: what is unpacked without the library says so", lacking)
    attempt(tap, "deb: what is half installed is complete once the library comes", completed)
    attempt(tap, "deb: a plug-in that is missing is named, and where it was looked for", without_plug_in)
    attempt(tap, "deb: what was half installed is removed without a trace", removed)


def main():
    import packages_arm64  # which import this file
    import packages_nuget
    import packages_wheel

    source, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    chosen = sys.argv[3:] or ["deb", "deb-arm64", "rpm", "wheel", "nuget"]
    tap = Tap()
    good = []
    if "wheel" in chosen:
        packages_wheel.cases(tap, source, folder)
    if "nuget" in chosen:
        packages_nuget.cases(tap, source, folder)
    for kind in (Kind(name, folder) for name in ("deb", "rpm") if name in chosen):
        missing = missing_packages(source, kind.name)
        if missing:
            tap.skip(f"{kind.name}: packages", f"not installed: {' '.join(missing)}")
        elif build(tap, kind, source, folder):
            good.append(kind)
    arm64 = packages_arm64.cases(tap, source, folder) if "deb-arm64" in chosen else None
    if good or arm64:
        # Not in FOLDER: apt downloads as a user of its own, who may not come there.
        with tempfile.TemporaryDirectory() as temporary:
            os.chmod(temporary, 0o755)
            root = Path(temporary) / "root"
            if make_root(tap, root):
                if arm64:
                    # First, because RPM leaves empty folders, which dpkg then removes with its own.
                    attempt(tap, "deb-arm64: installed in a root of amd64, and removed without a trace",
                            lambda: packages_arm64.installed_and_removed(arm64, root))
                for kind in good:
                    cycle(tap, kind, root, source)
                    folder = Path(temporary) / kind.name
                    folder.mkdir()
                    if not upgrade(tap, kind, root, folder):
                        break  # what is left would fail the rest
                    if kind.name == "deb":
                        half_installed(tap, kind, root, source)
    tap.finish()


if __name__ == "__main__":
    main()
