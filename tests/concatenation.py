"""String concatenation as an operator: non-commutative, so a result spells out the order of its operands."""

from __future__ import annotations

import numpy as np

from topocomm import Field, Operator

CAPACITY = 320


def _combine(left, right):
    text, length = left["text"].copy(), left["length"] + right["length"]
    for row in range(len(text)):
        low, high = int(left["length"][row]), int(length[row])
        text[row, low:high] = right["text"][row, : high - low]
    return {"text": text, "length": length}


CONCAT = Operator(
    "concat",
    (Field("text", ("*rows", "capacity"), np.uint8), Field("length", ("*rows",), np.int32)),
    _combine,
    {"text": 0, "length": 0},
    commutative=False,
    default_dims={"capacity": CAPACITY},
)

ANY_ORDER = Operator(
    "concat in any order", CONCAT.fields, _combine, CONCAT.identity, True, default_dims=CONCAT.default_dims
)
"""The same, claiming to commute: lets the planner offer algorithms that reorder operands."""


def word(rank: int, rows: int):
    """One rank's value: `<rank>` in every row."""
    spelled = f"<{rank}>".encode()
    text = np.zeros((rows, CAPACITY), np.uint8)
    text[:, : len(spelled)] = np.frombuffer(spelled, np.uint8)
    return {"text": text, "length": np.full(rows, len(spelled), np.int32)}


def spelled(value) -> list[str]:
    """The strings of all rows."""
    return [bytes(t[:n]).decode() for t, n in zip(value["text"], value["length"], strict=True)]


def in_order(ranks: int) -> str:
    """What all ranks' words spell in rank order."""
    return "".join(f"<{rank}>" for rank in range(ranks))
