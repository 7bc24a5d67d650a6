"""Placement of ranks on devices of their host, with their nearest NIC, from the ranks' own claims."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from topocomm.topology.discovery.pci_sysfs import short_bus_id
from topocomm.topology.inference.cpu_lists import cpu_ranges, cpus_of
from topocomm.topology.inference.host_tree import LEVELS
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Topology
from topocomm.topology.network.port_rates import stated_rates

LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
"""Variables of a rank's number on its host: torchrun, Open MPI, MPICH and Intel MPI, srun."""

_FAR = len(LEVELS)


class Claim(NamedTuple):
    """Claim of one rank; None is unknown."""

    cpus: str | None = None
    """CPUs that it may use, as ranges."""
    visible: tuple[str, ...] = ()
    """Lists of GPUs that it may see, each counted in the one before: indices or UUIDs."""
    chosen: str | None = None
    """PCI address of its chosen GPU."""
    local_rank: int | None = None


class Placed(NamedTuple):
    """Device and NIC of each rank of one host, in the order of the claims, and warnings."""

    devices: tuple[str, ...]
    nics: tuple[str | None, ...]
    warnings: tuple[str, ...]


def own_claim(
    environment: Mapping[str, str] = os.environ, modules: Mapping[str, Any] | None = None, cpus: set[int] | None = None
) -> Claim:
    """What this process says of itself, by default with the modules that it has loaded and the CPUs that it may use."""
    if cpus is None and hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
    second = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    lists = (environment.get("ROCR_VISIBLE_DEVICES"), second)
    local = next((environment[name] for name in LOCAL_RANKS if environment.get(name, "").isdecimal()), None)
    return Claim(
        cpu_ranges(cpus) if cpus else None,
        tuple(text for text in lists if text is not None),
        _chosen(sys.modules if modules is None else modules),
        int(local[:9]) if local else None,
    )


def place_ranks_of_host(host: Topology, claims: Sequence[Claim]) -> Placed:
    """Place the ranks of one host.

    A rank is on the GPU that it has chosen, if its neighbours have chosen others; else on one that it may see. Without
    GPUs it is on a core that it may run on. Ranks with the same choice are spread over it, in the order of their local
    ranks where the launcher's numbers are all different, else in that of the claims, which are in rank order.
    """
    warnings: list[str] = []
    choices = [_choice(host, claim, warnings) for claim in claims]
    by_address = {host.by_id[end].bus_id or None: end for end in reversed(host.endpoints)}
    chosen = [by_address.get(claim.chosen) if claim.chosen else None for claim in claims]
    if None not in chosen and len(set(chosen)) == len(chosen):
        choices = [(device,) for device in chosen if device]
    numbers = [claim.local_rank for claim in claims if claim.local_rank is not None]
    numbered = len(set(numbers)) == len(claims)
    order = sorted(range(len(claims)), key=lambda i: numbers[i] if numbered else i)
    devices = [""] * len(claims)
    for choice in dict.fromkeys(choices):
        alike = [i for i in order if choices[i] == choice]
        for i, device in zip(alike, spread(choice, len(alike)), strict=True):
            devices[i] = device
        if numbered and len(alike) == len(claims) and max(numbers) < len(choice):  # some of the host's ranks, or all
            devices = [choice[number] for number in numbers]
        if len(choice) == 1 and len(alike) > 1 and len(host.endpoints) == 1 and claims[alike[0]].visible:
            warnings.append(
                f"{len(alike)} ranks of {host.name} are shown {choice[0]} alone: where each is shown another GPU under "
                "this name, as Slurm does it, the others are not known"
            )
    return Placed(tuple(devices), nearest_nics(host, devices), tuple(dict.fromkeys(warnings)))


def spread(ends: Sequence[str], size: int) -> list[str]:
    """Spread `size` ranks over endpoints in order, neighbours close together."""
    if size <= len(ends):
        return list(ends[:size])
    return [ends[rank * len(ends) // size] for rank in range(size)]


def nearest_nics(host: Topology, devices: Sequence[str]) -> tuple[str | None, ...]:
    """Return a NIC for each device: the nearest, of those the fastest, of those in turn.

    Distance is that of the pair codes, where there are none of the NUMA nodes. Equal devices get the same NIC.
    """
    nics = [d for d in host.devices if d.kind == "nic"]
    rates = {link.src: link.gb_per_s or 0.0 for link in host.links if link.dst == NETWORK.id}
    rates |= stated_rates(host)
    codes = {(pair.a, pair.b): pair.code for pair in host.pairs}
    used: dict[str, int] = {}
    nearest: dict[str, str] = {}
    for end in sorted(set(devices), key=host.endpoints.index):
        numa = host.by_id[end].numa

        def cost(nic: Any, end: str = end, numa: int | str | None = numa) -> tuple[int, float, int]:
            code = codes.get((end, nic.id))
            unknown = numa is None or nic.numa is None
            level = LEVELS.get(code or "", _FAR if unknown else _FAR - 1 if nic.numa == numa else _FAR + 1)
            return level, -rates.get(nic.id, 0.0), used.get(nic.id, 0)

        if nics:
            best = min(nics, key=cost)
            used[best.id] = used.get(best.id, 0) + 1
            nearest[end] = best.name or best.id
    return tuple(nearest.get(end) for end in devices)


def _choice(host: Topology, claim: Claim, warnings: list[str]) -> tuple[str, ...]:
    """Return the endpoints that a rank may use; all if it claims none that is known."""
    ends = host.endpoints
    if host.by_id[ends[0]].kind == "cpu":
        allowed = cpus_of(claim.cpus)
        return tuple(end for end in ends if cpus_of(host.by_id[end].cpu_affinity) & allowed) or ends
    for text in claim.visible:
        visible = _visible(text, ends, host.facts.get("uuids", {}))
        if not visible:
            if text.strip() not in ("", "-1", "NoDevFiles"):
                warnings.append(f"visible GPUs {text!r} are not among those of {host.name}: the list is passed over")
            return host.endpoints
        ends = visible
    return ends


def _visible(text: str, ends: Sequence[str], uuids: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of a list up to the first invalid entry, as the runtimes read it."""
    visible: list[str] = []
    for word in map(str.strip, text.split(",")):
        if word.isdecimal():
            named = [ends[int(word)]] if len(word) < 5 and int(word) < len(ends) else []
        else:
            bare = word.lower().removeprefix("mig-").removeprefix("gpu-").partition("/")[0]
            uuid_of = {end: (uuids.get(end) or "").lower().removeprefix("gpu-") for end in ends}
            named = [end for end in ends if bare and uuid_of[end].startswith(bare)]
        if len(named) != 1 or named[0] in visible:
            break
        visible += named
    return tuple(visible)


def _chosen(modules: Mapping[str, Any]) -> str | None:
    """Return the PCI address of torch's current device if torch is loaded and has used a GPU."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    properties = cuda.get_device_properties(cuda.current_device())
    domain, bus, device = (getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device"))
    if domain is None or bus is None or device is None:  # older versions of torch
        return None
    return short_bus_id(f"{domain:08x}:{bus:02x}:{device:02x}.0")
