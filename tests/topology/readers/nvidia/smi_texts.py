"""Reads texts of `nvidia-smi topo -m` and compares them with the facts that they were made of."""

from pathlib import Path

from tests.topology.matrices import Facts, facts_of
from topocomm.topology.readers.nvidia import nvidia_smi

DATA = Path(__file__).parents[3] / "data/topologies"


def read(text, name="dump.txt"):
    return nvidia_smi.read(text, name)


def codes_of(topology):
    return {(pair.a, pair.b): pair.code for pair in topology.pairs}


def assert_says(topology, facts: Facts, columns: int = 2):
    """The topology says what the facts say, no more and no less."""
    nics = [name for name in facts.names if name not in facts.gpus]
    assert [d.id for d in topology.devices if d.kind == "gpu"] == facts.gpus
    assert [d.id for d in topology.devices if d.kind == "nic"] == nics
    spoken = {pair: code for pair, code in facts.codes.items() if pair[0] in facts.gpus}
    assert codes_of(topology) == spoken
    for gpu in facts.gpus:
        device = topology.by_id[gpu]
        assert (device.cpu_affinity or "") == (facts.cpu.get(gpu, "") if columns > 0 else "")
        numa = facts.numa.get(gpu, "") if columns > 1 else ""
        assert str("" if device.numa is None else device.numa) == numa.replace("N/A", "")


def two_sockets(gpus=4, nics=("NIC0", "NIC1"), near="PHB"):
    """Half of the GPUs and of the NICs on each socket."""

    def socket(i):
        return i * 2 // gpus if i < gpus else (i - gpus) * 2 // len(nics)

    return facts_of(
        gpus,
        lambda i, j: near if socket(i) == socket(j) else "SYS",
        nics=list(nics),
        cpu={f"GPU{i}": ("0-11", "12-23")[socket(i)] for i in range(gpus)},
        numa={f"GPU{i}": "01"[socket(i)] for i in range(gpus)},
    )
