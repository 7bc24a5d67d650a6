"""Renders listings of `nvidia-smi nvlink -s` and `-R` from facts."""

from __future__ import annotations


def uuid(number: int, machine: int = 1) -> str:
    return f"GPU-{machine:08d}-0000-4000-8000-{number:012d}"


def header(number: int, name: str, machine: int = 1) -> str:
    return f"GPU {number}: {name} (UUID: {uuid(number, machine)})\n"


def status(rates: list[list[float | None] | str], name: str = "NVIDIA A100-SXM4-40GB", machine: int = 1) -> str:
    """A listing of `-s`: per GPU the rates of its links, None for one that is down, or a sentence."""
    text = ""
    for number, links in enumerate(rates):
        text += header(number, name, machine)
        if isinstance(links, str):
            text += links + "\n"
            continue
        for k, rate in enumerate(links):
            text += f"\t Link {k}: " + ("<inactive>" if rate is None else f"{rate:g} GB/s") + "\n"
    return text


def remote(ends: list[list[tuple[str, int]]], name: str = "NVIDIA A100-SXM4-40GB", machine: int = 1) -> str:
    """A listing of `-R`: per GPU the far ends of its links that are up."""
    text = ""
    for number, links in enumerate(ends):
        text += header(number, name, machine)
        text += "".join(f"\t Link {k}: Remote Device {far}: Link {port}\n" for k, (far, port) in enumerate(links))
    return text


def address(number: int) -> str:
    return f"{number // 15:08X}:{16 * (number % 15) + 7:02X}:00.0"


def meshed(lanes: dict[tuple[int, int], int], gpus: int) -> list[list[tuple[str, int]]]:
    """Far ends of GPUs that are linked to each other: numbers are dealt out in the order of pairs."""
    ends: list[list[tuple[str, int]]] = [[] for _ in range(gpus)]
    for (a, b), count in lanes.items():
        for _ in range(count):
            at_a, at_b = len(ends[a]), len(ends[b])
            ends[a].append((address(b), at_b))
            ends[b].append((address(a), at_a))
    return ends


def switched(gpus: int, switches: int, links: int) -> list[list[tuple[str, int]]]:
    """Far ends of GPUs behind NVSwitches: `links` of each GPU to each switch, one port for every link."""
    return [
        [(f"{8 + s:08X}:00:00.0", gpu * links + k) for s in range(switches) for k in range(links)]
        for gpu in range(gpus)
    ]
