"""Random machines for bounds: endpoints, some without a rank, and devices that forward, with any figures."""

import random

from topocomm import Device, Link, Topology


def random_machine(seed):
    """(topology, endpoint of every rank): some links go one way only, some endpoints hold two ranks or none."""
    chance = random.Random(seed)
    ends, switches = chance.randint(2, 6), chance.randint(0, 3)
    names = [f"GPU{i}" for i in range(ends)] + [f"S{i}" for i in range(switches)]
    devices = [Device(name, "gpu" if name[0] == "G" else "switch", host=f"h{chance.randint(0, 1)}") for name in names]
    links = []
    for a in names:
        for b in names:
            if a != b and chance.random() < 0.5:
                figures = chance.choice([1.0, 2.0, 7.0]), chance.choice([0.5, 1.0, 3.0]), chance.choice([None, 0.3])
                links.append(Link(a, b, "nvlink", 1, *figures))
    ranks = [chance.choice(names[:ends]) for _ in range(chance.randint(1, ends + 1))]
    return Topology("random", "test", tuple(devices), tuple(links)), ranks
