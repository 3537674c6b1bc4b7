# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cases of packages.py about the NuGet package."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree
import zipfile
from pathlib import Path

from arm64 import CROSS, EMULATOR
from packages import attempt, make, missing_packages, run, snapshot

NATIVE = "runtimes/linux-x64/native/libgpumem.so.0"
ARM64 = "runtimes/linux-arm64/native/libgpumem.so.0"


def environment(**more):
    """Nothing of whoever started this."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "GPUMEM_BACKEND": "host", **more}


def net():
    """The folder of .NET that tests/run fetched, or None."""
    home = Path(os.environ.get("GPUMEM_TEST_DOTNET") or "/nonexistent")
    return home if (home / "dotnet").exists() else None


def has_cross_compiler():
    """Where packaging/build looks for it."""
    return bool(shutil.which(CROSS + "g++", path="/usr/bin:/bin"))


def contents(source, path, unpacked, frameworks, symbols):
    names = {str(file.relative_to(unpacked)) for file in unpacked.rglob("*") if file.is_file()}
    wanted = {"GpuMem.nuspec", "README.md", "_rels/.rels", "[Content_Types].xml", NATIVE, *([ARM64] if has_cross_compiler() else [])}
    wanted |= {f"lib/{framework}/GpuMem.{ending}" for framework in frameworks for ending in ("dll", "xml")} | symbols
    extra = {name for name in names if name.endswith(".psmdcp")}  # which the SDK adds
    problems = [f"{'lacks' if name in wanted else 'has'} {name}" for name in sorted(wanted ^ (names - extra))]
    if problems:
        return problems
    # Every part has a type, and the manifest is where the relation says.
    types = xml.etree.ElementTree.parse(unpacked / "[Content_Types].xml").getroot()
    endings = {entry.get("Extension") for entry in types}
    parts = {entry.get("PartName") for entry in types}
    problems += [f"no type of {name}" for name in sorted(names - {"[Content_Types].xml"})
                 if name.rpartition(".")[2] not in endings and f"/{name}" not in parts]
    relations = xml.etree.ElementTree.parse(unpacked / "_rels" / ".rels").getroot()
    if "/GpuMem.nuspec" not in {entry.get("Target") for entry in relations}:
        problems.append("no relation to the manifest")
    manifest = {entry.tag.split("}")[1]: entry.text for entry in xml.etree.ElementTree.parse(unpacked / "GpuMem.nuspec").getroot()[0]}
    version = re.search(r"^ *version: '(.*)',$", (source / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)[1]
    if (manifest["id"], manifest["version"], path.name) != ("GpuMem", version, f"GpuMem.{version}.nupkg"):
        problems.append(f"{path.name} is {manifest['id']} {manifest['version']}")
    for framework in frameworks:
        documented = (unpacked / "lib" / framework / "GpuMem.xml").read_text(encoding="utf-8")
        problems += [] if "M:GpuMem.GpuInstance.Close" in documented else [f"{framework}: GpuInstance.Close() is not documented"]
    return problems


def exported(library):
    lines = run("readelf", "--wide", "--dyn-syms", library).splitlines()
    return {words[7] for words in map(str.split, lines) if len(words) >= 8 and words[4] in ("GLOBAL", "WEAK") and words[6] != "UND"}


def for_arm64(unpacked):
    said = run("readelf", "--wide", "--file-header", "--dynamic", unpacked / ARM64)
    problems = [f"no {text} in {said}" for text in (r"Machine: +AArch64", r"\(SONAME\).*\[libgpumem\.so\.0\]") if not re.search(text, said)]
    # The C++ runtime is inside.
    needed = {*re.findall(r"\(NEEDED\).*\[(.*)\]", said)}
    problems += [f"needs {name}" for name in sorted(needed - {"libc.so.6", "libgcc_s.so.1", "ld-linux-aarch64.so.1"})]
    ours, theirs = exported(unpacked / NATIVE), exported(unpacked / ARM64)
    return problems + [f"the exported symbols differ: {sorted(ours ^ theirs)[:9]}"] * (not ours or ours != theirs)


def on_arm64(source, library, folder):
    """A C program, as the runtimes of other languages are not here for arm64."""
    folder.mkdir()
    program = source / "tests" / "consumers" / "linked.c"
    run(f"{CROSS}gcc", "-std=c99", "-Wall", "-Werror", f"-I{source / 'capi' / 'include'}", program, library,
        f"-Wl,-rpath,{library.parent}", "-o", folder / "linked")
    said = run(*EMULATOR, folder / "linked", env=environment())
    return [] if "round trip good" in said else [said]


def consumer(source, unpacked, framework, folder):
    """A program as a build without a runtime identifier would lay it out: the assembly beside it, the native file below."""
    folder.mkdir()
    for path in (unpacked / "lib" / framework).iterdir():
        shutil.copy(path, folder)
    (folder / NATIVE).parent.mkdir(parents=True)
    shutil.copy(unpacked / NATIVE, folder / NATIVE)
    shutil.copy(source / "bindings" / "csharp" / "examples" / "Basic.cs", folder)
    # And says where the library came from.
    (folder / "Where.cs").write_text("static class Where { static int Main() { GpuMem.GpuMemLibrary.Load(); "
                                     "System.Console.WriteLine(GpuMem.GpuMemLibrary.LoadedPath); return 0; } }\n", encoding="utf-8")


def runs(source, folder, *command, variables=None):
    """The sample prints what it should, and the library is the one in the package. `command` ends in the ending of a program."""
    *runner, ending = command
    expected = (source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
    env = environment(**(variables or {}))
    said = run(*runner, folder / f"Basic.{ending}", env=env)
    where = run(*runner, folder / f"Where.{ending}", env=env)
    return [text for text, wanted in ((said, expected), (where, f"{folder / NATIVE}\n")) if text != wanted]


def runs_on_mono(source, unpacked, folder, **variables):
    consumer(source, unpacked, "netstandard2.0", folder)
    for program in ("Basic", "Where"):
        run("mcs", f"-r:{folder}/GpuMem.dll", f"-out:{folder / program}.exe", folder / f"{program}.cs", env=environment(**variables))
    return runs(source, folder, "mono", "--debug", "exe", variables=variables)


def on_mono(source, unpacked, folder):
    problems = runs_on_mono(source, unpacked, folder)
    broken = subprocess.run(["mono", "--debug", folder / "Where.exe"], text=True, capture_output=True, check=False,
                            env=environment(GPUMEM_LIBRARY="/nowhere/libgpumem.so.0")).stderr
    # The symbols have the lines.
    good = "GpuMemLibraryException: the native library of gpumem cannot be loaded: /nowhere" in broken
    return problems + [broken] * (not good or not re.search(r"GpuMemLibrary\.cs:\d+", broken))


def leaves_nothing(source, unpacked, folder):
    """When its own folder is deleted, nothing is left in those of its user."""
    folder.mkdir()
    folders = {variable: folder / variable for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")}
    for path in folders.values():
        path.mkdir(mode=0o700)
    before = snapshot(folder)
    problems = runs_on_mono(source, unpacked, folder / "used", **{variable: str(path) for variable, path in folders.items()})
    shutil.rmtree(folder / "used")
    return problems + [f"left behind or changed: {name}" for name, _ in sorted({*snapshot(folder).items()} ^ {*before.items()})]


def on_core(source, unpacked, folder, home, framework):
    """On the .NET that the tests have. As csharp.py does, for want of a compiler that runs."""
    consumer(source, unpacked, framework, folder)
    (runtime,) = (home / "shared" / "Microsoft.NETCore.App").iterdir()
    options = []
    if framework != "netstandard2.0":
        options = ["-nowarn:1702", "-noconfig", "-nostdlib", *(
            f"-r:{path}" for path in sorted(home.glob("packs/Microsoft.NETCore.App.Ref/*/ref/*/*.dll"))
            if path.stem not in ("mscorlib", "netstandard", "System"))]
    settings = {"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": runtime.name},
                                   "configProperties": {"System.Globalization.Invariant": True}}}
    for program in ("Basic", "Where"):
        run("mcs", *options, f"-r:{folder}/GpuMem.dll", f"-out:{folder / program}.dll",
            folder / f"{program}.cs", env=environment())
        (folder / f"{program}.runtimeconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    return runs(source, folder, home / "dotnet", "dll", variables={"DOTNET_CLI_TELEMETRY_OPTOUT": "1"})


# What may be null is tested first, what may take null is given it, and nothing else is either.
NULLS = """\
using System;
using GpuMem;

static class Nulls
{
  internal static long Use(GpuInstance instance, GpuStream stream)
  {
    var path = GpuMemLibrary.LoadedPath;
    var buffer = instance.GetPointerInfo((IntPtr)1).Buffer;
    var group = buffer == null ? null : buffer.Group;
    using (MemoryPool pool = instance.GetDevice(0).CreatePool())
    using (PoolBlock block = pool.Allocate(64, null))
    {
      pool.Free(block, null);
    }
    return (path == null ? 0 : path.Length) + (group == null ? 0 : group.Info.BufferCount) + stream.Info.Name.Length;
  }
}
"""
# And without: the codes of the compiler.
PLANTED = """\
using GpuMem;

static class Planted
{
  internal static int Use(GpuEvent copied)
  {
    copied.Record(null);
    return GpuMemLibrary.LoadedPath.Length;
  }
}
"""
PLANTED_CODES = "CS8625", "CS8602"


def single_file(source, path, folder):
    """Projects of the SDK: one without a runtime identifier, and one published as a single file. They check what may be null."""
    folder.mkdir()
    (folder / "packages").mkdir()
    shutil.copy(path, folder / "packages")
    shutil.copy(source / "bindings" / "csharp" / "examples" / "Basic.cs", folder)
    version = path.name.removeprefix("GpuMem.").removesuffix(".nupkg")
    (folder / "Nulls.cs").write_text(NULLS, encoding="utf-8")
    (folder / "Basic.csproj").write_text(f"""<Project Sdk="Microsoft.NET.Sdk">
  <PropertyGroup>
    <OutputType>Exe</OutputType><TargetFramework>net8.0</TargetFramework>
    <Nullable>enable</Nullable><WarningsAsErrors>nullable</WarningsAsErrors>
    <EnableSingleFileAnalyzer>false</EnableSingleFileAnalyzer> <!-- a package of its own -->
  </PropertyGroup>
  <ItemGroup><PackageReference Include="GpuMem" Version="{version}" /></ItemGroup>
</Project>
""", encoding="utf-8")
    env = {**os.environ, **environment(), "PATH": os.environ["PATH"], "DOTNET_CLI_HOME": str(folder), "DOTNET_CLI_TELEMETRY_OPTOUT": "1",
           "DOTNET_NOLOGO": "1", "NUGET_PACKAGES": str(folder / "cache")}
    expected = (source / "tests" / "bindings" / "samples" / "basic.txt").read_text(encoding="utf-8")
    offline = ["--source", folder / "packages"]
    run("dotnet", "build", *offline, "-o", folder / "built", folder / "Basic.csproj", env=env)
    run("dotnet", "publish", "-r", "linux-x64", "--self-contained", "false", "-p:PublishSingleFile=true", *offline,
        "-o", folder / "published", folder / "Basic.csproj", env=env)
    said = run("dotnet", folder / "built" / "Basic.dll", env=env), run(folder / "published" / "Basic", env=env)
    (folder / "Planted.cs").write_text(PLANTED, encoding="utf-8")
    planted = subprocess.run(["dotnet", "build", *offline, "-o", folder / "planted", folder / "Basic.csproj"], env=env, text=True,
                             capture_output=True, check=False)
    missed = planted.returncode == 0 or any(f"error {code}" not in planted.stdout for code in PLANTED_CODES)
    return [text for text in said if text != expected] + [planted.stdout] * missed


def has_sdk():
    if not shutil.which("dotnet"):
        return False
    return bool(re.search(r"^8\.", subprocess.run(["dotnet", "--list-sdks"], text=True, capture_output=True, check=False).stdout, re.M))


def cases(tap, source, folder):
    missing = missing_packages(source, "nuget")
    if missing:
        tap.skip("nuget: packages", f"not installed: {' '.join(missing)}")
        return
    home, sdk = net(), has_sdk()
    frameworks = ["netstandard2.0", *(["net8.0"] if sdk else ["netcoreapp3.1"] if home else [])]
    if not make(tap, "nuget", source, folder, "nuget: built by an ordinary user, without the network", "--net",
                GPUMEM_DOTNET=str(home or "")):
        return
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name) / "with space und Ümlaut"
        temporary.mkdir()
        made = [path for path in sorted((folder / "packages" / "nuget").iterdir()) if path.name != "log"]
        if len(made) != 1 or made[0].suffix != ".nupkg":
            tap.check("nuget: one package", [str(path) for path in made] or ["none"])
            return
        with zipfile.ZipFile(made[0]) as archive:
            archive.extractall(temporary / "unpacked")
        symbols = {f"lib/{it}/GpuMem.pdb" for it in frameworks} if sdk else {"lib/netstandard2.0/GpuMem.dll.mdb"}
        if not attempt(tap, "nuget: assemblies, symbols, documentation and the library are in it",
                       lambda: contents(source, made[0], temporary / "unpacked", frameworks, symbols)):
            return
        name, program = "nuget: the library for arm64 has the symbols of that for x64", "nuget: a C program for arm64 runs with it"
        if not has_cross_compiler():
            for case in (name, program):
                tap.skip(case, "not installed: g++-aarch64-linux-gnu")
        else:
            attempt(tap, name, lambda: for_arm64(temporary / "unpacked"))
            if shutil.which(EMULATOR[0]):
                attempt(tap, program, lambda: on_arm64(source, temporary / "unpacked" / ARM64, temporary / "arm64"))
            else:
                tap.skip(program, "not installed: qemu-user")
        attempt(tap, "nuget: a program runs on Mono", lambda: on_mono(source, temporary / "unpacked", temporary / "mono"))
        attempt(tap, "nuget: a program on Mono leaves nothing in the folders of its user",
                lambda: leaves_nothing(source, temporary / "unpacked", temporary / "left"))
        for framework in ("netstandard2.0", "netcoreapp3.1"):
            if home and framework in frameworks:
                attempt(tap, f"nuget: a program runs on .NET with {framework}",
                        lambda it=framework: on_core(source, temporary / "unpacked", temporary / it, home, it))
            else:
                tap.skip(f"nuget: a program runs on .NET with {framework}", "the SDK makes none" if framework not in frameworks and sdk else
                         "GPUMEM_TEST_DOTNET names no .NET; tests/run sets it")
        name = "nuget: a project without a runtime identifier and a single file run"
        if sdk:
            attempt(tap, name, lambda: single_file(source, made[0], temporary / "sdk"))
        else:
            tap.skip(name, "the SDK of .NET 8 is not installed")
