"""From a file to a Topology: which reader fits is decided by content, never by name."""

from __future__ import annotations

import os
from types import ModuleType

from topocomm.errors import TopologyError
from topocomm.topology.model import Topology
from topocomm.topology.readers import nvidia_smi, topology_json

MAX_BYTES = 64 * 2**20
"""More than any tool prints; keeps a wrong path (a device, a log, a model) from filling the memory."""

READERS: tuple[ModuleType, ...] = (topology_json, nvidia_smi)
_LOOKED_FOR = "the matrix of `nvidia-smi topo -m` (a header row with GPU0) and topology JSON (`devices`, `links`)"
_REMEDY = "save one with `nvidia-smi topo -m > FILE` or `topocomm inspect --format json --output FILE`"


def load(path: str | os.PathLike[str]) -> Topology:
    """The topology in a file: what `nvidia-smi topo -m` printed, or topology JSON.

    Args:
        path: A file, or a pipe that is read to its end.

    Raises:
        TopologyError: The file cannot be read, is no text, has no format known here, or is damaged.
    """
    name = os.fspath(path)
    return read(_text(_bytes(name), name), name)


def read(text: str, name: str) -> Topology:
    """The topology in a text.

    Raises:
        TopologyError: As `load`; `name` is what messages call the text.
    """
    if not text.strip():
        raise TopologyError(f"{name}: the file is empty; looked for {_LOOKED_FOR}; {_REMEDY}")
    reader = reader_for(text)
    if reader is None:
        raise TopologyError(f"{name}: unknown format; looked for {_LOOKED_FOR}; {_REMEDY}")
    topology: Topology = reader.read(text, name)
    return topology


def reader_for(text: str) -> ModuleType | None:
    """The reader that knows the text; None where none does."""
    return next((reader for reader in READERS if reader.matches(text)), None)


def _bytes(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise TopologyError(f"{name}: cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise TopologyError(f"{name}: longer than {MAX_BYTES >> 20} MiB; looked for {_LOOKED_FOR}")
    return data


def _text(data: bytes, name: str) -> str:
    """The decoded text. Redirected output of Windows shells is UTF-16 with a mark; web copies may be Latin-1."""
    encodings = ("utf-16",) if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig", "latin-1")
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        odd = sum((c < " " and c not in "\t\n\r\f\x1b\b\x07") or "\x7f" <= c <= "\x9f" for c in text)
        if "\0" not in text and odd * 20 <= len(text):
            return text
    raise TopologyError(f"{name}: not a text file; looked for {_LOOKED_FOR}; {_REMEDY}")
