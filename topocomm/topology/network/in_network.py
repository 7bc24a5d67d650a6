"""In-network reduction by technology: which operators, on which dtypes.

A switch with `in_network` reduces values and sends the result to all, for its built-in operators, in its own operand
order. Plans do not use it; their bounds are those of switches that forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topocomm.topology.model import InNetworkKind

_WHOLE = ("int32", "uint32", "int64", "uint64")
_HALF = ("float16", "bfloat16")
_LONG = ("float32", "float64")


class InNetwork(NamedTuple):
    """One technology."""

    name: str
    types: dict[str, tuple[str, ...]]
    """Dtypes by operator."""
    source: str
    """Where the table is from."""


IN_NETWORK: dict[InNetworkKind, InNetwork] = {
    "nvls": InNetwork(
        "NVLink SHARP",
        {"sum": _WHOLE + _HALF + _LONG, "min": _WHOLE + _HALF, "max": _WHOLE + _HALF},
        "NCCL src/include/device.h, ncclNvlsSupported",
    ),
    "sharp": InNetwork(
        "SHARP",
        dict.fromkeys(("sum", "min", "max"), (*_WHOLE, "float16", *_LONG)),
        "nccl-rdma-sharp-plugins src/sharp_plugin.c; bfloat16 and 8 bit on newer fabrics only",
    ),
}


def knows(kind: InNetworkKind, operator: str, types: Sequence[str]) -> bool:
    """Return whether such a switch reduces this operator on these dtypes, one for each field of a value."""
    return len(types) == 1 and types[0] in IN_NETWORK[kind].types.get(operator, ())
