#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Makes the crates and the Go module, and uses them as a stranger would: without a network, and in folders whose names
have a space and a letter that is not ASCII. Usage: language_packages.py SOURCE_ROOT FOLDER

FOLDER has what tests/packages.py made: the Debian packages, of which the library comes, and the source as it is released.
"""

import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packages import Failed, attempt, blocks, run, works
from tap import Tap

ALONE = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--net"]
MODULE = "github.com/gpumem/gpumem/bindings/go/gpumem"
NO_CGO = "gpumem_needs_cgo__set_CGO_ENABLED_1_and_install_a_C_compiler"


def contents(archive):
    """Path below the folder that the archive has -> content."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as found:
            return {name.partition("@")[2].partition("/")[2]: found.read(name) for name in found.namelist()}
    with tarfile.open(archive) as found:
        return {member.name.partition("/")[2]: found.extractfile(member).read() for member in found if member.isfile()}


class Stranger:
    """A user with an empty home, no network, and the library in a folder of their own."""

    def __init__(self, tap, source, folder, work):
        self.tap, self.source, self.folder, self.work = tap, source, folder, work
        self.home = work / "home"
        self.home.mkdir()
        self.alone = ALONE if works(*ALONE, "true") else []
        if not self.alone:
            tap.skip("without a network", "this system refuses unshare --user --net")
        debs = [path for name in ("libgpumem0", "libgpumem-dev") for path in folder.glob(f"packages/deb/{name}_*.deb")]
        self.tarball = next(iter(folder.glob("packages/deb/gpumem_*.orig.tar.xz")), None)
        self.library = None
        if len(debs) == 2 and shutil.which("dpkg-deb"):
            self.install(debs)

    def install(self, debs):
        prefix = self.work / "prefix"
        for deb in debs:
            run("dpkg-deb", "--extract", deb, prefix)
        (self.pkgconfig,) = prefix.rglob("gpumem.pc")
        text = self.pkgconfig.read_text(encoding="utf-8")
        moved = str(prefix / "usr").replace(" ", "\\ ")  # as Meson writes it
        self.pkgconfig.write_text(text.replace("prefix=/usr\n", f"prefix={moved}\n", 1), encoding="utf-8")
        (self.library,) = prefix.rglob("libgpumem.so.0")
        # The bindings have declarations of their own.
        shutil.rmtree(prefix / "usr" / "include")

    def needs_library(self, name):
        if self.library is None:
            self.tap.skip(name, f"there are no Debian packages in {self.folder}")
        return self.library is not None

    def run(self, *command, folder=None, **more):
        own = {"HOME": str(self.home), "PATH": os.environ["PATH"], "GPUMEM_BACKEND": "host", "LC_ALL": "C.UTF-8",
               "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup")), "CARGO_TERM_COLOR": "never",
               "GOTOOLCHAIN": "local"}
        return run(*self.alone, *command, cwd=folder or self.work, env={**own, **more})

    def linked(self):
        """What a build that pkg-config helps needs, and the program."""
        return {"PKG_CONFIG_PATH": str(self.pkgconfig.parent), "LD_LIBRARY_PATH": str(self.library.parent)}

    def loaded(self):
        """A build without pkg-config."""
        return {"PKG_CONFIG": "false", "GPUMEM_LIBRARY": str(self.library)}

    def build(self, kind):
        """packaging/build, from the checkout; returns whether there are packages."""
        return attempt(self.tap, f"{kind}: made", lambda: self.run(
            self.source / "packaging" / "build", kind, GPUMEM_BUILD_DIR=str(self.folder)) and None)

    def build_release(self, kind):
        """packaging/build, from a released source that nobody may write to."""
        name = f"{kind}: the same from a released source that cannot be written"
        if self.tarball is None:
            self.tap.skip(name, f"there is no Debian source package in {self.folder}")
            return
        if os.geteuid() == 0 and not self.alone:
            self.tap.skip(name, "root can write to everything")
            return

        def release():
            source = self.work / f"source {kind}"
            source.mkdir()
            run("tar", "--extract", f"--file={self.tarball}", "--strip-components=1", f"--directory={source}")
            run("chmod", "--recursive", "a-w", source)
            cache = self.work / "cache"
            self.run(source / "packaging" / "build", kind, XDG_CACHE_HOME=str(cache))
            run("chmod", "--recursive", "u+w", source)
            first, second = archives(self.folder / "packages" / kind), archives(next(cache.glob(f"gpumem/*/packages/{kind}")))
            return [f"differs: {path}" for path in first | second if first.get(path) != second.get(path)]

        attempt(self.tap, name, release)

    def without_tool(self, kind, command, package):
        """A machine that lacks the tool of the language."""
        bare = self.work / f"without {command}"
        bare.mkdir()
        for name in ("bash", "cat", "dirname", "git", "mkdir"):
            if shutil.which(name):
                (bare / name).symlink_to(shutil.which(name))

        def refused():
            try:
                self.run(shutil.which("env"), f"PATH={bare}", self.source / "packaging" / "build", kind)
            except Failed as problem:
                said = str(problem)
                return [] if f"{command} is not in PATH; the Debian package {package} has it" in said else [said]
            return ["it succeeded"]

        attempt(self.tap, f"{kind}: without {command}, its Debian package is named", refused)

    def removed(self, kind):
        self.tap.check(f"{kind}: removed without a trace", [str(path) for path in self.home.rglob("*gpumem*")])


def archives(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*")
            if path.suffix in {".crate", ".zip", ".mod", ".info"}}


def crates(user):
    tap, source, made = user.tap, user.source, user.folder / "packages" / "crate"
    licence = (source / "LICENSE").read_bytes()
    expected = (source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
    user.without_tool("crate", "cargo", "cargo")
    if not user.build("crate"):
        return
    for archive in sorted(made.glob("*.crate")):
        files = contents(archive)
        tap.check(f"crate: {archive.name} has its licence and a page that says what it is",
                  [f"{name} is not right" for name, right in (("LICENSE", files.get("LICENSE") == licence),
                                                              ("README.md", b"gpumem" in files.get("README.md", b"")))
                   if not right])
    # Of a missing description, licence or address, among others.
    tap.check("crate: cargo has no warning", [line for line in (made / "log").read_text(encoding="utf-8").splitlines()
                                              if line.startswith("warning")])
    user.build_release("crate")

    # As docs/rust.md has it.
    (dependencies,) = (block for block in blocks(source / "docs" / "rust.md", "toml") if "[patch.crates-io]" in block)
    unpacked, program = user.work / "crates", user.work / "program"
    unpacked.mkdir()
    (program / "src").mkdir(parents=True)
    (program / "src" / "main.rs").write_text(blocks(source / "docs" / "rust.md", "rust")[0], encoding="utf-8")
    (program / "Cargo.toml").write_text(
        f'[package]\nname = "program"\nversion = "0.1.0"\nedition = "2021"\n\n{dependencies}', encoding="utf-8")
    for archive in made.glob("*.crate"):
        run("tar", "--extract", f"--file={archive}", f"--directory={unpacked}")

    def works_with(environment):
        said = user.run("cargo", "run", "--offline", "--quiet", folder=program, **environment)
        return [] if said == expected else [said]

    if user.needs_library("crate: a program uses the library"):
        folder = {"GPUMEM_LIB_DIR": str(user.library.parent), "LD_LIBRARY_PATH": str(user.library.parent), "PKG_CONFIG": "false"}
        for name, environment in (("linked, found by pkg-config", user.linked()), ("linked, in the folder of GPUMEM_LIB_DIR", folder),
                                  ("loaded, by GPUMEM_LOAD=1", {**user.loaded(), "GPUMEM_LOAD": "1"})):
            attempt(tap, f"crate: a program uses the library {name}", lambda environment=environment: works_with(environment))

    def documented():
        shutil.copytree(unpacked, user.work / "documented")
        for folder in (user.work / "documented").iterdir():
            patch = f"patch.crates-io.gpumem-sys.path='{unpacked / folder.name.replace('gpumem-', 'gpumem-sys-')}'"
            # As docs.rs does it.
            user.run("cargo", "doc", "--offline", "--all-features", "--no-deps",
                     *([] if "-sys" in folder.name else ["--config", patch]), folder=folder, DOCS_RS="1", PKG_CONFIG="false",
                     RUSTDOCFLAGS="--deny warnings", CARGO_TARGET_DIR=str(program / "target"))

    attempt(tap, "crate: the documentation is built without the library", documented)
    for folder in (program, unpacked):
        shutil.rmtree(folder)
    user.removed("crate")


def go_module(user):
    tap, source, made = user.tap, user.source, user.folder / "packages" / "go"
    user.without_tool("go", "go", "golang-go")
    if not user.build("go"):
        return
    (archive,) = made.rglob("*.zip")
    files = contents(archive)
    tap.check(f"go: {archive.name} has its licence, a page that says what it is, and the headers",
              ([] if files.get("LICENSE") == (source / "LICENSE").read_bytes() else ["LICENSE is not right"]) +
              [f"missing: {name}" for name in ("README.md", "go.mod", "headers.h", "library.go") if name not in files])
    user.build_release("go")

    def vetted():
        shutil.unpack_archive(archive, user.work / "module")
        (module,) = (path.parent for path in (user.work / "module").rglob("go.mod"))
        user.run("go", "vet", "./...", folder=module, PKG_CONFIG="true", GOPROXY="off")

    attempt(tap, "go: all of it compiles without installed headers", vetted)
    program, proxy = user.work / "go program", user.work / "proxy"
    program.mkdir()
    shutil.copytree(made, proxy)
    (first, *_) = (block for block in blocks(source / "docs" / "go.md", "go") if block.startswith("package main"))
    (program / "main.go").write_text(first, encoding="utf-8")
    # As docs/go.md has it, but with another folder.
    (commands,) = (block for block in blocks(source / "docs" / "go.md", "sh") if "GOPROXY=" in block)
    commands = re.sub(r"file://.*/packages/go\b", f"'file://{proxy}'", commands)

    def fetched():
        user.run("sh", "-ec", f"{commands}\ngo mod vendor\ngo clean -modcache", folder=program)
        return [] if (program / "vendor" / MODULE / "headers.h").exists() else ["headers.h is not in vendor/"]

    if not attempt(tap, "go: a program gets the module from a folder, and copies of it", fetched):
        return
    shutil.rmtree(proxy)
    offline = {"GOPROXY": "off", "GOFLAGS": "-mod=vendor"}

    def works_with(environment, *arguments):
        said = user.run("go", "run", *arguments, ".", folder=program, **offline, **environment)
        return [] if said == "to the device and back\n" else [said]

    if user.needs_library("go: a program uses the library"):
        name = "go: a program uses the library linked, found by pkg-config, without its headers"
        if int(re.search(r"go1\.(\d+)", user.run("go", "version"))[1]) < 21:
            tap.skip(name, "a Go before 1.21 cannot read the path of this folder from pkg-config")
        else:
            attempt(tap, name, lambda: works_with(user.linked()))
        flags = {**user.linked(), "PKG_CONFIG": "true", "CGO_LDFLAGS": f"'-L{user.library.parent}' -lgpumem"}
        attempt(tap, "go: a program uses the library linked, by CGO_LDFLAGS, without its headers", lambda: works_with(flags))
        attempt(tap, "go: a program uses the library loaded, without pkg-config",
                lambda: works_with(user.loaded(), "-tags=gpumem_dlopen"))

    def without_cgo():
        try:
            user.run("go", "build", folder=program, CGO_ENABLED="0", **offline)
        except Failed as problem:
            return [] if f"undefined: {NO_CGO}" in str(problem) else [str(problem)]
        return ["it succeeded"]

    attempt(tap, "go: without cgo the compiler gives the reason", without_cgo)
    shutil.rmtree(program)
    user.removed("go")


def main():
    source, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="gpumem für alle ") as temporary:
        user = Stranger(tap, source, folder, Path(temporary))
        for kind, tools, test in (("crate", ["cargo"], crates), ("go", ["git", "go"], go_module)):
            missing = [tool for tool in tools if not shutil.which(tool)]
            if missing:
                tap.skip(f"{kind}: packages", f"not installed: {' '.join(missing)}")
            else:
                test(user)
    tap.finish()


if __name__ == "__main__":
    main()
