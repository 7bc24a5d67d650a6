"""Which devices of two captures are the same ones, and whether captures are of one machine at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from topocomm.errors import TopologyError
from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.merge.cluster import NETWORK
from topocomm.topology.model import Device, Topology

UNNAMED_HOST = "host0"
"""What readers call a host whose name the source does not give."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9a-f]{1,13}", re.IGNORECASE)
_BARE_NIC = re.compile(r"NIC\d+")


class Join(NamedTuple):
    """Id in the first capture by id in the other, for GPUs and NICs that both have; and what did not fit."""

    ids: dict[str, str]
    warnings: tuple[str, ...]


def bus_key(text: str | None) -> str | None:
    """A PCI address as `domain:bus:device.function` without leading zeros in the domain's upper half.

    `00000000:0F:00.0`, `0000:0f:00.0`, `0f:00.0` and NCCL's number `f000` are one address; None for what is none.
    """
    text = (text or "").strip()
    if (found := _ADDRESS.fullmatch(text)) is not None:
        domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    elif _NUMBER.fullmatch(text):
        number = int(text, 16)
        domain, bus, device, function = number >> 20, number >> 12 & 0xFF, number >> 4 & 0xFF, number & 0xF
    else:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def label(topology: Topology) -> str:
    """What messages call a capture: `node3 (nvidia-smi topo -m)`."""
    return f"{topology.name} ({topology.source})"


def same_host(topologies: Sequence[Topology]) -> bool:
    """Whether several captures are of one machine (`combine`) or of one machine each (`merge_hosts`).

    The rule: captures that name their hosts differently are several machines. Otherwise captures of one kind
    (`Topology.source`) are a machine each, as nobody gives the same output twice, and captures that are all of
    different kinds are one machine, as nobody describes the hosts of a cluster each with another tool. Whether
    their devices agree is not looked at: `combine` refuses those that do not.

    Raises:
        TopologyError: Kinds repeat and differ, as in two outputs each of two machines: who belongs to whom is not
            said.
    """
    if len(topologies) < 2:
        return True
    names = {name for topology in topologies if (name := host_name(topology)) != UNNAMED_HOST}
    kinds = [topology.source for topology in topologies]
    if len(names) > 1 or len(set(kinds)) == 1:
        return False
    if len(set(kinds)) == len(kinds):
        return True
    twice = next(kind for kind in kinds if kinds.count(kind) > 1)
    raise TopologyError(
        f"{len(kinds)} captures, {kinds.count(twice)} of them of `{twice}`: which belong to one machine is not clear; "
        "combine those of each machine first (`topocomm inspect --input A --input B --format json --output HOST.json`)"
    )


def host_name(topology: Topology) -> str:
    """The one host of a capture.

    Raises:
        TopologyError: It has several, or none.
    """
    hosts = {d.host for d in topology.devices} - {NETWORK.host}
    if len(hosts) != 1:
        raise TopologyError(f"topology {topology.name!r} has {len(hosts)} hosts; only captures of one host combine")
    return hosts.pop()


def join_devices(first: Topology, other: Topology) -> Join:
    """Pairs the devices of two captures: GPUs by UUID, PCI address or number, NICs by name or address.

    Raises:
        TopologyError: The two cannot be of one machine: says why and what to do.
    """
    warnings: list[str] = []
    ids = _join_gpus(first, other, warnings)
    ids |= _join_nics(first, other, ids, warnings)
    if not ids:
        raise _refusal(first, other, "they have no device in common")
    return Join(ids, tuple(warnings))


def _refusal(first: Topology, other: Topology, why: str) -> TopologyError:
    return TopologyError(
        f"{label(first)} and {label(other)} cannot be of one machine: {why}; give captures of the whole of one "
        "machine (no -i, no CUDA_VISIBLE_DEVICES), or one kind of capture for each of several machines"
    )


def _of_kind(topology: Topology, kind: str) -> list[Device]:
    return [device for device in topology.devices if device.kind == kind]


def _join_gpus(first: Topology, other: Topology, warnings: list[str]) -> dict[str, str]:
    mine, theirs = _of_kind(first, "gpu"), _of_kind(other, "gpu")
    if not mine or not theirs:
        return {}
    for key, what in ((_uuid_of, "UUID"), (_address_of, "PCI address")):
        left, right = _index(mine, key(first)), _index(theirs, key(other))
        if len(left) < len(mine) or len(right) < len(theirs):
            continue  # not known of all, or not one each
        ids = {right[mark]: left[mark] for mark in right if mark in left}
        if not ids:
            raise _refusal(first, other, f"no GPU of one has the {what} of one of the other")
        if len(mine) != len(theirs) or len(ids) < len(mine):
            warnings.append(
                f"{label(first)} has {len(mine)} GPUs, {label(other)} {len(theirs)}, and {len(ids)} are in both by "
                f"{what}; all of them are kept"
            )
        return ids
    if len(mine) != len(theirs):
        raise _refusal(first, other, f"the first has {len(mine)} GPUs, the second {len(theirs)}")
    if {gpu.id for gpu in mine} != {gpu.id for gpu in theirs}:
        numbers = f"{group_words([d.id for d in mine])} against {group_words([d.id for d in theirs])}"
        raise _refusal(first, other, f"GPUs are numbered differently ({numbers}), and not both give PCI addresses")
    return {gpu.id: gpu.id for gpu in mine}


def _uuid_of(topology: Topology) -> Callable[[Device], str | None]:
    uuids = topology.facts.get("uuids")
    known = uuids if isinstance(uuids, Mapping) else {}
    return lambda gpu: known.get(gpu.id)


def _address_of(_: Topology) -> Callable[[Device], str | None]:
    return lambda gpu: bus_key(gpu.bus_id)


def _join_nics(first: Topology, other: Topology, gpus: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """NICs by name; those left over by address, where only one of each side has it (a port pair may share one).

    Where one side has addresses alone, and the other none, the GPUs that share a switch with a NIC tell.
    """
    mine, theirs = _of_kind(first, "nic"), _of_kind(other, "nic")
    names, addresses = _index(mine, nic_name), _index(theirs, nic_name)
    ids = {addresses[name]: names[name] for name in addresses if name in names}
    mine = [nic for nic in mine if nic.id not in ids.values()]
    theirs = [nic for nic in theirs if nic.id not in ids]
    left, right = (_index(nics, _address_of(first)) for nics in (mine, theirs))
    ids |= {right[mark]: left[mark] for mark in right if mark in left}
    mine = [nic for nic in mine if nic.id not in ids.values()]
    theirs = [nic for nic in theirs if nic.id not in ids]
    ids |= _by_switch((first, mine), (other, theirs), gpus)
    for side, rest, against in ((first, mine, other), (other, theirs, first)):
        bare = [nic.id for nic in rest if nic_name(nic) is None and nic.id not in ids.values() and nic.id not in ids]
        if bare and _of_kind(against, "nic"):
            warnings.append(
                f"{label(side)} gives no name to {group_words(bare)}: whether {label(against)} has them under another "
                "one is not known"
            )
    return ids


def _by_switch(
    first: tuple[Topology, Sequence[Device]], other: tuple[Topology, Sequence[Device]], gpus: Mapping[str, str]
) -> dict[str, str]:
    """NICs that alone of their side share a switch with the same GPUs, where only one side has addresses."""
    with_address = [{nic.bus_id is not None for nic in nics} for _, nics in (first, other)]
    if with_address not in ([{True}, {False}], [{False}, {True}]):
        return {}
    names = {gpu: gpu for gpu in gpus.values()}
    found = []
    for (topology, nics), ids in ((first, names), (other, gpus)):
        near: dict[str, list[str]] = {}
        for pair in topology.pairs:
            if pair.code in ("PIX", "PXB") and pair.a in ids:
                near.setdefault(pair.b, []).append(ids[pair.a])
        marks = {nic.id: " ".join(sorted(near[nic.id])) for nic in nics if nic.id in near}
        found.append(_index(nics, lambda nic, marks=marks: marks.get(nic.id)))  # type: ignore[misc]
    left, right = found
    return {right[mark]: left[mark] for mark in right if mark in left}


def nic_name(nic: Device) -> str | None:
    """What the operating system calls the NIC; None where the source only numbers it."""
    return nic.name or (None if _BARE_NIC.fullmatch(nic.id) else nic.id)


def _index(devices: Iterable[Device], key: Callable[[Device], str | None]) -> dict[str, str]:
    """Ids by key; keys that several devices have are left out."""
    found: dict[str, list[str]] = {}
    for device in devices:
        if (mark := key(device)) is not None:
            found.setdefault(mark, []).append(device.id)
    return {mark: ids[0] for mark, ids in found.items() if len(ids) == 1}
