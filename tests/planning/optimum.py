"""Whether tiny machines allow a time, by exhaustive search: written apart from the bounds and the planner."""

from topocomm.planning.collectives import IN_PARTS


def needed(collective):
    """Per rank, the set (bits) of ranks whose contribution it must know at the end."""
    everyone = range(collective.ranks)

    def wants(rank):
        if collective.name == "broadcast":
            return [collective.root]
        if collective.name == "reduce":
            return everyone if rank == collective.root else []
        if collective.name in ("scan", "exscan"):
            return range(rank + (collective.name == "scan"))
        some = [part > 0 or not any(collective.parts) for part in collective.parts]
        if collective.name == "alltoall":
            return [other for other in everyone if other == rank or some[other * collective.ranks + rank]]
        if collective.name == "scatter":
            return [collective.root] if some[rank] else []
        if collective.name == "gather" and rank != collective.root:
            return []
        if collective.name in ("allgather", "gather"):
            return [other for other in everyone if some[other]]
        if collective.name == "reduce_scatter":
            return everyone if some[rank] else []
        if collective.shards:
            return [other for other in everyone if collective.shards[other] < collective.shards[other + 1]]
        return everyone

    assert bool(collective.parts) == (collective.name in IN_PARTS)
    return [sum(1 << other for other in wants(rank)) for rank in everyone]


def beats(limit, collective, ends, latency, hold, ports):
    """Whether some schedule ends before `limit`: by trying all.

    A message from rank a to rank b carries all that a knows when it starts, holds a send port of a's endpoint and a
    receive port of b's for `hold[a][b]`, and arrives after `latency[a][b]`. Some optimum starts messages only when
    others arrive or free a port, since any can be moved earlier until then. What is left out: states from which some
    value cannot get where it is needed in time, ports or no ports.
    """
    want = needed(collective)
    bits = [bit for bit in range(len(ends)) if any(need >> bit & 1 for need in want)]
    apart = _apart(latency)
    seen = {}
    stack = [(0.0, tuple(1 << rank if rank in bits else 0 for rank in range(len(ends))), (), ())]
    while stack:
        now, known, flying, busy = stack.pop()
        if now + _least_left(known, flying, now, want, bits, apart) > limit - 1e-9:
            continue
        if all(have & need == need for have, need in zip(known, want, strict=True)):
            return True
        key = (known, *(tuple((round(at - now, 6), *rest) for at, *rest in each) for each in (flying, busy)))
        if seen.get(key, limit) <= now:
            continue
        seen[key] = now
        for started in _starts(known, flying, busy, ends, latency, ports):
            sent = sorted([*flying, *((now + latency[a][b], b, known[a]) for a, b in started)])
            ways = [(a, b, *way) for a, b in started for way in (("out", ends[a]), ("in", ends[b]))]
            held = sorted([*busy, *((now + hold[a][b], way, end) for a, b, way, end in ways)])
            if not sent and not held:
                continue
            then = min(at for at, *_ in (*sent, *held))
            after = list(known)
            for at, b, content in sent:
                if at <= then + 1e-9:
                    after[b] |= content
            left = [tuple(one for one in each if one[0] > then + 1e-9) for each in (sent, held)]
            stack.append((then, tuple(after), *left))
    return False


def _apart(latency):
    """Least time from rank to rank over any others."""
    ranks = range(len(latency))
    best = [[0.0 if a == b else latency[a][b] for b in ranks] for a in ranks]
    for relay in ranks:
        for a in ranks:
            for b in ranks:
                best[a][b] = min(best[a][b], best[a][relay] + best[relay][b])
    return best


def _least_left(known, flying, now, want, bits, apart):
    """Least time until every value that is needed can be there, with as many ports as one likes."""
    longest = 0.0
    for bit in bits:
        at = [(0.0, rank) for rank, have in enumerate(known) if have >> bit & 1]
        at += [(when - now, rank) for when, rank, content in flying if content >> bit & 1]
        for rank, need in enumerate(want):
            if need >> bit & 1 and not known[rank] >> bit & 1:
                longest = max(longest, min(wait + apart[other][rank] for wait, other in at))
    return longest


def _starts(known, flying, busy, ends, latency, ports):
    """All sets of messages that can start now and bring something new, the empty one among them."""
    coming = list(known)
    for _, b, content in flying:
        coming[b] |= content
    pairs = [
        (a, b)
        for a in range(len(ends))
        for b in range(len(ends))
        if a != b and latency[a][b] < float("inf") and known[a] & ~coming[b]
    ]
    used = {}
    for _, way, end in busy:
        used[way, end] = used.get((way, end), 0) + 1

    def choose(index, chosen):
        if index == len(pairs):
            yield tuple(chosen)
            return
        yield from choose(index + 1, chosen)
        a, b = pairs[index]
        out, into = ("out", ends[a]), ("in", ends[b])
        if used.get(out, 0) < ports and used.get(into, 0) < ports:
            used[out], used[into] = used.get(out, 0) + 1, used.get(into, 0) + 1
            yield from choose(index + 1, [*chosen, (a, b)])
            used[out] -= 1
            used[into] -= 1

    yield from choose(0, [])
