"""Runs MSCCL XML on symbols, by the rules of its runtime: thread blocks in order, flags, and channels.

Shares no code with the writer. A value is (unit of the payload, sorted ranks whose value was added,
as often as it was).
Channels that hold nothing are the strictest: what cannot deadlock on them cannot on any. Channels that hold everything
let thread blocks run ahead of each other the most: where an order is missing, it shows.
"""

import random
import xml.etree.ElementTree as ET

CHANGES = {"s": (1, 0), "r": (0, 1), "rrc": (0, 1), "cpy": (0, 0), "re": (0, 0), "nop": (0, 0)}
"""Whether a type sends and receives."""


class Wrong(Exception):
    """What the runtime would refuse, hang on, or read without having written."""


def run(text, in_place, seed=0, holds=0, in_turn=False):
    """(rank, unit) -> value of the outputs.

    Args:
        text: The XML.
        in_place: Whether input and output are one buffer.
        seed: Which thread block goes first where several can: each has a rank of its own.
        holds: Messages that a channel holds.
        in_turn: Each thread block goes on as long as it can; quick where there are thousands of them.
    """
    machine = _Machine(ET.fromstring(text), in_place)
    chance = random.Random(seed)
    keys = sorted(machine.blocks)
    chance.shuffle(keys)
    left = [key for key in keys if machine.blocks[key]]
    while left:
        if in_turn:
            if sum([machine.goes_on(key, holds) for key in left]) == 0:
                raise Wrong(f"deadlock: {left}")
            left = [key for key in left if machine.at[key] < len(machine.blocks[key])]
            continue
        for key in left:
            if machine.advance(key, holds):
                break
        else:
            raise Wrong(f"deadlock: {left}")
        left = [key for key in left if machine.at[key] < len(machine.blocks[key])]
        if chance.random() < 0.1:
            chance.shuffle(left)
    if any(machine.flying.values()):
        raise Wrong("messages that nobody received")
    return {(rank, unit): machine.result(rank, unit) for rank, unit in machine.outputs()}


class _Machine:
    def __init__(self, algo, in_place):
        self.name = collective_of(algo)
        self.ranks = int(algo.get("ngpus"))
        self.total = int(algo.get("nchunksperloop"))
        self.in_place = in_place
        self.sizes, self.blocks, self.ends, self.memory = {}, {}, {}, {}
        assert algo.get("proto") in ("LL", "LL128", "Simple")
        for gpu in algo.findall("gpu"):
            self._gpu(gpu, int(algo.get("nchannels")))
        assert sorted(self.sizes) == list(range(self.ranks))
        self.at = dict.fromkeys(self.blocks, 0)
        self.flags = dict.fromkeys(self.blocks, -1)
        self.flying = {}
        self.receiver = {(end[1], key[0], end[2]): key for key, end in self.ends.items() if end[1] >= 0}

    def _gpu(self, gpu, channels):
        rank = int(gpu.get("id"))
        sizes = {b: int(gpu.get(f"{b}_chunks")) for b in "ios"}
        own = self.total // self.ranks
        wanted = {"i": own if self.name == "allgather" else self.total}
        wanted["o"] = own if self.name == "reduce_scatter" else self.total
        assert (sizes["i"], sizes["o"]) == (wanted["i"], wanted["o"]), sizes
        self.sizes[rank] = sizes
        used = set()
        for index, tb in enumerate(gpu.findall("tb")):
            assert int(tb.get("id")) == index < 128
            send, receive, channel = (int(tb.get(key)) for key in ("send", "recv", "chan"))
            assert 0 <= channel < channels <= 32
            assert rank not in (send, receive)
            for end in [("s", send, channel)] * (send >= 0) + [("r", receive, channel)] * (receive >= 0):
                if end in used:
                    raise Wrong(f"rank {rank}: two thread blocks on connection {end}")
                used.add(end)
            self.blocks[rank, index] = tb.findall("step")
            self.ends[rank, index] = (send, receive, channel)
            assert len(tb) <= 256
        for peers in ([e for e in used if e[0] == way and e[2] == c] for way in "sr" for c in range(channels)):
            assert len(peers) <= 32
        for unit in range(sizes["i"]):
            if self.name != "broadcast" or rank == ROOT[0]:
                self.memory[self._address(rank, "i", unit)] = (unit + self._start(rank, "i"), (rank,))

    def _address(self, rank, buffer, unit):
        """In place, input and output are one buffer; the part of a rank begins at its own offset."""
        if not 0 <= unit < self.sizes[rank][buffer]:
            raise Wrong(f"rank {rank}: {buffer}[{unit}] is outside")
        if self.in_place and buffer in "io":
            return (rank, "io", unit + self._start(rank, buffer))
        return (rank, buffer, unit)

    def _start(self, rank, buffer):
        """The unit of the payload with which a buffer begins: one that is a part begins at the rank's."""
        part = {"allgather": "i", "reduce_scatter": "o"}.get(self.name)
        return rank * self.total // self.ranks if buffer == part else 0

    def result(self, rank, unit):
        """The ranks that were added to a unit of the output."""
        whole, ranks = self.get(rank, "o", unit)
        if whole != unit + self._start(rank, "o"):
            raise Wrong(f"rank {rank} has unit {whole} of the payload in o[{unit}]")
        return ranks

    def get(self, rank, buffer, unit):
        address = self._address(rank, buffer, unit)
        if address not in self.memory:
            raise Wrong(f"rank {rank} reads {buffer}[{unit}], which nothing wrote")
        return self.memory[address]

    def put(self, rank, buffer, unit, value):
        self.memory[self._address(rank, buffer, unit)] = value

    def next(self, key):
        """The next step of a thread block, if it has not to wait for a flag."""
        if self.at[key] == len(self.blocks[key]):
            return None
        step = self.blocks[key][self.at[key]]
        assert int(step.get("s")) == self.at[key]
        block = int(step.get("depid"))
        return step if block < 0 or self.flags[key[0], block] >= int(step.get("deps")) else None

    def done(self, key):
        if int(self.blocks[key][self.at[key]].get("hasdep")):
            self.flags[key] = self.at[key]
        self.at[key] += 1

    def goes_on(self, key, holds):
        """Run steps of a thread block until it has to wait; how many."""
        done = 0
        while self.at[key] < len(self.blocks[key]) and self.advance(key, holds):
            done += 1
        return done

    def advance(self, key, holds):
        """Run the next step of a thread block; False where it has to wait."""
        step = self.next(key)
        if step is None:
            return False
        sends, receives = CHANGES[step.get("type")]
        peer = self.ends[key]
        if sends:
            way = (key[0], peer[0], peer[2])
            other = self.receiver.get(way)
            if other is None:
                raise Wrong(f"{way}: nobody receives")
            if not holds and self.next(other) is not None and CHANGES[self.next(other).get("type")][1]:
                self.receive(other[0], self.next(other), self.values(key[0], step))
                self.done(other)
            elif len(self.flying.get(way, ())) < holds:
                self.flying.setdefault(way, []).append(self.values(key[0], step))
            else:
                return False
        elif receives:
            way = (peer[1], key[0], peer[2])
            if not self.flying.get(way):
                return False
            self.receive(key[0], step, self.flying[way].pop(0))
        elif step.get("type") != "nop":
            self.local(key[0], step)
        self.done(key)
        return True

    def values(self, rank, step):
        return [self.get(rank, step.get("srcbuf"), int(step.get("srcoff")) + at) for at in range(int(step.get("cnt")))]

    def local(self, rank, step):
        assert 0 < int(step.get("cnt")) < 72
        for at, value in enumerate(self.values(rank, step)):
            unit = int(step.get("dstoff")) + at
            if step.get("type") == "re":
                value = add(value, self.get(rank, step.get("dstbuf"), unit))
            self.put(rank, step.get("dstbuf"), unit, value)

    def receive(self, rank, step, values):
        if len(values) != int(step.get("cnt")):
            raise Wrong(f"rank {rank} receives {len(values)} units, expects {step.get('cnt')}")
        if step.get("type") == "rrc":
            values = [add(a, b) for a, b in zip(values, self.values(rank, step), strict=True)]
        for at, value in enumerate(values):
            self.put(rank, step.get("dstbuf"), int(step.get("dstoff")) + at, value)

    def outputs(self):
        holders = [ROOT[0]] if self.name == "reduce" else range(self.ranks)
        return [(rank, unit) for rank in holders for unit in range(self.sizes[rank]["o"])]


ROOT = [0]
"""The format does not name the root: the caller of the collective does."""


def collective_of(algo):
    """The collective under the name that we have for it."""
    return {"reducescatter": "reduce_scatter"}.get(algo.get("coll"), algo.get("coll"))


def add(a, b):
    if a[0] != b[0]:
        raise Wrong(f"units {a[0]} and {b[0]} of the payload are added")
    return a[0], tuple(sorted((*a[1], *b[1])))


def expected(name, ranks, units, root):
    """(rank, unit) -> value, by the definition of the collective; `units` are those of the whole payload."""
    everyone = tuple(range(ranks))
    own = units // ranks
    if name == "allreduce":
        return {(rank, unit): everyone for rank in range(ranks) for unit in range(units)}
    if name == "reduce":
        return {(root, unit): everyone for unit in range(units)}
    if name == "broadcast":
        return {(rank, unit): (root,) for rank in range(ranks) for unit in range(units)}
    if name == "allgather":
        return {(rank, unit): (unit // own,) for rank in range(ranks) for unit in range(units)}
    return {(rank, unit): everyone for rank in range(ranks) for unit in range(own)}
