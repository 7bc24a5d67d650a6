"""Logs of invented machines, as NCCL would print them."""

from topocomm.topology.readers.nccl.log import nccl_log

NAME = "/somewhere/job.log"
COMM = "comm 0x5a{0} rank {0} nRanks 4 nNodes 1 localRanks 4 localRank {0} MNNVL 0\n"


def read(text):
    return nccl_log.read(text, NAME)


def by(rank, text, host="alpha", dev=None):
    """Lines of one rank with the logger's prefix."""
    dev = rank if dev is None else dev
    return "".join(f"{host}:{4000 + rank}:{5000 + rank} [{dev}] NCCL INFO {line}\n" for line in text.splitlines())


def rings(ranks, channels=2, new=True):
    """What each rank prints of rings 0 -> 1 -> ... and of chains with root 0, as lines by rank."""
    found = {}
    for me in range(ranks):
        up, down = (me - 1 if me else -1), (me + 1 if me + 1 < ranks else -1)
        place = f"{down}/-1/-1->{me}->{up}"
        old = f"{place}|{up}->{me}->{down}/-1/-1"
        text = "".join(f"Ring {c:02} : {(me - 1) % ranks} -> {me} -> {(me + 1) % ranks}\n" for c in range(channels))
        found[me] = text + "Trees " + " ".join(f"[{c}] {place if new else old}" for c in range(channels)) + "\n"
    order = "".join(f"Channel {c:02}/{channels:02} :" + "".join(f"{r:5}" for r in range(ranks)) for c in [0])
    found[0] = "".join(order.replace("Channel 00", f"Channel {c:02}") + "\n" for c in range(channels)) + found[0]
    return found


def chain(ranks, channels=2):
    """The facts of `rings`' trees."""
    one = {
        str(me): {"parent": me - 1 if me else -1, "children": [me + 1] if me + 1 < ranks else []} for me in range(ranks)
    }
    return {str(c): one for c in range(channels)}


def links(topology):
    return {(link.src, link.dst): (link.kind, link.gb_per_s) for link in topology.links}


def codes(topology):
    return {f"{pair.a}-{pair.b}": pair.code for pair in topology.pairs}


def orders(count, title="Channel 00/01", end=""):
    return f"{title} :" + "".join(f"{rank:4}" for rank in range(count)) + end


def comm(rank, ranks, pointer="0x7f0000000000"):
    return f"comm {pointer} rank {rank} nranks {ranks} cudaDev {rank} busId {rank + 1}000 - Init START"


def interleaved(texts, host="alpha"):
    """The lines of all ranks, one of each in turn."""
    lines = [by(rank, text, host).splitlines() for rank, text in texts.items()]
    return "".join(f"{own[i]}\n" for i in range(max(map(len, lines))) for own in lines if i < len(own))


SWITCHED = """=== System : maxBw 240.0 totalBw 240.0 ===
CPU/0-0 (1/2/-1)
+ PCI[24.0] - PCI/0-1000 (1000c0101000a096)
              + PCI[24.0] - GPU/0-3000 (0)
                            + NVL[240.0] - NVS/0-0
              + PCI[24.0] - NIC/0-4000
                            + NET[25.0] - NET/0-0 (0/8e2a/1/25.000000)
+ PCI[24.0] - PCI/0-11000 (1000c0101000a096)
              + PCI[12.0] - PCI/0-12000 (1000c0101000a096)
                            + PCI[24.0] - GPU/0-13000 (1)
                                          + NVL[240.0] - NVS/0-0
+ SYS[16.0] - CPU/0-3
CPU/0-3 (1/2/-1)
+ PCI[24.0] - PCI/0-81000 (1000c0101000a096)
              + PCI[24.0] - GPU/0-83000 (2)
                            + NVL[240.0] - NVS/0-0
              + PCI[24.0] - GPU/0-84000 (3)
                            + NVL[240.0] - NVS/0-0
              + PCI[24.0] - NIC/0-85000
                            + NET[25.0] - NET/0-a (0/8e2b/1/25.000000)
                            + NET[25.0] - NET/0-b (0/8e2c/1/25.000000)
+ SYS[16.0] - CPU/0-0
==========================================
"""

DIRECT = """=== System : maxWidth 44.0 totalWidth 88.0 ===
CPU/0 (1/1/2)
+ PCI[12.0] - GPU/1A000 (0)
              + NVL[44.0] - GPU/1B000
              + NVL[22.0] - GPU/3D000
+ PCI[12.0] - GPU/1B000 (1)
              + NVL[44.0] - GPU/1A000
+ SYS[10.0] - CPU/1
CPU/1 (1/1/2)
+ PCI[12.0] - GPU/3D000 (2)
              + NVL[22.0] - GPU/1A000
+ SYS[10.0] - CPU/0
==========================================
"""

MATRIX = """GPU/0-3000 :GPU/0-3000 (0/5000.0/LOC) GPU/0-83000 (4/6.0/SYS) CPU/0-0 (2/24.0/PHB)
GPU/0-83000 :GPU/0-3000 (4/6.0/SYS) GPU/0-83000 (0/5000.0/LOC) CPU/0-0 (3/10.0/SYS)
"""
