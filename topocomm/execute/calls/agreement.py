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
from topocomm.topology.inference.cpu_lists import number_ranges

DIGEST_BYTES = 16
OF_OPERATOR = frozenset({"fields", "identity", "commutative", "rule"})
"""Parts that differ where operators do."""
FIELD = "field "
"""How the part of a claim begins that says dtype and shape of a field; of a bare array it is `VALUE`."""
VALUE = "value"
SAME_ROWS = "rows, the same on all ranks"
"""The part of a reduce-scatter's claim that says how many rows each rank gets."""
BARRIER = {"collective": "allreduce", "operator": "max", VALUE: "uint8 [1]"}
"""What the call claims that a barrier is."""
RULE_AT = "rule at"
"""The part that says where a rank's `combine` is, which is not agreed upon."""
CONSEQUENCES = frozenset({"plan", "kernel", "device kernel", "call", "fields", SAME_ROWS})
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


def disagreement(waiting: Waiting, claim: Mapping[str, str], *, what: str, rule_at: str = "") -> str | None:
    """Return None if all ranks claim the same, else, on every rank, in what they differ.

    `rule_at` is where this rank has its operator's `combine`: ranks may have it in different folders.
    """
    waiting.claims[AGREEMENT_TAG] = claim
    digests = b"".join(
        hashlib.blake2b(f"{k}={v}".encode(), digest_size=DIGEST_BYTES).digest() for k, v in claim.items()
    )
    digests = hashlib.blake2b(digests, digest_size=DIGEST_BYTES).digest()
    if len(set(gather_notes(waiting, digests, tag=AGREEMENT_TAG, what=what))) == 1:
        del waiting.claims[AGREEMENT_TAG]
        return None
    claims = gather_texts(waiting, json.dumps({**claim, RULE_AT: rule_at}).encode(), what=what)
    del waiting.claims[AGREEMENT_TAG]
    return f"ranks disagree about the call they make: {difference([json.loads(text) for text in claims])}"


def difference(claims: Sequence[Mapping[str, str]]) -> str:
    """Return the parts in which the ranks' claims differ, and no others, each with its values and whose they are.

    As `operator (ranks 0-2: sum; rank 3: max)`; the value of most ranks first. Of fields that differ between the same
    ranks the first alone is told in full. Where ranks make other calls, or one in another order, nothing else counts.
    """
    parts: list[str] = []
    places = [claim.get(RULE_AT, "") for claim in claims]
    claims = _calls_alone(claims)
    other_operator = len({claim.get("operator") for claim in claims}) > 1
    fields: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    for part in dict.fromkeys(key for claim in claims for key in claim if key != RULE_AT):
        sides: dict[str, list[int]] = {}
        for rank, claim in enumerate(claims):
            if part in claim or not (part == "error" or "error" in claim):  # what fails gets to no plan
                sides.setdefault(claim.get(part, "none"), []).append(rank)
        is_consequence = (parts and part in CONSEQUENCES) or (part in OF_OPERATOR and other_operator)
        if (len(sides) > 1 and not is_consequence) or part == "error":
            ordered = sorted(sides.items(), key=lambda side: (-len(side[1]), side[1]))
            if part.startswith(FIELD):
                alike = fields.setdefault(tuple(tuple(ranks) for _, ranks in ordered), [])
                alike.append(part.removeprefix(FIELD))
                if len(alike) > 1:
                    continue
            if part == "error":
                parts.append(
                    "; ".join(
                        f"{ranks_in_words(r)} refused {'its' if len(r) == 1 else 'their'} arrays: {v}"
                        for v, r in ordered[::-1]
                    )
                )
                continue
            if part == "rule":
                part, ordered = "combine functions", _rules_in_words(ordered, places)
            parts.append(f"{part} ({'; '.join(f'{ranks_in_words(ranks)}: {value}' for value, ranks in ordered)})")
    parts += [
        f"likewise field{'s' * (len(alike) > 2)} {', '.join(alike[1:])}" for alike in fields.values() if alike[1:]
    ]
    return ", ".join(parts)


def _calls_alone(claims: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    """Return of claims of different calls, or of one call in different orders, that alone, and which ranks refuse."""
    words = [f"{claim.get('collective', '')} {claim.get('operator', '')}".removesuffix(" None") for claim in claims]
    barriers = [{*BARRIER.items()} <= {*claim.items()} for claim in claims]
    orders = {claim["order"] for claim in claims if "order" in claim}
    if len({claim.get("collective") for claim in claims}) > 1 or (any(barriers) and not all(barriers)):
        words = ["a barrier" if is_barrier else word for word, is_barrier in zip(words, barriers, strict=True)]
        alone = [{"collective": word} for word in words]
    elif len(orders) > 1:
        alone = [{part: claim[part] for part in ("order",) if part in claim} for claim in claims]
    else:
        return claims
    errors = [{part: claim[part] for part in ("error",) if part in claim} for claim in claims]
    return [{**own, **error} for own, error in zip(alone, errors, strict=True)]


def _rules_in_words(sides: Sequence[tuple[str, list[int]]], places: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return where the `combine` functions of ranks are, with what tells them apart where that says not enough."""
    words = [
        (f"{places[ranks[0]]}{rule[rule.find(' with ') :] if ' with ' in rule else ''}", rule) for rule, ranks in sides
    ]
    if any(not places[ranks[0]] for _, ranks in sides):
        return [*sides]
    enough = len({text for text, _ in words}) == len(words)
    return [
        (text if enough else f"{places[r[0]]}, {rule}", r) for (text, rule), (_, r) in zip(words, sides, strict=True)
    ]


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ascending ranks in words, as `rank 3` and `ranks 0-2, 5`."""
    return f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks).replace(',', ', ')}"
