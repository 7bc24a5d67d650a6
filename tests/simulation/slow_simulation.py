"""The rules of the engine again, in small steps and plain Python: for comparison on small works."""

from math import inf

from topocomm.planning.cost.simulated_work import COMPUTE, SEND

SAME_US = 1e-9


def shares(flows, capacity):
    """Max-min rates by raising all together; `flows` has (links, limit) by task."""
    rate, free = dict.fromkeys(flows, 0.0), set(flows)
    while free:
        used = {link: sum(rate[f] for f in flows if link in flows[f][0]) for link in capacity}
        on = {link: [f for f in free if link in flows[f][0]] for link in capacity}
        step = min(
            [(capacity[link] - used[link]) / len(own) for link, own in on.items() if own]
            + [flows[f][1] - rate[f] for f in free]
        )
        for f in free:
            rate[f] += step
        full = {
            link for link, own in on.items() if own and used[link] + step * len(own) >= capacity[link] * (1 - 1e-12)
        }
        free -= {f for f in free if full & set(flows[f][0]) or rate[f] >= flows[f][1] * (1 - 1e-12)}
    return rate


def arrivals_us(work, tasks, paths, *, ports, loggp):  # noqa: C901, PLR0915 - the whole of the rules in one place
    """The arrival of every task, by looking at all of them at every instant."""
    n = len(work)
    after = [work.after[work.after_starts[t] : work.after_starts[t + 1]].tolist() for t in range(n)]
    routes = tasks.routes
    links = [routes.links[routes.starts[r] : routes.starts[r + 1]].tolist() for r in tasks.of_task.tolist()]
    capacity = {link: rate * 1e3 for link, rate in enumerate(paths.link_gb_per_s.tolist())}
    gap = routes.gap_us[tasks.of_task]
    queues: dict[tuple, list[int]] = {}
    for t in range(n):
        src, dst = work.devices[work.src[t]], work.devices[work.dst[t]]
        keys = [("computes", src)] if work.kind[t] == COMPUTE else []
        if work.kind[t] == SEND and ports is not None:
            keys += [("sends", src), ("receives", dst)]
        if work.kind[t] == SEND and loggp and (ports is not None or routes.gap_us.any()):
            keys += [("nic", int(paths.link_nics[link])) for link in links[t] if paths.link_nics[link] >= 0]
        for key in keys:
            queues.setdefault(key, []).append(t)
    start, first, last, arrival = ([inf] * n for _ in range(4))
    left = [float(size) for size in work.payload_bytes]
    now = 0.0

    def released(key, t):
        if key[0] == "nic":
            return first[t] + gap[t]
        return last[t] + (0.0 if key[0] == "computes" else gap[t] if loggp else tasks.latency_us[t])

    while inf in arrival:
        changed = True
        while changed:
            changed = False
            for t in range(n):
                if start[t] == inf and all(arrival[b] <= now + SAME_US for b in after[t]):
                    admitted = True
                    for key, queue in queues.items():
                        if t in queue:
                            open_ = [u for u in queue if released(key, u) > now + SAME_US]
                            most = ports if key[0] in ("sends", "receives") else 1
                            admitted &= t in open_[:most]
                    if admitted:
                        start[t], first[t], changed = now, now + work.before_us[t], True
                flows = left[t] > 0 and links[t]
                if first[t] <= now + SAME_US and last[t] == inf and not flows:
                    last[t], changed = now, True
                    arrival[t] = now + tasks.latency_us[t]
        flows = {
            t: (links[t], work.most_gb_per_s[t] * 1e3) for t in range(n) if first[t] <= now + SAME_US and last[t] == inf
        }
        rate = shares(flows, capacity)
        times = [now + left[t] / rate[t] for t in flows]
        times += [x for x in (*first, *arrival) if now + SAME_US < x < inf]
        times += [x for key, queue in queues.items() for t in queue if now + SAME_US < (x := released(key, t)) < inf]
        until = min(times, default=now)
        for t in flows:
            left[t] -= rate[t] * (until - now)
            if left[t] < 1e-6:
                left[t] = 0.0
        now = until
    return arrival
