"""What a fabric is: a forest of switches, and the hosts right below them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from topocomm.errors import TopologyError

MAX_SWITCHES = 16_384
MAX_LEVELS = 64


class Fabric(NamedTuple):
    """Switches by name, with what hangs below each; and what could not be used."""

    name: str
    source: str
    switches: Mapping[str, tuple[str, ...]]
    """Names of the switches right below each."""
    hosts: Mapping[str, tuple[str, ...]]
    """Names of the hosts right below each."""
    warnings: tuple[str, ...] = ()


def checked(fabric: Fabric, file: str) -> Fabric:
    """The fabric, if it is a forest with known switches.

    Raises:
        TopologyError: A switch is below two others or itself, or is not described; or there are too many.
    """
    if len(fabric.switches) > MAX_SWITCHES:
        raise TopologyError(f"{file}: {len(fabric.switches)} switches; expected at most {MAX_SWITCHES}")
    above: dict[str, str] = {}
    for switch, below in fabric.switches.items():
        for one in below:
            if one not in fabric.switches:
                raise TopologyError(
                    f"{file}: switch {switch!r} has {one!r} below it, which is not described; add a line for it"
                )
            if one in above:
                raise TopologyError(f"{file}: switch {one!r} is below {above[one]!r} and {switch!r}; expected a tree")
            above[one] = switch
    for start in fabric.switches:
        seen, at = {start}, start
        while at in above:
            at = above[at]
            if at in seen:
                raise TopologyError(f"{file}: switch {at!r} is below itself; expected a tree")
            if len(seen) > MAX_LEVELS:
                raise TopologyError(f"{file}: more than {MAX_LEVELS} switches above one another at {start!r}")
            seen.add(at)
    return fabric
