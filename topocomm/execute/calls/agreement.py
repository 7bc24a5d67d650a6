"""All ranks prove that they make the same call before a byte of it moves.

Each rank's claim is a digest; an all-gather of fixed-size notes (Bruck et al. 1997: ceil(log2 P) rounds, any P)
gives every rank all claims, so that every rank raises the same error, with the ranks that differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from topocomm.errors import MismatchError
from topocomm.execute.liveness.waiting import Waiting
from topocomm.execute.transports.transport import AGREEMENT_TAG, GATHER_TAG

DIGEST_BYTES = 16
CLAIM_BYTES = 1024
SAME_ROWS = "rows (give the same on all ranks)"
"""The part of a reduce-scatter's claim that says how many rows each rank gets."""
CONSEQUENCES = frozenset({"plan", SAME_ROWS})
"""Parts of a claim that may differ because of those before them: then these alone are told."""


def gather_notes(waiting: Waiting, record: bytes, *, tag: int, what: str) -> list[bytes]:
    """Return the records of all ranks, in rank order; all of the same length."""
    transport = waiting.transport
    rank, size = transport.rank, transport.size
    blocks = [record]  # blocks[i] is the record of rank + i
    distance = 1
    while distance < size:
        count = min(distance, size - distance)
        transport.post((rank - distance) % size, tag, b"".join(blocks[:count]))
        peer = (rank + distance) % size
        data = waiting.for_note(peer, tag, what)
        width = len(record)
        if len(data) != count * width:
            raise MismatchError(
                f"rank {rank}: {what}: a record has {width} bytes here and {len(data) // count} on rank {peer}; "
                "all ranks give records of one length"
            )
        blocks += [data[i * width : (i + 1) * width] for i in range(count)]
        distance *= 2
    return [blocks[(other - rank) % size] for other in range(size)]


def gather_texts(waiting: Waiting, text: bytes, *, what: str) -> list[bytes]:
    """Return the byte strings of all ranks, in rank order, of any length; for set-up."""
    sizes = [int.from_bytes(n) for n in gather_notes(waiting, len(text).to_bytes(8), tag=GATHER_TAG, what=what)]
    padded = gather_notes(waiting, text.ljust(max(sizes)), tag=GATHER_TAG, what=what)
    return [text[:size] for text, size in zip(padded, sizes, strict=True)]


def disagreement(waiting: Waiting, claim: Mapping[str, str], *, what: str) -> str | None:
    """Return None if all ranks claim the same, else, on every rank, the ranks that differ and in what."""
    digests = b"".join(
        hashlib.blake2b(f"{k}={v}".encode(), digest_size=DIGEST_BYTES).digest() for k, v in claim.items()
    )
    digests = hashlib.blake2b(digests, digest_size=DIGEST_BYTES).digest()
    rows = gather_notes(waiting, digests, tag=AGREEMENT_TAG, what=what)
    if len(set(rows)) == 1:
        return None
    text = json.dumps(dict(claim))[:CLAIM_BYTES].ljust(CLAIM_BYTES).encode()[:CLAIM_BYTES]
    claims = []
    for row in gather_notes(waiting, text, tag=GATHER_TAG, what=what):
        try:
            claims.append(dict(json.loads(row)))
        except ValueError:
            claims.append({"call": row.decode(errors="replace").strip()})
    return f"ranks disagree about the call they make: {difference(claims)}"


def difference(claims: Sequence[Mapping[str, str]]) -> str:
    """Return the parts in which the ranks' claims differ, each with the ranks on either side, most ranks first."""
    parts: list[str] = []
    for part in dict.fromkeys(key for claim in claims for key in claim):
        sides: dict[str, list[int]] = {}
        for rank, claim in enumerate(claims):
            if part in claim or not (part == "error" or "error" in claim):  # what fails gets to no plan
                sides.setdefault(claim.get(part, "nothing"), []).append(rank)
        if (len(sides) > 1 and not (parts and part in CONSEQUENCES)) or part == "error":
            ordered = sorted(sides.items(), key=lambda side: (-len(side[1]), side[1]))
            texts = []
            for value, ranks in ordered:
                shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
                texts.append(f"rank{'s' * (len(ranks) > 1)} {shown}: {value}")
            parts.append(f"{part}: {', '.join(texts)}")
    return "; ".join(parts)
