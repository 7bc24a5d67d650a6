"""What each runtime of MSCCL XML refuses, after its own parser. Shares no code with the writer.

Rules are those of `mscclGetAlgoFromXmlFile`, `mscclGetAlgoMetaFromXmlFile` (src/misc/msccl/msccl_parser.cc) and
`mscclSetupConnections` (src/misc/msccl/msccl_setup.cc) of ROCm/rccl and Azure/msccl-executor-nccl, and of
`mscclGetAlgoFromXMLAndSetAlgo` (src/graph/topo.cc) of microsoft/msccl. What their kernels count
(`mscclRunInterpreter`) is held beside it: the flag of a step has the number that others wait for.
"""

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass


class Refused(Exception):
    """What the runtime says no to, or would read otherwise than it was meant."""


@dataclass(frozen=True)
class Parser:
    steps: int
    blocks: int
    channels: int
    words: dict
    needs_out_of_place: bool
    counts_chunks: bool


WORDS = {"reduce": 0, "broadcast": 0, "allreduce": 0, "allgather": 1}
ONE_WORD = WORDS | {"reducescatter": 1, "alltoall": 1}
PARSERS = {
    "rccl": Parser(64, 64, 128, ONE_WORD, True, False),
    "azure": Parser(64, 32 * 32, 32, ONE_WORD, True, False),
    "msccl": Parser(256, 108 * 2, 32, WORDS | {"reduce_scatter": 1}, False, True),
}
"""MSCCL_MAX_NUM_STEPS, MSCCL_MAX_NUM_THREAD_BLOCKS, MAXCHANNELS, the words for `coll`, and what else they differ in."""
TYPES = {"s": "S", "r": "R", "rcs": "RS", "rrs": "RS", "rrc": "R", "rrcs": "RS", "cpy": "", "re": "", "nop": ""}
MAX_NODES, MAX_SUBS, MAX_ATTRIBUTES, MAX_TEXT = 4096, 1024, 16, 254
PEERS_PER_CHANNEL, MAX_COUNT, MAX_FUSED = 32, 72, 16


def check(text, runtime):
    """Parses the program for every rank, as that runtime does.

    Raises:
        Refused: The runtime does not take it.
    """
    parser, algo = PARSERS[runtime], ET.fromstring(text)
    for element in algo.iter():
        need(len(element) <= MAX_SUBS and len(element.attrib) <= MAX_ATTRIBUTES, f"{element.tag} is too large")
        need(all(len(value) <= MAX_TEXT for value in element.attrib.values()), "a value is too long")
    for name in ("nchunksperloop", "nchannels", "ngpus", "inplace", *["outofplace"] * parser.needs_out_of_place):
        need(number(algo, name) >= 0, name)
    need(algo.get("proto") in ("Simple", "LL128", "LL"), "proto")
    need(algo.get("coll") in parser.words, f"coll {algo.get('coll')}")
    need(0 <= number(algo, "minBytes") <= number(algo, "maxBytes") < 2**63, "minBytes, maxBytes")
    need(len(algo.get("name")) <= 63, "name")
    need(number(algo, "nchannels") <= parser.channels, "nchannels")
    for gpu in algo.findall("gpu"):
        own = 1 + number(algo, "ngpus") + sum(1 + len(tb) for tb in gpu)
        need(own < MAX_NODES, f"{own} nodes")
        _gpu(gpu, algo, parser)
    _connections(algo)


def _gpu(gpu, algo, parser):
    rank, ranks, loop = number(gpu, "id"), number(algo, "ngpus"), number(algo, "nchunksperloop")
    sizes = {buffer: number(gpu, f"{buffer}_chunks") for buffer in "ios"}
    if parser.counts_chunks:
        many = {"i": ranks if algo.get("coll") == "allgather" else 1}
        many["o"] = ranks if algo.get("coll") == "reduce_scatter" else 1
        need(all(sizes[b] * many[b] == loop for b in "io"), f"i_chunks and o_chunks {sizes} of {loop}")
    peers = Counter()
    flags = {}
    waits = []
    for index, tb in enumerate(gpu.findall("tb")):
        need(number(tb, "id") == index < parser.blocks, f"thread block {index}")
        send, receive, channel = (number(tb, key) for key in ("send", "recv", "chan"))
        need(all(-1 <= peer < ranks and peer != rank for peer in (send, receive)), f"peers {send}, {receive}")
        need(0 <= channel < number(algo, "nchannels"), f"channel {channel}")
        for way, peer in (("S", send), ("R", receive)):
            peers[way, channel] += peer >= 0
        need(max(peers.values()) <= PEERS_PER_CHANNEL, f"channel {channel} has {max(peers.values())} peers one way")
        flags[index] = _block(tb, (send, receive), sizes, parser, waits)
    for block, step in waits:
        need(block < 128, f"depid {block} has 8 bits with sign")
        need(step in flags.get(block, ()), f"thread block {block} sets no flag at step {step}")


def _block(tb, ends, sizes, parser, waits):
    """The steps whose flags others see, by the numbers that the kernel gives them."""
    pending, counted, flags = 0, 0, set()
    run, fused = None, 0
    for index, step in enumerate(tb.findall("step")):
        kind = step.get("type")
        need(number(step, "s") == index < parser.steps, f"{index + 1} steps")
        need(kind in TYPES, f"type {kind}")
        depends = number(step, "depid") >= 0
        if depends:
            waits.append((number(step, "depid"), number(step, "deps")))
        pending += depends
        if kind == "nop":
            need(depends, "a nop that waits for nothing is counted by nobody")
            continue
        need(not pending or depends, "the last wait of a chain belongs to the step itself")
        need(0 < number(step, "cnt") < MAX_COUNT, f"cnt {number(step, 'cnt')}")
        need("S" not in TYPES[kind] or ends[0] >= 0, "a send without a peer")
        need("R" not in TYPES[kind] or ends[1] >= 0, "a receive without a peer")
        for way in ("src", "dst"):
            low, buffer = number(step, f"{way}off"), step.get(f"{way}buf")
            need(0 <= low <= sizes[buffer] - number(step, "cnt"), f"{way}off {low} of {sizes[buffer]}")
            need(low < 2**15, f"{way}off {low} has 16 bits with sign")
        place = (step.get("dstbuf"), step.get("dstoff"), step.get("srcbuf"), step.get("cnt"))
        continues = kind == "re" and place == run and not depends
        fused = fused + 1 if continues else 1
        need(fused <= MAX_FUSED, "too many reductions run as one")
        counted += 1 if continues else max(pending, 1)
        pending = 0
        need(counted == index + 1, f"step {index} is {counted - 1} for the kernel")
        flagged = number(step, "hasdep")
        need(flagged in (0, 1), "hasdep")
        if flagged:
            flags.add(index)
        run = place if kind == "re" and not flagged else None
    need(not pending, "waits that no step has")
    return flags


def _connections(algo):
    """Each connection has one thread block at either end, and both move the same units in the same order."""
    moved = {}
    for gpu in algo.findall("gpu"):
        for tb in gpu.findall("tb"):
            for way, key in (("S", "send"), ("R", "recv")):
                peer = number(tb, key)
                if peer < 0:
                    continue
                end = (number(gpu, "id"), peer, number(tb, "chan")) if way == "S" else None
                end = end or (peer, number(gpu, "id"), number(tb, "chan"))
                need((way, *end) not in moved, f"two thread blocks on connection {end}")
                moved[way, *end] = [number(step, "cnt") for step in tb if way in TYPES[step.get("type")]]
    for (way, *end), counts in moved.items():
        other = moved.get(("R" if way == "S" else "S", *end))
        need(other == counts, f"connection {end}: one end moves {counts}, the other {other}")


def number(element, name):
    try:
        return int(element.get(name))
    except (TypeError, ValueError):
        raise Refused(f"{element.tag}: attribute {name} is {element.get(name)!r}") from None


def need(holds, what):
    if not holds:
        raise Refused(what)
