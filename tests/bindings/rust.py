#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds and tests the Rust binding against an installed library, with the cargo in PATH and without a network.
Usage: rust.py SOURCE_ROOT BUILD_ROOT"""

import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import stage
from tap import Tap

NOTES = 80  # Lines of a failing program's output that are shown.
SAMPLES = ["basic", "pinned_mapped", "errors", "file"]
# Mistakes, and a part of what the compiler says to each, if it is one that knows `#[diagnostic::on_unimplemented]`.
MISTAKES = {
    "let _ = Pinned::<bool>::zeroed(device, 4)": "`bool` cannot lie in memory that devices write",
    "let _ = instance.fill(doubles, 0.5f64)": "memory cannot be filled with `f64`",
    "let _ = instance.copy(doubles, vec![0.5f64])": "`Vec<f64>` cannot be the source of this copy",
    "let _ = instance.copy(vec![0.5f64], doubles)": "`Vec<f64>` cannot be the destination of this copy or fill",
    "let _ = stream.copy(doubles, &[0.5f64][..])": "work in a stream cannot use `&[f64]`",
    "let _ = stream.copy(doubles, pinned)": "`f64` is no atomic",
    "let _ = instance.copy(pinned, doubles)": "an `Instance` takes `&mut` to the array",
    "let _ = stream.wait_value(doubles, 0, WaitCondition::EQ, 1)": "has no words that a stream can write or wait for",
    "let _ = Registered::new(device, &[0.5f64][..], &RegisterOptions::new())": "`Registered::new` cannot take `&[f64]`",
    "let _ = instance.export(pinned, &ExportOptions::new())": "cannot be shared with other processes",
}
LOAD = ["--no-default-features", "--features", "load"]


class Rust:
    def __init__(self, tap, source, build, staged):
        self.tap = tap
        self.source = source
        self.staged = staged
        self.workspace = source / "bindings" / "rust"
        # Kept for the next run; nothing is written to the source tree.
        self.target = build / "bindings" / "rust"
        self.target.mkdir(parents=True, exist_ok=True)

    def run(self, *command, backend="host", target=None, folder=None, **variables):
        environment = self.staged.environment(backend)
        environment |= {"CARGO_TARGET_DIR": str(target or self.target), "CARGO_NET_OFFLINE": "true",
                        "CARGO_TERM_COLOR": "never", **variables}
        # Nobody debugs or edits what is built here.
        environment |= {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_TEST_DEBUG": "0", "CARGO_INCREMENTAL": "0"}
        # The user's configuration could change the build, and its folder need not be writable.
        environment["CARGO_HOME"] = str(self.target / "cargo-home")
        return subprocess.run([str(word) for word in command], text=True, cwd=folder or self.workspace, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)

    def cargo(self, *arguments, **options):
        return self.run("cargo", arguments[0], "--offline", "--locked", *arguments[1:], **options)

    def succeeds(self, name, *arguments, **options):
        result = self.cargo(*arguments, **options)
        self.tap.check(name, last_lines(result.stdout) if result.returncode else [])
        return not result.returncode

    def tests(self, label, *arguments, **options):
        """Reports each test that `cargo test` runs as a case of its own."""
        result = self.cargo("test", "--no-fail-fast", *arguments, **options)
        program, failed, found = "", 0, 0
        for line in result.stdout.splitlines():
            running = re.match(r"\s+(?:Running|Doc-tests) (?:unittests )?(\S+)", line)
            case = re.match(r"test (.+?) \.\.\. (ok|FAILED|ignored)", line)
            if running:
                program = Path(running[1]).stem
            elif case:
                found += 1
                failed += case[2] == "FAILED"
                name = f"{label}: {program}: {case[1]}"
                if case[2] == "ignored":
                    self.tap.skip(name, line.partition("ignored")[2].lstrip(", ") or "ignored in the source")
                else:
                    self.tap.check(name, said_by(case[1], result.stdout) if case[2] == "FAILED" else [])
        # A program that does not build, or that crashes, prints no such line.
        if not found or (result.returncode and not failed):
            self.tap.check(f"{label}: cargo test", last_lines(result.stdout) or f"exit status {result.returncode}")

    def violations(self, label):
        self.tap.check(f"{label}: the fake driver reports no violations", self.staged.violations())

    def samples(self):
        for name in SAMPLES:
            expected = self.source / "tests" / "bindings" / "samples" / f"{name}.txt"
            if self.succeeds(f"example {name} builds", "build", "--package", "gpumem", "--example", name):
                result = self.run(self.target / "debug" / "examples" / name)
                text = expected.read_text(encoding="utf-8").replace("destroyed", "dropped")  # as messages say in Rust
                same = result.returncode == 0 and result.stdout == text
                self.tap.check(f"example {name} has the same output as in every language",
                               "" if same else f"{result.stdout}exit status {result.returncode}")
        self.succeeds("the code of the guide runs", "run", "--package", "gpumem", "--example", "guide")
        self.succeeds("the pipeline runs", "run", "--package", "gpumem", "--example", "pipeline")
        self.succeeds("memory is shared with a second process", "run", "--package", "gpumem", "--example", "sharing")

    def project(self, folder, program):
        """A program outside of the source tree, with the dependency that the page names."""
        page = (self.source / "docs" / "rust.md").read_text(encoding="utf-8")
        dependency = re.search(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]
        (folder / "gpumem").symlink_to(self.source)
        (folder / "program" / "src").mkdir(parents=True)
        (folder / "program" / "Cargo.toml").write_text(
            f'[package]\nname = "program"\nversion = "0.1.0"\nedition = "2021"\n\n{dependency}', encoding="utf-8")
        (folder / "program" / "src" / "main.rs").write_text(program, encoding="utf-8")
        return folder / "program"

    def own_program(self):
        page = (self.source / "docs" / "rust.md").read_text(encoding="utf-8")
        first = re.search(r"^```rust\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]
        with tempfile.TemporaryDirectory() as temporary:
            result = self.run("cargo", "run", "--offline", folder=self.project(Path(temporary), first))
            expected = (self.source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
            self.tap.check("the first program of the page runs in a project of its own",
                           [] if not result.returncode and result.stdout.endswith(expected) else last_lines(result.stdout))

    def diagnostics(self):
        """Mistakes with types are explained by this crate."""
        version = re.search(r"rustc 1\.(\d+)", self.run("rustc", "--version").stdout)
        if not version or int(version[1]) < 78:
            self.tap.skip("the compiler explains mistakes", "it does not know #[diagnostic::on_unimplemented]")
            return
        lines = "\n".join(f"    {line};" for line in MISTAKES)
        program = ("use gpumem::*;\n\npub fn mistakes(instance: &Instance, device: &Device, stream: &Stream, "
                   f"doubles: &DeviceMemory<f64>, pinned: &Pinned<f64>) {{\n{lines}\n}}\n\nfn main() {{}}\n")
        with tempfile.TemporaryDirectory() as temporary:
            result = self.run("cargo", "check", "--offline", folder=self.project(Path(temporary), program))
        for number, text in enumerate(MISTAKES.values(), 4):
            # The line of the program follows the message, and notes follow it.
            place = re.compile(rf"^error\[E0277\]: .*\n +--> src/main.rs:{number}:", re.MULTILINE)
            found = any(place.search(error) and text in error for error in result.stdout.split("\n\n"))
            self.tap.check(f"the compiler says: {text}", [] if found else last_lines(result.stdout))

    def pages(self):
        """Checks that the code on the pages is part of the examples."""
        examples = [path.read_text(encoding="utf-8") for path in (self.workspace / "gpumem" / "examples").glob("*.rs")]
        for page in [self.workspace / "README.md", self.source / "docs" / "rust.md"]:
            text = page.read_text(encoding="utf-8")
            blocks = re.findall(r"^```rust\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
            missing = [block for block in blocks if not any(f"\n{block}" in example for example in examples)]
            self.tap.check(f"the code in {page.name} is part of the examples", missing if blocks else "there is no code")
            links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
            self.tap.check(f"the links in {page.name} are valid",
                           [link for link in links if not (page.parent / link).exists()])

    def formatted(self):
        if self.run("cargo", "fmt", "--version").returncode:
            self.tap.skip("rustfmt changes nothing", "rustfmt is not installed")
        else:
            result = self.run("cargo", "fmt", "--all", "--", "--check")
            self.tap.check("rustfmt changes nothing", last_lines(result.stdout) if result.returncode else [])

    def linted(self):
        for name, arguments in (("link", ["--workspace"]), ("load", ["--package", "gpumem", *LOAD])):
            if self.run("cargo", "clippy", "--version").returncode:
                self.tap.skip(f"clippy reports nothing, {name}", "clippy is not installed")
            else:
                self.succeeds(f"clippy reports nothing, {name}", "clippy", *arguments, "--all-targets",
                              "--", "--deny", "warnings")

    def documented(self):
        self.succeeds("rustdoc reports nothing", "doc", "--workspace", "--no-deps", RUSTDOCFLAGS="--deny warnings")

    def miri(self):
        name = "Miri reports nothing in code that needs no library"
        if self.run("cargo", "miri", "--version").returncode:
            self.tap.skip(name, "Miri is not installed")
        else:
            self.succeeds(name, "miri", "test", "--package", "gpumem", "--lib", *LOAD)

    def build_without_library(self):
        name = "a build without the library fails and says what to do"
        with tempfile.TemporaryDirectory() as folder:
            result = self.cargo("check", "--package", "gpumem-sys", target=folder, PKG_CONFIG_PATH=folder,
                                PKG_CONFIG_LIBDIR=folder)
            helps = result.returncode and "PKG_CONFIG_PATH" in result.stdout and "GPUMEM_LIB_DIR" in result.stdout
            self.tap.check(name, "" if helps else last_lines(result.stdout))
            result = self.cargo("check", "--package", "gpumem-sys", target=folder, GPUMEM_LIB_DIR=folder)
            helps = result.returncode and f"GPUMEM_LIB_DIR is {folder}, where no libgpumem.so is" in result.stdout
            self.tap.check("a build with a wrong GPUMEM_LIB_DIR fails and names it", "" if helps else last_lines(result.stdout))
            old = Path(folder) / "old"
            old.mkdir()
            (old / "gpumem.pc").write_text("Name: gpumem\nDescription: old\nVersion: 0.0.9\n", encoding="utf-8")
            (old / "libgpumem.so.0.0.9").touch()
            (old / "libgpumem.so").symlink_to("libgpumem.so.0.0.9")
            for name, texts, variables in (
                    ("with an older library, found by pkg-config, fails and names both versions", ("0.0.9", "0.1.0"),
                     {"PKG_CONFIG_PATH": str(old)}),
                    ("with an older library in GPUMEM_LIB_DIR fails and names both versions", (f"GPUMEM_LIB_DIR is {old}, "
                     "where gpumem has version 0.0.9, but a version from 0.1.0 to below 1.0.0",), {"GPUMEM_LIB_DIR": str(old)}),
                    ("with another GPUMEM_LOAD than 0 and 1 fails and says so", ("GPUMEM_LOAD is yes; set it to 1",),
                     {"GPUMEM_LOAD": "yes"})):
                result = self.cargo("check", "--package", "gpumem-sys", target=folder, **variables)
                helps = result.returncode and all(text in result.stdout for text in texts)
                self.tap.check(f"a build {name}", "" if helps else last_lines(result.stdout))
            result = self.cargo("check", "--package", "gpumem", *LOAD, target=folder, PKG_CONFIG="/nowhere")
            self.tap.check("a build that loads the library does not need it",
                           last_lines(result.stdout) if result.returncode else [])

    def bench(self):
        self.succeeds("the benchmark builds", "build", "--package", "gpumem", "--bench", "overhead")


def said_by(test, output):
    """What a test that failed printed; the last lines of all if it is not found."""
    begin = output.find(f"---- {test} stdout ----")
    return output[begin:].splitlines()[:NOTES] if begin >= 0 else last_lines(output)


def last_lines(text):
    return textwrap.indent("\n".join(text.splitlines()[-NOTES:]), "  ")


def main():
    source, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    tap = Tap()
    if not shutil.which("cargo"):
        tap.skip("the Rust binding", "cargo is not installed")
        tap.finish()
    with stage.staged(build) as staged:
        rust = Rust(tap, source, build, staged)
        rust.formatted()
        rust.pages()
        for backend in staged.backends:
            rust.tests(f"{backend}, linked", "--workspace", "--tests", backend=backend)
            if backend == "cuda":
                rust.violations("linked")
        rust.linted()
        if stage.GATE:
            tap.finish()
        rust.tests("documentation", "--workspace", "--doc")
        rust.samples()
        rust.own_program()
        rust.diagnostics()
        rust.bench()
        rust.documented()
        for backend in staged.backends:
            rust.tests(f"{backend}, loaded", "--package", "gpumem", *LOAD, "--tests", backend=backend)
            if backend == "cuda":
                rust.violations("loaded")
        rust.tests("declarations with both features", "--package", "gpumem-sys", "--all-features", "--tests")
        rust.build_without_library()
        rust.miri()
    tap.finish()


if __name__ == "__main__":
    main()
