"""Files as topologies: the content decides which reader is used."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import import_module
from types import ModuleType

from topocomm.errors import TopologyError
from topocomm.topology.model import Topology
from topocomm.topology.readers.plain.paste import unwrap

_ODD = re.compile(r"[\x01-\x06\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""Characters that are rare in text."""
MAX_BYTES = 64 * 2**20
"""Largest file that is read; no tool prints more."""

_READERS = (
    "amd.amd_smi_json",
    "amd.amd_smi_xgmi",
    "amd.rocm_smi",
    "plain.topology_json",
    "nccl.xml.nccl_graph_xml",
    "nccl.xml.nccl_xml",
    "hwloc.hwloc_xml",
    "nvidia.nvidia_p2p",
    "nvidia.nvidia_smi",
    "nvidia.nvidia_nvlink_remote",
    "nvidia.nvidia_nvlink_status",
    "amd.amd_smi",
    "nccl.log.nccl_log",
    "hwloc.lstopo",
    "pci.lspci",
)
"""Readers in order; the first that matches reads a text, as formats contain words of others."""

_LOOKED_FOR = (
    "output of `nvidia-smi topo -m` (a header row with GPU0), topo -p2p, nvlink -s or nvlink -R, of rocm-smi "
    "--showtopo, amd-smi topology or xgmi, lstopo (text or XML) or lspci -tv, topology XML, graph XML and INFO logs of "
    "NCCL or RCCL, and topology JSON (`devices`, `links`)"
)
_REMEDY = "save one with `nvidia-smi topo -m > FILE` or `topocomm inspect --format json --output FILE`"

_PACKED = {
    b"\x1f\x8b": "gunzip",
    b"PK\x03\x04": "unzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
}
"""Program that unpacks a file, by its first bytes."""


def load(path: str | os.PathLike[str]) -> Topology:
    """Return the topology in a file or pipe: output of a tool, or topology JSON.

    Raises:
        TopologyError: The file cannot be read, is no text, has an unknown format, or is damaged.
    """
    name = os.fspath(path)
    return read(load_text(name), name)


def load_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file, in UTF-8, UTF-16 or Latin-1.

    Raises:
        TopologyError: It cannot be read, or is no text.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise TopologyError(f"{name}: cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise TopologyError(f"{name}: longer than {MAX_BYTES >> 20} MiB; looked for {_LOOKED_FOR}")
    packed = next((how for mark, how in _PACKED.items() if data.startswith(mark)), None)
    if packed is not None:
        raise TopologyError(f"{name}: not a text file but a packed one; expected it unpacked, as by `{packed} {name}`")
    has_mark = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # as Windows shells write
    for encoding in ("utf-16",) if has_mark else ("utf-8-sig", "latin-1"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text and len(_ODD.findall(text)) * 20 <= len(text):
            return unwrap(text)
    raise TopologyError(f"{name}: not a text file; looked for {_LOOKED_FOR}; {_REMEDY}")


def read(text: str, name: str) -> Topology:
    """Return the topology in a text.

    Raises:
        TopologyError: As `load`; messages call the text `name`.
    """
    if not text.strip():
        raise TopologyError(f"{name}: the file is empty; looked for {_LOOKED_FOR}; {_REMEDY}")
    reader = reader_for(text)
    if reader is None:
        raise TopologyError(f"{name}: unknown format; looked for {_LOOKED_FOR}; {_REMEDY}")
    topology: Topology = reader.read(text, name)
    return topology


def reader_for(text: str) -> ModuleType | None:
    """Return the reader that matches the text, or None."""
    return next((reader for reader in readers() if reader.matches(text)), None)


@cache
def readers() -> tuple[ModuleType, ...]:
    """Return all readers, imported at the first call."""
    return tuple(import_module(f"topocomm.topology.readers.{name}") for name in _READERS)
