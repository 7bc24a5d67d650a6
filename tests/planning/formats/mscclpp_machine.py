"""Runs an MSCCL++ execution plan on symbols, by the rules of its executor, several calls in a row.

Shares no code with the writer. A value is (call, unit of the payload, sorted ranks
whose value was added, as often as it was). Within a thread block only `nop`
orders what its threads do: an operation that touches what another touched since then is a fault. A port copies when it
likes, in the order of its channel. A rank may be a call ahead of others.
"""

import json
import random

OPERATIONS = {"put", "pws", "pwsf", "signal", "wait", "re", "copy", "nop", "sem_acquire", "sem_release"}


class Wrong(Exception):
    """What would race, hang, or read what nobody wrote."""


def run(text, in_place, root=0, seed=0, calls=2):
    """[(rank, unit) -> ranks that were added] of every call."""
    document = json.loads(text)
    assert document["protocol"] == "Simple"
    assert [gpu["id"] for gpu in document["gpus"]] == list(range(len(document["gpus"])))
    world = _World(document, in_place, root, calls)
    chance = random.Random(seed)
    actors = [*world.blocks, *world.queues]
    chance.shuffle(actors)
    while not world.over():
        for actor in actors:
            if world.deliver(actor) if actor[0] == "port" else world.advance(actor):
                break
        else:
            raise Wrong(f"deadlock: {world.where()}")
        if chance.random() < 0.05:
            chance.shuffle(actors)
    return world.results


class _World:
    def __init__(self, document, in_place, root, calls):
        self.name, self.gpus = document["collective"], document["gpus"]
        self.in_place, self.root, self.calls = in_place, root, calls
        self.ranks = len(self.gpus)
        self.total = max(max(gpu["input_chunks"], gpu["output_chunks"]) for gpu in self.gpus)
        self.memory, self.results = {}, [{} for _ in range(calls)]
        self.call = [0] * self.ranks
        self.sent, self.taken, self.queues = {}, {}, {}
        self.semaphores = {r: [s["init_value"] for s in gpu["semaphores"]] for r, gpu in enumerate(self.gpus)}
        self.blocks = {}
        for rank, gpu in enumerate(self.gpus):
            assert len(gpu["semaphores"]) <= 16
            for index, block in enumerate(gpu["threadblocks"]):
                assert block["id"] == index
                assert len(block["ops"]) <= 64
                assert {op["name"] for op in block["ops"]} <= OPERATIONS
                self.blocks[rank, index] = _Block(block)
            for channel in gpu["channels"]:
                assert len(set(channel["connected_to"])) == len(channel["connected_to"])
                for peer in channel["connected_to"]:
                    assert self.paired(channel["channel_type"], rank, peer)
                    if channel["channel_type"] == "port":
                        self.queues["port", rank, peer] = []
            self.begin(rank)

    def paired(self, kind, rank, peer):
        return any(c["channel_type"] == kind and rank in c["connected_to"] for c in self.gpus[peer]["channels"])

    def begin(self, rank):
        for unit in range(self.gpus[rank]["output_chunks"]):
            self.memory.pop(self.address(rank, "o", unit), None)
        for unit in range(self.gpus[rank]["input_chunks"]):
            whole = unit + self.start(rank, "i")
            value = (self.call[rank], whole, (rank,)) if self.name != "broadcast" or rank == self.root else None
            self.memory[self.address(rank, "i", unit)] = value
        for (owner, _), block in self.blocks.items():
            if owner == rank:
                block.restart()

    def over(self):
        return all(call == self.calls for call in self.call)

    def where(self):
        return {key: (block.at, len(block.ops)) for key, block in self.blocks.items()}

    def address(self, rank, buffer, unit):
        size = self.gpus[rank][{"i": "input", "o": "output", "s": "scratch"}[buffer] + "_chunks"]
        if not 0 <= unit < size:
            raise Wrong(f"rank {rank}: {buffer}[{unit}] is outside")
        if self.in_place and buffer in "io":
            return (rank, "io", unit + self.start(rank, buffer))
        return (rank, buffer, unit)

    def start(self, rank, buffer):
        """The unit of the payload with which a buffer begins: one that is a part begins at the rank's."""
        part = {"allgather": "i", "reducescatter": "o"}.get(self.name)
        return rank * self.total // self.ranks if buffer == part else 0

    def get(self, address):
        if self.memory.get(address) is None:
            raise Wrong(f"{address} is read, which nothing wrote")
        return self.memory[address]

    def advance(self, key):
        rank, block = key[0], self.blocks[key]
        if self.call[rank] == self.calls or block.at == len(block.ops):
            return False
        op = block.ops[block.at]
        if op["name"] == "pwsf" and not block.flushing:  # begins; it ends when the port has copied
            self.do_pws(rank, block, op)
            block.flushing = True
            return True
        if not getattr(self, "do_" + op["name"])(rank, block, op):
            return False
        block.at += 1
        if all(b.at == len(b.ops) for (owner, _), b in self.blocks.items() if owner == rank):
            self.end(rank)
        return True

    def end(self, rank):
        if any(queue for (_, src, _), queue in self.queues.items() if src == rank):
            raise Wrong(f"rank {rank} ends while a port still copies")
        if self.name != "reduce" or rank == self.root:
            for unit in range(self.gpus[rank]["output_chunks"]):
                call, whole, ranks = self.get(self.address(rank, "o", unit))
                if (call, whole) != (self.call[rank], unit + self.start(rank, "o")):
                    raise Wrong(f"rank {rank} call {self.call[rank]} unit {unit}: a result of {(call, whole)}")
                self.results[call][rank, unit] = ranks
        self.call[rank] += 1
        if self.call[rank] < self.calls:
            self.begin(rank)

    def local(self, rank, buff):
        return [self.address(rank, buff["type"], buff["index"] + at) for at in range(buff["size"])]

    def far(self, rank, block, kind, buff):
        refs = {r["access_channel_type"]: r["remote_buffer_ids"] for r in block.document["remote_buffer_refs"]}
        remote = self.gpus[rank]["remote_buffers"][refs[kind][buff["buffer_id"]]]
        assert kind in remote["access_channel_types"]
        assert len(refs[kind]) <= 16
        return remote["rank"], [
            self.address(remote["rank"], remote["type"], buff["index"] + at) for at in range(buff["size"])
        ]

    def peers(self, rank, block, op):
        kind = op["channel_type"]
        ids = next(c["channel_ids"] for c in block.document["channels"] if c["channel_type"] == kind)
        assert len(ids) <= 16
        assert len(op["channel_ids"]) <= 8
        connected = next(c["connected_to"] for c in self.gpus[rank]["channels"] if c["channel_type"] == kind)
        return [connected[ids[index]] for index in op["channel_ids"]]

    def do_nop(self, rank, block, op):
        block.synced()
        return True

    def do_put(self, rank, block, op):
        kind = op["channel_type"]
        assert len(op["src_buff"]) == len(op["dst_buff"]) <= 8
        assert len({buff["type"] for buff in op["src_buff"]}) == 1
        if kind == "port":
            return self.do_pws(rank, block, op, signals=False)
        for src, dst in zip(op["src_buff"], op["dst_buff"], strict=True):
            peer, target = self.far(rank, block, kind, dst)
            assert [c for c in self.gpus[rank]["channels"] if c["channel_type"] == kind and peer in c["connected_to"]]
            source = self.local(rank, src)
            block.touch(source, [])
            self.move(source, target)
        block.wrote = True
        return True

    def move(self, source, target):
        for a, b in zip(source, target, strict=True):
            self.memory[b] = self.get(a)

    def do_pws(self, rank, block, op, signals=True):
        (peer,) = self.peers(rank, block, op)
        (src,), (dst,) = op["src_buff"], op["dst_buff"]
        source = self.local(rank, src)
        other, target = self.far(rank, block, "port", dst)
        assert other == peer
        block.touch(source, [])
        queue = self.queues["port", rank, peer]
        queue.append((source, target))
        queue += ["signal"] * signals
        return True

    def do_pwsf(self, rank, block, op):
        (peer,) = self.peers(rank, block, op)
        if self.queues["port", rank, peer]:
            return False
        block.flushing = False
        return True

    def deliver(self, actor):
        queue = self.queues[actor]
        if not queue:
            return False
        entry = queue.pop(0)
        if entry == "signal":
            self.sent[actor[1:]] = self.sent.get(actor[1:], 0) + 1
        else:
            self.move(*entry)
        return True

    def do_signal(self, rank, block, op):
        if block.wrote:
            raise Wrong(f"rank {rank} signals while its threads may still write")
        for peer in self.peers(rank, block, op):
            if op["channel_type"] == "port":
                self.queues["port", rank, peer].append("signal")
            else:
                self.sent[rank, peer] = self.sent.get((rank, peer), 0) + 1
        return True

    def do_wait(self, rank, block, op):
        ways = [(peer, rank) for peer in self.peers(rank, block, op)]
        if any(self.sent.get(way, 0) <= self.taken.get(way, 0) for way in ways):
            return False
        for way in ways:
            self.taken[way] = self.taken.get(way, 0) + 1
        block.waited = True
        return True

    def do_re(self, rank, block, op):
        assert len(op["src_buff"]) <= 10
        assert op["reduce_op"] == "sum"
        sources = [self.local(rank, buff) for buff in op["src_buff"]]
        target = self.local(rank, op["dst_buff"][0])
        block.touch([address for source in sources for address in source], target)
        for at, address in enumerate(target):
            total = self.get(sources[0][at])
            for source in sources[1:]:
                total = add(total, self.get(source[at]))
            self.memory[address] = total
        return True

    def do_copy(self, rank, block, op):
        source, target = self.local(rank, op["src_buff"][0]), self.local(rank, op["dst_buff"][0])
        block.touch(source, target)
        self.move(source, target)
        return True

    def do_sem_release(self, rank, block, op):
        if block.touched:
            raise Wrong("a semaphore is released while threads are still at work")
        for index in op["semaphore_ids"]:
            self.semaphores[rank][index] += 1
        return True

    def do_sem_acquire(self, rank, block, op):
        if any(self.semaphores[rank][index] < 1 for index in op["semaphore_ids"]):
            return False
        for index in op["semaphore_ids"]:
            self.semaphores[rank][index] -= 1
        block.waited = True
        return True


class _Block:
    def __init__(self, document):
        self.document, self.ops = document, document["ops"]
        self.restart()

    def restart(self):
        self.at = 0
        self.flushing = False
        self.synced()

    def synced(self):
        self.touched, self.waited, self.wrote = {}, False, False

    def touch(self, reads, writes):
        """One operation: each thread reads and writes its own elements of it."""
        if self.waited:
            raise Wrong("memory is touched before all threads know of the wait")
        mine = {**dict.fromkeys(reads, False), **dict.fromkeys(writes, True)}
        for address, written in mine.items():
            if address in self.touched and (written or self.touched[address]):
                raise Wrong(f"{address} is touched by two operations without a barrier")
        for address, written in mine.items():
            self.touched[address] = self.touched.get(address, False) or written


def add(a, b):
    if a[:2] != b[:2]:
        raise Wrong(f"values of (call, unit) {a[:2]} and {b[:2]} are added")
    return *a[:2], tuple(sorted((*a[2], *b[2])))
