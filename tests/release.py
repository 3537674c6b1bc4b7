#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Makes releases with packaging/release: that two are the same bits, what is in them, and what is refused.
Usage: release.py SOURCE_ROOT FOLDER [WHAT...]

FOLDER is where the releases are made. WHAT is as for packaging/release; without it what is made in a minute: nothing that
has the library in it."""

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from packages import Failed, attempt, run, works
from packages_nuget import has_cross_compiler
from tap import Tap

DATE = "2026-01-02T03:04:05Z"
OWN_ROOT = ["unshare", "--user", "--map-root-user", "--mount"]
# What no release depends on. The second is of a user with wishes.
FIRST = {"TZ": "UTC", "LC_ALL": "C"}
SECOND = {"TZ": "Asia/Kathmandu", "LANG": "de_DE.UTF-8", "LC_TIME": "de_DE.UTF-8", "XZ_DEFAULTS": "--threads=0 -1",
          "TAR_OPTIONS": "--owner=7"}
WISHES = "[core]\n\tautocrlf = true\n[tar]\n\tumask = 0\n[status]\n\tshort = true\n"


class Checkouts:
    """Clones of one commit, which has the files of the source folder as they are now."""

    def __init__(self, source, work):
        self.work, self.home = work, work / "home"
        self.home.mkdir()
        self.first = work / "first"
        listed = []
        if (source / ".git").exists():
            listed = run("git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        files = [name for name in listed if name and os.path.lexists(source / name)] or [
            str(path.relative_to(source)) for path in source.rglob("*")
            if not path.is_dir() and path.relative_to(source).parts[0] != "build" and "__pycache__" not in path.parts]
        for name in files:
            (self.first / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, self.first / name, follow_symlinks=False)
        self.git(self.first, "init", "--quiet")
        self.commit(self.first)

    def environment(self, **more):
        named = "PATH", "CUDA_HOME", "CUDA_PATH", "GPUMEM_DOTNET", "GPUMEM_ZIG", "RUSTUP_HOME"
        keep = {name: os.environ[name] for name in named if name in os.environ}
        keep.setdefault("RUSTUP_HOME", str(Path.home() / ".rustup"))
        return {**keep, "HOME": str(self.home), **more}

    def git(self, folder, *arguments):
        return run("git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-C", folder, *arguments,
                   env=self.environment(GIT_AUTHOR_DATE=DATE, GIT_COMMITTER_DATE=DATE))

    def commit(self, folder):
        self.git(folder, "add", "--all", "--force")
        self.git(folder, "commit", "--quiet", "--message=test")

    def clone(self, name, *options):
        self.git(self.work, "clone", "--quiet", *options, f"file://{self.first}", name)
        return self.work / name

    def release(self, checkout, *arguments, umask=0o022, before=(), **more):
        return run(*before, checkout / "packaging" / "release", "--trial", *arguments,
                   env=self.environment(GPUMEM_BUILD_DIR=str(self.work / f"build-{checkout.name}"), **more), umask=umask)


def refused(tap, name, said, releases, out):
    """One case: that the release fails, with one line that has the words given, and leaves nothing in `out`."""
    was_there = out.exists()

    def problems():
        try:
            releases()
        except Failed as problem:
            lines = [line for line in str(problem).splitlines()[1:-1]  # without the command and its status
                     if not line.startswith("Making ")]
            if len(lines) != 1 or not re.search(said, lines[0]):
                yield from ["it said:", *lines]
        else:
            yield "it succeeded"
        yield from (f"left behind: {path}" for path in (out.rglob("*") if out.is_dir() else []) if path.name != "of the user")

    attempt(tap, f"refused: {name}", problems)
    if not was_there and out.is_dir():
        shutil.rmtree(out)  # so that the next case fails for its own reason alone


def without(checkouts, tool):
    """A PATH that lacks a tool."""
    bare = checkouts.work / f"without {tool}"
    bare.mkdir()
    for folder in os.environ["PATH"].split(":"):
        for path in Path(folder).glob("*") if folder else ():
            if path.name != tool and not os.path.lexists(bare / path.name):
                (bare / path.name).symlink_to(path)
    return {"PATH": str(bare)}


def refusals(tap, checkouts):
    out, clone = checkouts.work / "out", checkouts.clone("clone")

    def refuse(name, said, *arguments, checkout=clone, **more):
        refused(tap, name, said, lambda: checkouts.release(checkout, "--out", str(out), *(arguments or ["source"]), **more), out)

    refuse("an unknown word", "unknown argument dbe; --help", "dbe")
    refuse("a folder without a name", "--out needs", "--out")
    (clone / "new").touch()
    refuse("a file that git does not know", r"not all is as in the commit, for example new; commit")
    (clone / "new").unlink()
    readme = (clone / "README.md").read_text(encoding="utf-8")
    (clone / "README.md").write_text(readme + "more\n", encoding="utf-8")
    refuse("a changed file", r"for example README\.md; commit")
    (clone / "README.md").write_text(readme, encoding="utf-8")
    refuse("a shallow clone", "shallow; .*git fetch --unshallow", checkout=checkouts.clone("shallow", "--depth=1"))
    plain = checkouts.work / "plain"
    shutil.copytree(clone, plain, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    refuse("a folder without git", "no git checkout", checkout=plain)
    checkouts.git(plain, "init", "--quiet")
    refuse("a folder without a commit", "nothing is committed", checkout=plain)
    for tool, what in (("git", "source"), ("xz", "source"), ("doxygen", "site")):
        refuse(f"a machine without {tool}", f"{tool} is not in PATH; install", what, **without(checkouts, tool))
    refuse("a build folder that Doxygen cannot read", "because of the space; set GPUMEM_BUILD_DIR", "site",
           before=["env", f"GPUMEM_BUILD_DIR={checkouts.work}/with space"])
    out.mkdir()
    (out / "of the user").touch()
    refuse("an output folder that is not empty", "is not empty; .*--out")
    tap.check("a folder that is refused keeps its files", [] if (out / "of the user").exists() else ["it is gone"])
    shutil.rmtree(out)
    out.touch()
    refuse("an output folder that is a file", "is no folder")
    out.unlink()
    refuse("a build folder that cannot be written", "cannot write to /dev/null/folder; set GPUMEM_BUILD_DIR",
           before=["env", "GPUMEM_BUILD_DIR=/dev/null/folder"])
    if works(*OWN_ROOT, "true"):
        for name, size, folder in (("no space for the release", "1m", out), ("no space to make it", "1m", checkouts.work / "build-clone")):
            folder.mkdir(exist_ok=True)
            mounted = [*OWN_ROOT, "sh", "-ec", f'mount -t tmpfs -o size={size} none "$0"; exec "$@"', folder]
            refuse(name, f"no space is left in {folder}; free", before=mounted)
        out.rmdir()
    else:
        tap.skip("refused: no space", "this system refuses unshare --mount")

    changes = (clone / "CHANGELOG.md").read_text(encoding="utf-8")
    (clone / "CHANGELOG.md").write_text(re.sub(r"^(## \S+) \(.*\)$", r"\1 (not yet released)", changes, count=1, flags=re.MULTILINE),
                                        encoding="utf-8")
    checkouts.git(clone, "commit", "--quiet", "--all", "--allow-empty", "--message=unreleased")
    plainly = ["sh", "-c", 'program=$1; shift 2; exec "$program" "$@"', "sh"]
    refuse("a version without a date", r'CHANGELOG.md has .*; write "## \S+ \(YEAR-MONTH-DAY\)", or add --trial', before=plainly)
    (clone / "CHANGELOG.md").write_text(re.sub(r"^(## \S+) \(.*\)$", r"\1 (2026-02-03)", changes, count=1, flags=re.MULTILINE),
                                        encoding="utf-8")
    checkouts.git(clone, "commit", "--quiet", "--all", "--message=released")
    debian = clone / "packaging" / "debian" / "changelog"
    for word in ("UNRELEASED", "unstable"):
        debian.write_text(re.sub(r"\) \w+;", f") {word};", debian.read_text(encoding="utf-8"), count=1), encoding="utf-8")
        checkouts.git(clone, "commit", "--quiet", "--all", "--allow-empty", f"--message={word}")
        if word == "UNRELEASED":
            refuse("a version that is not yet released for Debian", "debian/changelog has UNRELEASED; write unstable", before=plainly)
    attempt(tap, "a version with a date is released", lambda: checkouts.release(
        clone, "--out", str(out), "source", before=plainly) and None)
    shutil.rmtree(out)
    path = clone / "bindings" / "python" / "pyproject.toml"
    path.write_text(re.sub(r'^version = ".*"', 'version = "7.8.9"', path.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")
    checkouts.git(clone, "commit", "--quiet", "--all", "--message=versions")

    def versions():
        try:
            checkouts.release(clone, "--out", str(out), "source")
        except Failed as problem:
            return [] if "bindings/python/pyproject.toml: the version is 7.8.9" in str(problem) and not out.exists() else [str(problem)]
        return ["it succeeded"]

    attempt(tap, "refused: two versions", versions)


# The fields that SPDX 2.3 requires of each part, and their form.
CHECKSUMS = {"SHA1": 40, "SHA256": 64}
LICENCE = r"NOASSERTION|NONE|[A-Za-z0-9.+-]+( WITH [A-Za-z0-9.-]+)?"
REQUIRED = {
    "document": {"spdxVersion": r"SPDX-2\.3", "dataLicense": r"CC0-1\.0", "SPDXID": "SPDXRef-DOCUMENT", "name": ".+",
                 "documentNamespace": r"https?://[^#]+"},
    "creationInfo": {"created": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"},
    "package": {"SPDXID": r"SPDXRef-[A-Za-z0-9.-]+", "name": ".+", "versionInfo": r"\d+\.\d+\.\d+",
                "downloadLocation": "NOASSERTION|NONE|.+://.+", "licenseConcluded": LICENCE, "licenseDeclared": LICENCE, "copyrightText": ".+"},
    "file": {"SPDXID": r"SPDXRef-[A-Za-z0-9.-]+", "fileName": r"\./.+", "licenseConcluded": LICENCE, "copyrightText": ".+"},
    "relationship": {"spdxElementId": "SPDXRef-.+", "relationshipType": "[A-Z_]+", "relatedSpdxElement": "SPDXRef-.+"},
}


def lacking(part, element):
    for field, form in REQUIRED[part].items():
        if not re.fullmatch(form, element.get(field) or ""):
            yield f"{part} {element.get('SPDXID', '')}: {field} is {element.get(field)}"
    for sum_ in element.get("checksums", []):
        if not re.fullmatch(f"[0-9a-f]{{{CHECKSUMS.get(sum_['algorithm'], 0)}}}", sum_["checksumValue"]):
            yield f"{part} {element.get('SPDXID', '')}: checksum {sum_}"


def spdx(document, tarball):
    """What is wrong with an SPDX document, of a tarball."""
    (package,) = document["packages"]
    yield from lacking("document", document)
    yield from lacking("creationInfo", document["creationInfo"])
    yield from (f"creator {creator}" for creator in document["creationInfo"]["creators"] or [""]
                if not re.match("(Person|Organization|Tool): .", creator))
    yield from lacking("package", package)
    for relationship in document["relationships"]:
        yield from lacking("relationship", relationship)
    names = [file["SPDXID"] for file in document["files"]]
    if len({*names, package["SPDXID"], document["SPDXID"]}) != len(names) + 2 or package["hasFiles"] != names:
        yield "identifiers are not unique, or the package has other files"
    if ("DESCRIBES", package["SPDXID"]) not in {(one["relationshipType"], one["relatedSpdxElement"]) for one in document["relationships"]}:
        yield "the document describes no package"
    if package["checksums"][0]["checksumValue"] != hashlib.sha256(tarball.read_bytes()).hexdigest():
        yield "the checksum of the tarball is another"
    with tarfile.open(tarball) as opened:
        contents = {"./" + member.name.partition("/")[2]: opened.extractfile(member).read() for member in opened if member.isfile()}
    yield from (f"not in both: {name}" for name in {file["fileName"] for file in document["files"]} ^ set(contents))
    sums = []
    for file in document["files"]:
        yield from lacking("file", file)
        content, found = contents.get(file["fileName"], b""), {one["algorithm"]: one["checksumValue"] for one in file["checksums"]}
        sums.append(found.get("SHA1", ""))  # which the standard requires
        if found.get("SHA1") != hashlib.sha1(content).hexdigest() or found.get("SHA256") != hashlib.sha256(content).hexdigest():
            yield f"{file['fileName']}: other checksums"
        headed = b"SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception" in b"\n".join(content.splitlines()[:5])
        if file["licenseInfoInFiles"] != ["Apache-2.0 WITH LLVM-exception" if headed else "NONE"]:
            yield f"{file['fileName']}: licences in the file {file['licenseInfoInFiles']}"
    if package["packageVerificationCode"]["packageVerificationCodeValue"] != hashlib.sha1("".join(sorted(sums)).encode()).hexdigest():
        yield "the verification code of the package is another"


def files_of(folder):
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def compare(first, second):
    """What differs between two releases."""
    first, second = files_of(first), files_of(second)
    yield from (f"not in both: {name}" for name in sorted(first.keys() ^ second.keys()))
    yield from (f"differs: {name}" for name in sorted(first.keys() & second.keys())
                if first[name].read_bytes() != second[name].read_bytes())


def contents(tap, made, first, chosen):
    (tarball,) = (path for path in made.glob("gpumem-*.tar.xz") if "html" not in path.name)
    document = json.loads(next(made.glob("*.spdx.json")).read_text(encoding="utf-8"))
    tap.check("the SPDX document has what the standard requires, and each file of the source", spdx(document, tarball))
    seen = []
    # Each of these must be seen.
    for spoil in (lambda it: it.pop("dataLicense"), lambda it: it["creationInfo"].update(created="today"),
                  lambda it: it["files"].pop(), lambda it: it["files"][3].pop("copyrightText"),
                  lambda it: it["files"][3]["checksums"][0].update(checksumValue="0" * 40), lambda it: it.update(relationships=[]),
                  lambda it: it["packages"][0]["packageVerificationCode"].update(packageVerificationCodeValue=""),
                  lambda it: it["files"][4].update(SPDXID=it["files"][5]["SPDXID"])):
        spoiled = json.loads(json.dumps(document))
        spoil(spoiled)
        seen.append(bool(list(spdx(spoiled, tarball))))
    tap.check("a spoiled SPDX document is seen", [] if all(seen) else [f"not seen: {seen}"])
    with tarfile.open(tarball) as opened:
        members = opened.getmembers()
    names = [member.name.partition("/")[2] for member in members if not member.isdir()]
    listed = run("git", "-C", first, "ls-files", "-z").split("\0")[:-1]
    time = datetime.datetime.fromisoformat(DATE.replace("Z", "+00:00")).timestamp()
    tap.check("the source has the files of the commit, sorted, of nobody, and of its time",
              [f"not in both: {name}" for name in set(names) ^ set(listed)] + ([] if names == sorted(names) else ["not sorted"]) +
              [f"{member.name}: {member.uid}:{member.gid} {member.mode:o} {member.mtime}" for member in members
               if member.uid or member.gid or member.mtime != time or (member.mode & 0o022 and not member.issym())])
    name = "there is a wheel for glibc 2.28 for each machine, and no other"
    if "wheel" not in chosen or "GPUMEM_ZIG" not in os.environ:
        tap.skip(name, "GPUMEM_ZIG names no Zig" if "wheel" in chosen else "no wheels were chosen")
    else:
        tags = {path.stem.split("-")[-1] for path in made.glob("wheel/*.whl")}
        wanted = {"manylinux_2_28_x86_64", *(["manylinux_2_28_aarch64"] if has_cross_compiler() else [])}
        tap.check(name, [f"{'lacks' if tag in wanted else 'has'} {tag}" for tag in sorted(tags ^ wanted)])
    said = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=made, text=True, capture_output=True, check=False)
    summed = {line[66:] for line in (made / "SHA256SUMS").read_text(encoding="utf-8").splitlines()}
    tap.check("SHA256SUMS has every file", ([said.stdout + said.stderr] if said.returncode else []) +
              [f"not in both: {name}" for name in summed ^ (files_of(made).keys() - {"SHA256SUMS"})])


def choose(tap):
    """What can be made here without compiling the library."""
    for what, tools in (("crate", ["cargo"]), ("go", ["go"]), ("site", ["doxygen", "meson", "ninja"])):
        missing = [tool for tool in tools if not shutil.which(tool)]
        if missing:
            tap.skip(f"{what}: reproducible", f"not installed: {' '.join(missing)}")
        else:
            yield what


def main():
    source, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    tap = Tap()
    missing = [tool for tool in ("git", "tar", "xz") if not shutil.which(tool)]
    if missing:
        tap.skip("releases", f"not installed: {' '.join(missing)}")
        tap.finish()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=folder) as temporary:
        checkouts = Checkouts(source, Path(temporary))
        refusals(tap, checkouts)
        chosen = sys.argv[3:] or ["source", *choose(tap)]
        first, second = checkouts.work / "made", checkouts.work / "made-again"
        if attempt(tap, f"made: {' '.join(chosen)}", lambda: checkouts.release(
                checkouts.first, "--out", str(first), *chosen, **FIRST) and None):
            contents(tap, first, checkouts.first, chosen)
            (checkouts.home / ".gitconfig").write_text(WISHES, encoding="utf-8")
            other = checkouts.clone("second-in-a-folder-of-another-name", "--config=core.autocrlf=false")
            if attempt(tap, "made again by another user, elsewhere, and later", lambda: checkouts.release(
                    other, "--out", str(second), *chosen, umask=0o077, **SECOND) and None):
                tap.check("both are the same bits", compare(first, second))
                (second / "SHA256SUMS").write_text("", encoding="utf-8")
                tap.check("a difference would be seen", [] if list(compare(first, second)) == ["differs: SHA256SUMS"] else ["not seen"])
    tap.finish()


if __name__ == "__main__":
    main()
