#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Builds and tests the C# binding.
Usage: csharp.py SOURCE_ROOT BUILD_ROOT [dotnet]

With Mono and with the .NET SDK as far as they are installed; with `dotnet`, on the .NET that GPUMEM_TEST_DOTNET names
(see packaging/dependencies)."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import description
import generate
import stage
from tap import Tap

# Libraries that the binding must refuse: a word of the message, version, whether the table is refused, and how many of
# the last functions are missing.
BAD_LIBRARIES = {
    "0.0.9": ("9", 0, 0),
    "1.0.0": ("1u << 22", 1, 0),
    generate.in_table(description.Description())[-2].name: ("1u << 12", 0, 2),
}
BAD_LIBRARY = """\
#include <stddef.h>
#include <stdint.h>
uint32_t gpumem_version(void) {{ return {version}; }}
const char *gpumem_status_name(int32_t status) {{ return status ? "error" : "success"; }}
int32_t gpumem_table_get(uint32_t version, void *table, void *error) {{
  void **entries = table;
  size_t count = *(size_t *)table / sizeof(void *);
  for (size_t i = 1; i < count; ++i) entries[i] = i < count - {missing} ? (void *)gpumem_version : NULL;
  return version && !error && {refused} ? -401 : 0;
}}
"""


def run(*command, env=None, timeout=900):
    """Exit status and output of a command."""
    result = subprocess.run([str(word) for word in command], text=True, env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, timeout=timeout, check=False)
    return result.returncode, result.stdout


def must(*command, env=None):
    status, output = run(*command, env=env)
    return "" if status == 0 else f"{' '.join(map(str, command))}\n{output}exit status {status}"


def pass_on(tap, prefix, status, output):
    """Every case of a TAP program as a case of this one; a program that broke off is a case that failed."""
    notes, cases = [], 0
    for line in output.splitlines():
        match = re.match(r"(not )?ok \d+ - (.*?)(?: # SKIP (.*))?$", line)
        if not match:
            notes.append(line.removeprefix("# "))
            continue
        negative, name, reason = match.groups()
        cases += 1
        if reason is not None:
            tap.skip(f"{prefix}: {name}", reason)
        else:
            tap.check(f"{prefix}: {name}", ("\n".join(notes) or "failed") if negative else "")
        notes = []
    planned = re.search(r"^1\.\.(\d+)$", output, re.MULTILINE)
    whole = planned is not None and int(planned[1]) == cases and cases > 0
    tap.check(f"{prefix}: the program came to its end",
              "" if whole and status in (0, 1) else "\n".join([*notes[-40:], f"exit status {status}"]))


def bad_libraries(folder):
    """The value of GPUMEM_TEST_BAD_LIBRARIES; empty without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        return ""
    pairs = []
    for number, (word, (version, refused, missing)) in enumerate(BAD_LIBRARIES.items()):
        source, library = folder / f"bad{number}.c", folder / f"bad{number}.so"
        source.write_text(BAD_LIBRARY.format(version=version, refused=refused, missing=missing), encoding="utf-8")
        subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        pairs.append(f"{word}={library}")
    (folder / "none.c").write_text("int nothing;\n", encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "none.c"), "-o", str(folder / "none.so")], check=True)
    (folder / "text.so").write_text("no library", encoding="utf-8")
    return ";".join([*pairs, f"is not a library of gpumem={folder / 'none.so'}", f"cannot be loaded={folder / 'text.so'}"])


def with_runtime(tap, staged, name, program, samples, variables, backends=None):
    """All tests by one runtime. `program` and `samples` are commands."""
    for backend in backends or staged.backends:
        env = staged.environment(backend) | variables
        pass_on(tap, f"{name}, {backend}", *run(*program, env=env))
        tap.check(f"{name}, {backend}: the fake driver has nothing to say", staged.violations())
    for sample, command in samples.items():
        expected = (Path(__file__).with_name("samples") / f"{sample}.txt").read_text(encoding="utf-8")
        expected = expected.replace("destroyed", "disposed").replace("device_bytes", "DeviceBytes")  # as messages say in C#
        status, output = run(*command, env=staged.environment("host"))
        tap.check(f"{name}: sample {sample}",
                  "" if status == 0 and output == expected else f"{output}exit status {status}")


# Mono's compiler speaks C# 7.0 without local functions; where it needs another way, the source has GPUMEM_MCS.
MCS = ["mcs", "-unsafe", "-optimize", "-warnaserror", "-warn:4", "-d:GPUMEM_MCS"]
SAMPLES = {"basic": "Basic", "pinned_mapped": "PinnedMapped", "errors": "Errors", "file": "File"}


def compile_all(tap, name, compiler, binding, folder, ending, for_programs=None):
    """Whether the binding, its tests, samples and, for Mono, its benchmark were built."""
    library = folder / "GpuMem.dll"
    problem = must(*compiler, "-target:library", f"-doc:{folder / 'GpuMem.xml'}", f"-out:{library}",
                   *sorted((binding / "src").rglob("*.cs")))
    tap.check(f"{name}: the binding is built, and every public member is documented", problem)
    if problem:
        return False
    programs = {"GpuMem.Tests": sorted((binding / "tests").glob("*.cs"))}
    if ending == "exe":  # against the other assemblies the compiler fails on it with an internal error
        programs["Bench"] = [binding / "bench" / "Bench.cs"]
    programs |= {source: [binding / "examples" / f"{source}.cs"] for source in SAMPLES.values()}
    for program, sources in programs.items():
        problem = problem or must(*(for_programs or compiler), f"-r:{library}", f"-out:{folder / program}.{ending}", *sources)
    tap.check(f"{name}: its programs are built", problem)
    return not problem


def with_mono(tap, staged, binding, folder, variables):
    if compile_all(tap, "Mono", MCS, binding, folder, "exe"):
        samples = {sample: ["mono", folder / f"{source}.exe"] for sample, source in SAMPLES.items()}
        with_runtime(tap, staged, "Mono", ["mono", "--debug", folder / "GpuMem.Tests.exe"], samples, variables)


def with_core(tap, staged, binding, folder, variables, home):
    """On the runtime in the folder `home`, whose own compiler needs an OpenSSL that newer systems lack. So Mono's
    compiles against its reference assemblies."""
    (runtime,) = (home / "shared" / "Microsoft.NETCore.App").iterdir()
    references = {path.stem: f"-r:{path}" for path in sorted(home.glob("packs/Microsoft.NETCore.App.Ref/*/ref/*/*.dll"))
                  if path.stem != "netstandard"}
    # Those only pass on to others.
    passing = [references.pop(name) for name in ("mscorlib", "System")]
    # 1702: two references to one assembly, which differ in nothing.
    compiler = [*MCS, "-nowarn:1702", "-noconfig", "-nostdlib", *references.values()]
    settings = {"runtimeOptions": {
        "framework": {"name": "Microsoft.NETCore.App", "version": runtime.name},
        # It looks for the system's ICU otherwise, and may know only older ones.
        "configProperties": {"System.Globalization.Invariant": True}}}
    # As a build for .NET, and as one for .NET Standard, which loads the library in another way. That is compiled as for a
    # package (see packaging/build): against Mono's class library, which has types elsewhere than that of .NET.
    for name, binding_by, programs_by, backends in (
            (".NET", [*compiler, "-d:NETCOREAPP3_0_OR_GREATER"], None, None),
            (".NET Standard on .NET", MCS, [*compiler, *passing], ["host"])):
        out = folder / name.replace(" ", "")
        out.mkdir()
        if not compile_all(tap, name, binding_by, binding, out, "dll", programs_by):
            continue
        for program in ("GpuMem.Tests", *SAMPLES.values()):
            (out / f"{program}.runtimeconfig.json").write_text(json.dumps(settings), encoding="utf-8")
        samples = {sample: [home / "dotnet", out / f"{source}.dll"] for sample, source in SAMPLES.items()}
        with_runtime(tap, staged, f"{name} {runtime.name}", [home / "dotnet", out / "GpuMem.Tests.dll"], samples, variables, backends)


def with_sdk(tap, staged, binding, folder, variables):
    name = ".NET: the binding, its tests and samples"
    if not shutil.which("dotnet"):
        tap.skip(name, "the .NET SDK is not installed")
        return
    _, packs = run("dotnet", "--list-sdks")
    if not re.search(r"^8\.", packs, re.MULTILINE):
        tap.skip(name, "the installed .NET SDK has no reference assemblies of .NET 8: " + packs.replace("\n", " "))
        return
    # The SDK writes beside the project, so it works on a copy. It must not ask any server.
    copy = folder / "dotnet"
    shutil.copytree(binding, copy)
    env = {**os.environ, "DOTNET_CLI_HOME": str(folder), "DOTNET_CLI_TELEMETRY_OPTOUT": "1", "DOTNET_NOLOGO": "1"}
    offline = ["--source", str(folder)]
    commands, problem = {}, ""
    for project in ("tests/GpuMem.Tests", *(f"examples/{source}" for source in SAMPLES.values())):
        path = copy / f"{project}.csproj"
        out = folder / "dotnet-out" / path.stem
        problem = problem or must("dotnet", "build", "-c", "Release", "-p:GpuMemFrameworks=net8.0", "-o", out, *offline, path,
                                  env=env)
        commands[path.stem] = ["dotnet", out / f"{path.stem}.dll"]
    tap.check(".NET: everything is built", problem)
    if not problem:
        with_runtime(tap, staged, ".NET", commands["GpuMem.Tests"],
                     {sample: commands[source] for sample, source in SAMPLES.items()}, variables)


# Names of C that the documentation of C# may have: what a program reads, sets and looks up by that name.
OF_C = {
    "GPUMEM_ERROR_BUSY": "such is GpuMemException.StatusName", "GPUMEM_ERROR_": "begins the name of no status",
    "GPUMEM_LIBRARY": "is a variable of the environment", "gpumem_stats_snapshot": "is the page that describes the JSON",
}


def comments(tap, binding):
    found = set()
    for path in sorted((binding / "src").glob("*.cs")):
        text = re.sub(r'cref="[^"]*"', "", "".join(re.findall(r"^ *///.*\n", path.read_text(encoding="utf-8"), re.MULTILINE)))
        found |= {(path.name, name) for name in re.findall(r"\b(?:gpumem_\w+|GPUMEM_\w+|NULL|\w+\.h)\b|->", text.replace("&gt;", ">"))}
    tap.check("no comment of the API names a function, constant or header of C", [str(one) for one in sorted(found) if one[1] not in OF_C])
    tap.check("every exception to that is used", sorted(OF_C.keys() - {name for _, name in found}))


def documentation(tap, source, binding):
    """The code of the guide and the README is part of a program that the tests run."""
    programs = "\n".join(path.read_text(encoding="utf-8") for folder in ("examples", "tests")
                         for path in sorted((binding / folder).glob("*.cs")))
    programs = re.sub(r"^\s+", "", programs, flags=re.MULTILINE)
    for page in (source / "docs" / "csharp.md", binding / "README.md"):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```csharp\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        missing = [f"not in any program:\n{block}" for block in blocks
                   if re.sub(r"^\s+", "", block, flags=re.MULTILINE) not in programs]
        tap.check(f"the code in {page.name} is part of the samples or tests", missing if blocks else ["there is none"])
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        tap.check(f"the links in {page.name} lead somewhere", [link for link in links if not (page.parent / link).exists()])


def main():
    source, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    binding = source / "bindings" / "csharp"
    tap = Tap()
    if sys.argv[3:] == ["dotnet"]:
        home, why = Path(os.environ.get("GPUMEM_TEST_DOTNET") or "/nonexistent"), os.environ.get("GPUMEM_TEST_DOTNET_MISSING")
        if stage.GATE:
            tap.skip(".NET: the binding, its tests and samples", "only tests/run --all tests on .NET")
        elif not (home / "dotnet").exists():
            tap.skip(".NET: the binding, its tests and samples", why or "GPUMEM_TEST_DOTNET does not name a .NET; tests/run sets it")
        elif not shutil.which("mcs"):
            tap.skip(".NET: the binding, its tests and samples", "mcs is not installed")
        else:
            with stage.staged(build) as staged, tempfile.TemporaryDirectory() as name:
                with_core(tap, staged, binding, Path(name), {"GPUMEM_TEST_BAD_LIBRARIES": bad_libraries(Path(name))}, home)
        tap.finish()
    comments(tap, binding)
    documentation(tap, source, binding)
    with stage.staged(build) as staged, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = {"GPUMEM_TEST_BAD_LIBRARIES": bad_libraries(folder)}
        if shutil.which("mcs") and shutil.which("mono"):
            with_mono(tap, staged, binding, folder, variables)
        else:
            tap.skip("Mono: the binding, its tests and samples", "mono and mcs are not installed")
        with_sdk(tap, staged, binding, folder, variables)
    tap.finish()


if __name__ == "__main__":
    main()
