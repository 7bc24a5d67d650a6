"""What is in a wheel beside Python source, as CycloneDX 1.6: the build puts it into .dist-info/sboms (PEP 770).

    python sbom.py VERSION COMPILER FOLDER EXTENSION... > topocomm.cdx.json

The same files give the same document, so wheels stay reproducible: no time, and a serial number made of the contents.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

APACHE = [{"license": {"id": "Apache-2.0"}}]


def document(version: str, compiler: str, folder: Path, extensions: list[str]) -> dict[str, Any]:
    """Describe the extensions, paths below `folder`: their hashes, their licence and the compiler, "Clang 22.1.8"."""
    purl = f"pkg:pypi/topocomm@{version}"
    contents = {path: (folder / path).read_bytes() for path in extensions}
    components = [
        {
            "type": "file",
            "bom-ref": path,
            "name": path,
            "version": version,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
            "licenses": APACHE,
        }
        for path, data in contents.items()
    ]
    name, _, release = compiler.partition(" ")
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
            "tools": {"components": [{"type": "application", "name": name, "version": release}]},
        },
        "components": components,
        "dependencies": [{"ref": purl, "dependsOn": extensions}],
    }


if __name__ == "__main__":
    print(json.dumps(document(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:]), indent=1))
