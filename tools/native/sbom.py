"""What is in a wheel beside Python source, as CycloneDX 1.6: the build puts it into .dist-info/sboms (PEP 770).

    python sbom.py VERSION FOLDER EXTENSION... > topocomm.cdx.json

The same files give the same document, so wheels stay reproducible: no time, and a serial number made of the contents.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

APACHE = [{"license": {"id": "Apache-2.0"}}]
COMPILER = re.compile(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+")
"""What compilers sign objects with, in the section .comment."""


def document(version: str, folder: Path, extensions: list[str]) -> dict[str, Any]:
    """Describe the extensions, paths below `folder`: their hashes, their licence and the compilers that signed them."""
    purl = f"pkg:pypi/topocomm@{version}"
    contents = {name: (folder / name).read_bytes() for name in extensions}
    components = [
        {
            "type": "file",
            "bom-ref": name,
            "name": name,
            "version": version,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
            "licenses": APACHE,
        }
        for name, data in contents.items()
    ]
    compilers = sorted({found.decode() for data in contents.values() for found in COMPILER.findall(data)})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid5(NAMESPACE_URL, purl + json.dumps(components)).urn,
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": "topocomm",
                "version": version,
                "purl": purl,
                "licenses": APACHE,
            },
            "tools": {"components": [{"type": "application", "name": name} for name in compilers]},
        },
        "components": components,
        "dependencies": [{"ref": purl, "dependsOn": extensions}],
    }


if __name__ == "__main__":
    print(json.dumps(document(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]), indent=1))
