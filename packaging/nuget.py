#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Makes a NuGet package without the .NET SDK, of what the project file says. Usage: nuget.py PROJECT FOLDER OUTPUT_FOLDER

FOLDER has the files of the package: README.md, lib/FRAMEWORK and runtimes/. Prints the name of the package."""

import os
import re
import sys
import time
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

# As groups of dependencies name the frameworks.
FRAMEWORKS = {"netstandard2.0": ".NETStandard2.0", "netcoreapp3.1": ".NETCoreApp3.1"}
MANIFEST = """\
<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd">
  <metadata>
    <id>{PackageId}</id>
    <version>{Version}</version>
    <authors>{Authors}</authors>
    <license type="expression">{PackageLicenseExpression}</license>
    <readme>{PackageReadmeFile}</readme>
    <description>{Description}</description>
    <tags>{tags}</tags>
    <dependencies>
{groups}    </dependencies>
  </metadata>
</package>
"""
TYPES = """\
<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml" />
{entries}</Types>
"""
RELATIONS = """\
<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/{PackageId}.nuspec" Id="manifest" />
</Relationships>
"""


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    project, folder, out = map(Path, sys.argv[1:])
    said = dict(re.findall(r"<(\w+)>([^<]*)</\1>", project.read_text(encoding="utf-8")))
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    groups = "".join(f"      <group targetFramework={quoteattr(FRAMEWORKS[path.name])} />\n" for path in sorted((folder / "lib").iterdir()))
    said |= {"groups": groups, "tags": escape(said["PackageTags"].replace(";", " "))}
    made = {f"{said['PackageId']}.nuspec": MANIFEST.format(**said).encode(), "_rels/.rels": RELATIONS.format(**said).encode()}
    # By the ending where there is one of letters, else by the whole name.
    entries = {f'  <Default Extension="{Path(name).suffix[1:]}"' if Path(name).suffix[1:].isalpha() else
               f"  <Override PartName={quoteattr('/' + name)}" for name in [*files, f"{said['PackageId']}.nuspec"]}
    made["[Content_Types].xml"] = TYPES.format(entries="".join(
        f'{entry} ContentType="application/octet" />\n' for entry in sorted(entries))).encode()
    date = time.gmtime(max(315532800, int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))))[:6]  # of zip, at least 1980
    name = f"{said['PackageId']}.{said['Version']}.nupkg"
    with zipfile.ZipFile(out / name, "w", zipfile.ZIP_DEFLATED) as package:
        for path, content in [*made.items(), *files.items()]:
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr = 0o644 << 16
            package.writestr(entry, content, zipfile.ZIP_DEFLATED)
    print(name)


if __name__ == "__main__":
    main()
