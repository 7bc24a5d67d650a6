"""Which devices of two captures are the same, and whether captures are of one machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from topocomm.errors import TopologyError
from topocomm.topology.inference.host_tree import group_words
from topocomm.topology.inference.pci_tree import address
from topocomm.topology.merge.cluster import host_name
from topocomm.topology.model import Device, Topology

UNNAMED_HOST = "host0"
"""Name that readers give a host without a name in the source."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9a-f]{1,13}", re.IGNORECASE)
_BARE_NIC = re.compile(r"NIC\d+")


def bus_key(text: str | None) -> str | None:
    """Return a PCI address as `0000:0f:00.0`, also of `00000000:0F:00.0`, `0f:00.0` and NCCL's number `f000`.

    None for a text that is no address.
    """
    text = (text or "").strip()
    if (match := _ADDRESS.fullmatch(text)) is not None:
        domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
        return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
    return address(text) if _NUMBER.fullmatch(text) else None


def label(topology: Topology) -> str:
    """Return the name of a capture in messages: `node3 (nvidia-smi topo -m)`."""
    return f"{topology.name} ({topology.source})"


def same_host(topologies: Sequence[Topology]) -> bool:
    """Return whether captures are of one machine (`combine`), rather than of one machine each (`merge_hosts`).

    Captures that name their hosts differently are several machines. Otherwise captures of one kind (`Topology.source`)
    are a machine each, and captures of all different kinds are one machine. Devices are not compared here: `combine`
    refuses those that do not match.

    Raises:
        TopologyError: Some kinds repeat and others do not, so that it is not clear which captures belong together.
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


def match_devices(first: Topology, other: Topology) -> tuple[dict[str, str], list[str]]:
    """Match the GPUs (by UUID, PCI address or number) and NICs (by name or address) of two captures.

    Return the id in the first capture by id in the other, for devices that both have; and warnings.

    Raises:
        TopologyError: The two cannot be of one machine; says why and what to do.
    """
    warnings: list[str] = []
    ids = _match_gpus(first, other, warnings)
    ids |= _match_nics(first, other, ids, warnings)
    if not ids:
        raise _refusal(first, other, "they have no device in common")
    return ids, warnings


def _refusal(first: Topology, other: Topology, why: str) -> TopologyError:
    return TopologyError(
        f"{label(first)} and {label(other)} cannot be of one machine: {why}; give captures of the whole of one "
        "machine (no -i, no CUDA_VISIBLE_DEVICES), or one kind of capture for each of several machines"
    )


def _of_kind(topology: Topology, kind: str) -> list[Device]:
    return [device for device in topology.devices if device.kind == kind]


def _match_gpus(first: Topology, other: Topology, warnings: list[str]) -> dict[str, str]:
    a, b = _of_kind(first, "gpu"), _of_kind(other, "gpu")
    if not a or not b:
        return {}
    for keys, what in (((_uuid_of(first), _uuid_of(other)), "UUID"), ((_address, _address), "PCI address")):
        left, right = _index(a, keys[0]), _index(b, keys[1])
        if len(left) < len(a) or len(right) < len(b):
            continue  # unknown for some, or ambiguous
        ids = _common(left, right)
        if not ids:
            raise _refusal(first, other, f"no GPU of one has the {what} of one of the other")
        if len(a) != len(b) or len(ids) < len(a):
            warnings.append(
                f"{label(first)} has {len(a)} GPUs, {label(other)} {len(b)}, and {len(ids)} are in both by "
                f"{what}; all of them are kept"
            )
        return ids
    if len(a) != len(b):
        raise _refusal(first, other, f"the first has {len(a)} GPUs, the second {len(b)}")
    if {gpu.id for gpu in a} != {gpu.id for gpu in b}:
        numbers = f"{group_words([d.id for d in a])} against {group_words([d.id for d in b])}"
        raise _refusal(first, other, f"GPUs are numbered differently ({numbers}), and not both give PCI addresses")
    return {gpu.id: gpu.id for gpu in a}


def _uuid_of(topology: Topology) -> Callable[[Device], str | None]:
    uuids = topology.facts.get("uuids")
    return lambda gpu: uuids.get(gpu.id) if isinstance(uuids, Mapping) else None


def _address(device: Device) -> str | None:
    return bus_key(device.bus_id)


def _match_nics(first: Topology, other: Topology, gpus: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """Match NICs by name, then by address where it is unique (ports of a card may share one), then by shared switch."""
    a, b = _of_kind(first, "nic"), _of_kind(other, "nic")
    ids: dict[str, str] = {}
    for key in (nic_name, _address):
        ids |= _common(_index(a, key), _index(b, key))
        a = [nic for nic in a if nic.id not in ids.values()]
        b = [nic for nic in b if nic.id not in ids]
    ids |= _by_switch((first, a), (other, b), gpus)
    for side, rest, against in ((first, a, other), (other, b, first)):
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
    """Match NICs that share a switch with the same GPUs, where only one side has addresses."""
    with_address = [{nic.bus_id is not None for nic in nics} for _, nics in (first, other)]
    if with_address not in ([{True}, {False}], [{False}, {True}]):
        return {}
    same = {gpu: gpu for gpu in gpus.values()}
    indices = []
    for (topology, nics), ids in ((first, same), (other, gpus)):
        near: dict[str, list[str]] = {}
        for pair in topology.pairs:
            if pair.code in ("PIX", "PXB") and pair.a in ids:
                near.setdefault(pair.b, []).append(ids[pair.a])
        marks = {nic.id: " ".join(sorted(near[nic.id])) for nic in nics if nic.id in near}
        indices.append(_index(nics, lambda nic, marks=marks: marks.get(nic.id)))  # type: ignore[misc]
    return _common(*indices)


def nic_name(nic: Device) -> str | None:
    """Return the operating system's name of a NIC; None where the source only numbers it."""
    return nic.name or (None if _BARE_NIC.fullmatch(nic.id) else nic.id)


def _index(devices: Iterable[Device], key: Callable[[Device], str | None]) -> dict[str, str]:
    """Ids by key, without keys that several devices have."""
    marks = {device.id: mark for device in devices if (mark := key(device)) is not None}
    counts = Counter(marks.values())
    return {mark: device for device, mark in marks.items() if counts[mark] == 1}


def _common(left: Mapping[str, str], right: Mapping[str, str]) -> dict[str, str]:
    """Id on the left by id on the right, for common keys."""
    return {right[mark]: left[mark] for mark in right if mark in left}
