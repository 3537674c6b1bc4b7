#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the SPDX 2.3 document, in JSON, of a source tarball: each file, its checksums and its licence.
Usage: spdx.py TARBALL VERSION > DOCUMENT

The time in it is SOURCE_DATE_EPOCH, and the same tarball always gives the same document."""

import hashlib
import json
import os
import re
import sys
import tarfile
import time
from pathlib import Path

# That of LICENSE, for files that cannot have a header.
LICENCE = "Apache-2.0 WITH LLVM-exception"
COPYRIGHT = "2026 The gpumem authors"
HEADER = re.compile(rb"SPDX-License-Identifier: ([\w.+() -]*?)\s*(?:-->|\*/)?$", re.MULTILINE)


def header(content):
    """The licence that the first lines of a file name, or None."""
    match = HEADER.search(b"\n".join(content.splitlines()[:5]))
    return match[1].decode() if match else None


def describe(number, name, content):
    named = header(content)
    return {"SPDXID": f"SPDXRef-File-{number}", "fileName": f"./{name}",
            "checksums": [{"algorithm": kind, "checksumValue": hashlib.new(kind.lower(), content).hexdigest()}
                          for kind in ("SHA1", "SHA256")],
            "licenseConcluded": named or LICENCE, "licenseInfoInFiles": [named or "NONE"], "copyrightText": COPYRIGHT}


def document(path, version):
    with tarfile.open(path) as tarball:
        contents = {member.name.partition("/")[2]: tarball.extractfile(member).read() for member in tarball if member.isfile()}
    files = [describe(number, name, contents[name]) for number, name in enumerate(sorted(contents), 1)]
    # As the standard defines it, so that a changed file is seen without the tarball.
    sums = "".join(sorted(file["checksums"][0]["checksumValue"] for file in files))
    whole = hashlib.sha256(path.read_bytes()).hexdigest()
    named = {licence for file in files for licence in file["licenseInfoInFiles"]}
    package = {"SPDXID": "SPDXRef-Package", "name": "gpumem", "versionInfo": version, "packageFileName": path.name,
               "downloadLocation": "NOASSERTION", "filesAnalyzed": True,
               "packageVerificationCode": {"packageVerificationCodeValue": hashlib.sha1(sums.encode()).hexdigest()},
               "checksums": [{"algorithm": "SHA256", "checksumValue": whole}],
               "licenseConcluded": LICENCE, "licenseDeclared": LICENCE, "licenseInfoFromFiles": sorted(named - {"NONE"}),
               "copyrightText": COPYRIGHT, "hasFiles": [file["SPDXID"] for file in files]}
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"gpumem-{version}",
            "documentNamespace": f"https://gpumem.invalid/spdx/gpumem-{version}-{whole}",
            "creationInfo": {"created": created, "creators": ["Organization: The gpumem authors", "Tool: packaging/spdx.py"]},
            "documentDescribes": ["SPDXRef-Package"], "packages": [package], "files": files,
            "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                               "relatedSpdxElement": "SPDXRef-Package"}]}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    json.dump(document(Path(sys.argv[1]), sys.argv[2]), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
