#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds and runs all tests of the Go binding, each counted by its name. Usage: go.py SOURCE_ROOT BUILD_ROOT

Nothing is downloaded. Go's build cache is kept in BUILD_ROOT for the next run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import stage
from tap import Tap

SAMPLES = ["basic", "pinned_mapped", "errors", "file", "share"]
OTHER_VERSIONS = ["0.0.9", "9.0.0"]


class Go:
    """The go command in the environment of a stage."""

    def __init__(self, staged, source, build):
        self.staged, self.source, self.folder = staged, source, source / "bindings" / "go" / "gpumem"
        self.cache = build / "bindings-go"
        # Go's build cache depends on the paths, so these stay the same from run to run.
        self.cache.mkdir(exist_ok=True)
        link, pkgconfig = self.cache / "stage", self.cache / "pkgconfig"
        link.unlink(missing_ok=True)
        link.symlink_to(staged.prefix)
        pkgconfig.mkdir(exist_ok=True)
        text = staged.pkgconfig.read_text(encoding="utf-8").replace(str(staged.prefix), str(link))
        (pkgconfig / "gpumem.pc").write_text(text, encoding="utf-8")
        self.pkgconfig = str(pkgconfig)

    def environment(self, backend="host", **more):
        own = {"GOPROXY": "off", "GOFLAGS": "-buildvcs=false", "GOWORK": "off", "GOTOOLCHAIN": "local", "GOENV": "off",
               "CGO_ENABLED": "1", "PKG_CONFIG_PATH": self.pkgconfig,
               "GOCACHE": str(self.cache / "cache"), "GOPATH": str(self.cache / "path")}
        return {**self.staged.environment(backend), **own, **more}

    def run(self, *command, backend="host", timeout=900, **more):
        if command[:2] in (("go", "vet"), ("go", "build")):
            more["GOGC"] = "400"  # Go's tools collect too often for programs that end soon.
        try:
            return subprocess.run([str(word) for word in command], cwd=self.folder, text=True, check=False, timeout=timeout,
                                  env=self.environment(backend, **more), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired as problem:
            text = problem.stdout.decode() if isinstance(problem.stdout, bytes) else problem.stdout or ""
            return subprocess.CompletedProcess(command, 124, f"{text}\nstopped after {timeout} seconds")

    def version(self):
        match = re.search(r"go1\.(\d+)", self.run("go", "version").stdout)
        return int(match.group(1)) if match else 0


def cases(output):
    """Results and outputs of single tests, from `go test -json`; other output has the name ""."""
    results, texts = {}, {}
    for line in output.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            event = {"Action": "output", "Output": line + "\n"}
        name = event.get("Test", "")
        if event["Action"] == "output":
            texts[name] = texts.get(name, "") + event["Output"]
        elif event["Action"] in ("pass", "fail", "skip") and name:
            results[name] = event["Action"]
    parents = {name.rpartition("/")[0] for name in results}
    return {name: result for name, result in results.items() if name not in parents}, texts


def run_tests(tap, go, title, *arguments, backend="host", **more):
    """Runs all tests of the module in one configuration."""
    # The whole run is one process, so a hang must end before this program times out. style() has
    # vetted it.
    result = go.run("go", "test", "-json", "-count=1", "-vet=off", "-timeout=800s", *arguments, ".", backend=backend, **more)
    results, texts = cases(result.stdout)
    for name, outcome in sorted(results.items()):
        if outcome == "skip":
            reason = re.search(r"_test\.go:\d+: (.*)", texts.get(name, ""))
            tap.skip(f"{title}: {name}", reason.group(1) if reason else "no reason given")
        else:
            tap.check(f"{title}: {name}", texts.get(name, "failed") if outcome == "fail" else "")
    failures = "fail" in results.values()
    tap.check(f"{title}: the program ends well", texts.get("", result.stdout)[-3000:] + f"exit status {result.returncode}"
              if (result.returncode and not failures) or not results else "")
    violations = go.staged.violations()
    if backend == "cuda":
        tap.check(f"{title}: the driver saw no violation", violations)


def style(tap, go):
    gofmt = shutil.which("gofmt")
    if gofmt:
        tap.check("gofmt leaves every file as it is", go.run(gofmt, "-l", ".").stdout)
    else:
        tap.skip("gofmt leaves every file as it is", "gofmt is not installed")
    for tags in ("",) if stage.GATE else ("", "gpumem_dlopen"):
        result = go.run("go", "vet", f"-tags={tags}", "./...")
        tap.check(f"go vet has nothing to say{', with ' + tags if tags else ''}", result.stdout if result.returncode else "")


def samples(tap, go, source, folder):
    for tags in ("",) if stage.GATE else ("", "gpumem_dlopen"):
        for name in SAMPLES:
            title = f"sample {name}{', loaded at run time' if tags else ''}"
            program = folder / f"{name}{tags}"
            # To be loaded at run time, it is built as on a machine without the headers, the library and pkg-config.
            without = {"PKG_CONFIG": "false"} if tags else {}
            built = go.run("go", "build", f"-tags={tags}", "-o", program, f"./examples/{name}", **without)
            if built.returncode:
                tap.check(title, built.stdout)
                continue
            result = go.run(program)
            expected = (source / "tests" / "bindings" / "samples" / f"{name}.txt").read_text(encoding="utf-8")
            for c, own in (("destroyed", "closed"), ("device_bytes", "DeviceBytes")):  # as messages say in Go
                expected = expected.replace(c, own)
            same = result.returncode == 0 and result.stdout == expected
            tap.check(title, "" if same else f"{result.stdout}exit status {result.returncode}")
            if tags and shutil.which("readelf"):
                needed = go.run("readelf", "--dynamic", program).stdout
                tap.check(f"{title}: needs no libgpumem to start", [line for line in needed.splitlines() if "gpumem" in line and "NEEDED" in line])


def other_version(go, folder, version):
    """Builds a library of a version with all functions, of which only the version may be called."""
    names = [line.split()[1] for line in Path(go.environment()["GPUMEM_LAYOUT"]).read_text(encoding="utf-8").splitlines()
             if line.startswith("function ")]
    asked = ("gpumem_version", "gpumem_version_text", "gpumem_table_get")
    major, minor, patch = version.split(".")
    folder.mkdir()
    source = folder / "other.c"
    source.write_text("\n".join([f"void {name}(void) {{ __builtin_trap(); }}" for name in names if name not in asked] + [
        "#include <stdint.h>", "#include <string.h>",
        f"uint32_t gpumem_version(void) {{ return {major}u << 22 | {minor}u << 12 | {patch}u; }}",
        f'const char *gpumem_version_text(void) {{ return "{version}"; }}',
        "int gpumem_table_get(uint32_t version, void *table, char *error) {",
        f'  (void)version, (void)table; strcpy(error + 176, "version {version} of the library"); return -401;', "}"]),
        encoding="utf-8")
    library = folder / "libgpumem.so.0"
    versions = go.source / "capi" / "gpumem.map"
    built = go.run("gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libgpumem.so.0", f"-Wl,--version-script={versions}",
                   "-o", library, source)
    return library, built


def load(tap, go, folder):
    """The library is missing, or another one, in both ways to use it."""
    libraries = {}
    for version in OTHER_VERSIONS:
        libraries[version], built = other_version(go, folder / version, version)
        tap.check(f"a library of version {version} can be built for the test", built.stdout if built.returncode else "")
    for tags in ("", "gpumem_dlopen"):
        program = folder / f"tests{tags}"
        built = go.run("go", "test", "-c", f"-tags={tags}", "-o", program, ".")
        for version, library in libraries.items():
            result = go.run(program, "-test.v", "-test.run=^TestALibraryOfAnotherVersion$",
                            GPUMEM_GO_OTHER_VERSION=f"{library}=version {version}") if not built.returncode else built
            tap.check(f"version {version}, {'loaded at run time' if tags else 'linked'}",
                      "" if "--- PASS" in result.stdout and not result.returncode else result.stdout)

    # Without the library, the system's loader reports the error of a linked program.
    result = go.run(folder / "basic", LD_LIBRARY_PATH="")
    tap.check("a linked program without the library ends with the loader's message", "" if result.returncode
              and "libgpumem.so.0" in result.stdout else f"{result.stdout}exit status {result.returncode}")


def documentation(tap, go, source):
    """The code in the guide and the README is part of programs that the tests run."""
    programs = [path.read_text(encoding="utf-8") for path in [*go.folder.glob("examples/*/*.go"), *go.folder.glob("*_test.go")]]
    for page in (source / "docs" / "go.md", go.folder / "README.md"):
        blocks = re.findall(r"^```go\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        problems = [f"not found in a program:\n{block}" for block in blocks if not any(block in program for program in programs)]
        tap.check(f"the code in {page.name} is part of the examples", problems if blocks else ["there is none"])


def own_module(tap, go, source, folder):
    """The commands and the first program of the page work in a module outside of the source tree."""
    page = (source / "docs" / "go.md").read_text(encoding="utf-8")
    commands = re.search(r"^```sh\n(go mod init.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]
    first = re.search(r"^```go\n(package main\n.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]
    (folder / "gpumem").symlink_to(source)
    program = folder / "program"
    program.mkdir()
    (program / "main.go").write_text(first, encoding="utf-8")
    tidy = "go mod tidy" if "`go mod tidy`" in page else ""
    result = go.run("sh", "-ec", f"cd {program}\n{commands}\n{tidy}\ngo run .")
    tap.check("the first program of the page runs in a module of its own",
              "" if not result.returncode and result.stdout.endswith("to the device and back\n") else result.stdout)


def without_cgo(tap, go):
    result = go.run("go", "build", "-o", os.devnull, "./examples/basic", CGO_ENABLED="0")
    errors = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    reason = result.returncode and len(errors) == 1 and "gpumem_needs_cgo__set_CGO_ENABLED_1" in errors[0]
    tap.check("without cgo the compiler gives the reason, and nothing else", "" if reason else result.stdout)


def races(tap, go):
    """Runs the tests with the race detector, which also checks conversions of pointers, and with every check of cgo."""
    title = "race detector, checkptr, cgocheck"
    checks = {"GODEBUG": "cgocheck=2"} if go.version() < 21 else {"GOEXPERIMENT": "cgocheck2"}
    # The detector finds no room for its shadow memory at some addresses that are drawn at random. Go's linker makes such a
    # program whenever it fails to find out that it need not.
    race = ["-race", "-ldflags=-extldflags=-no-pie"]
    # With the same checks, or Go compiles its library once more.
    probe = go.run("go", "build", *race, "-o", os.devnull, "./examples/basic", **checks)
    if probe.returncode:
        reason = "-race" in probe.stdout and probe.stdout.strip().splitlines()[-1]
        if reason:
            tap.skip(title, reason)
        else:
            tap.check(title, probe.stdout)
        return
    fixed = ["setarch", "-R"]
    can_fix = shutil.which(fixed[0]) and subprocess.run([*fixed, "true"], check=False, capture_output=True).returncode == 0
    run_tests(tap, go, title, *race, *(["-exec", " ".join(fixed)] if can_fix else []), **checks)


def bench(tap, go, folder):
    program = folder / "bench"
    built = go.run("go", "build", "-o", program, "./bench")
    result = go.run(program, GPUMEM_BACKEND="host") if not built.returncode else built
    lines = result.stdout.strip().splitlines()
    tap.check("the benchmark runs", result.stdout if result.returncode or len(lines) < 2 else "")
    for line in lines if not result.returncode else []:
        tap.measured(line)


def main():
    source, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    tap = Tap()
    if not shutil.which("go"):
        tap.skip("the Go binding", "go is not installed")
        tap.finish()
    with stage.staged(build) as staged, tempfile.TemporaryDirectory() as temporary:
        go, folder = Go(staged, source, build), Path(temporary)
        style(tap, go)
        for backend in staged.backends:
            run_tests(tap, go, backend, backend=backend)
        documentation(tap, go, source)
        samples(tap, go, source, folder)
        if stage.GATE:
            tap.finish()
        if "cuda" not in staged.backends:
            tap.skip("cuda", "the fake driver is not built, because the headers of CUDA are not installed")
        run_tests(tap, go, "loaded at run time", "-tags=gpumem_dlopen")
        load(tap, go, folder)
        own_module(tap, go, source, folder)
        without_cgo(tap, go)
        races(tap, go)
        bench(tap, go, folder)
    tap.finish()


if __name__ == "__main__":
    main()
