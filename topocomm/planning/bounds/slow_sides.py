"""Hosts of which a part cannot fill the border alone: the NIC is full only while a member on its own side sends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topocomm.planning.bounds.machine_columns import Flags, Ints, Machine
from topocomm.planning.forests.linear_program.shared_borders import SharedBorders

MOST_FAST = 2
"""Most members outside the part: of more, one sends at any time."""


class SlowSide(NamedTuple):
    """A host and a part of it, as devices, and whether messages leave them."""

    host: Flags
    part: Flags
    out: bool


def slow_sides(machine: Machine) -> tuple[list[SlowSide], SharedBorders | None]:
    """Return the parts of hosts with a border that carries less than the host's, and their borders; None: no part.

    Parts are what faster links than some rate join inside a host, where all but few members are in the part.
    """
    found, rows = list[SlowSide](), list[tuple[float, float]]()
    ends = machine.is_end
    for number in dict.fromkeys(machine.host[machine.ends].tolist()):
        host = machine.host == number
        members = int((host & ends).sum())
        inside = host[machine.src] & host[machine.dst]
        for part in _parts(machine, inside):
            fast = members - int((part & ends).sum())
            if not 0 < fast <= MOST_FAST or fast == members or not host[part].all():
                continue
            of_host, of_part = (machine.border(np.where(own, 0, -1), 1) for own in (host, part))
            for out in (True, False):
                whole, slow = float(of_host[out][0]), float(of_part[out][0])
                if 0 < slow < whole and whole - slow <= float(machine.gb_per_s.min()):
                    found.append(SlowSide(host, part, out))
                    rows.append((whole, slow))
    if not found:
        return [], None
    host, part = (np.array([getattr(side, name) for side in found])[:, machine.ends] for name in ("host", "part"))
    gb_per_s, slow_gb_per_s = np.array(rows).T
    return found, SharedBorders(host, host & ~part, np.array([side.out for side in found]), gb_per_s, slow_gb_per_s)


def _parts(machine: Machine, inside: Flags) -> list[Flags]:
    """Return what links inside a host above each rate join, each set once."""
    found: dict[bytes, Flags] = {}
    for rate in np.unique(machine.gb_per_s[inside]).tolist():
        label: Ints = np.arange(machine.devices)
        links = np.flatnonzero(inside & (machine.gb_per_s > rate))
        while True:
            lowest = label.copy()
            np.minimum.at(lowest, machine.dst[links], label[machine.src[links]])
            np.minimum.at(lowest, machine.src[links], label[machine.dst[links]])
            if (lowest == label).all():
                break
            label = lowest
        for low in np.unique(label[machine.ends]).tolist():
            found.setdefault((label == low).tobytes(), label == low)
    return list(found.values())
