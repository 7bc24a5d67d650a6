"""Draws trees as `lspci -tv` does, for invented machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Devices = Mapping[str, Any]
"""By `device.function`: a name, or a bridge's buses (`01`, `02-05`) and the devices below it."""


def draw(roots: Mapping[str, Devices]) -> str:
    """The text for root buses by `domain:bus`."""
    lines: list[str] = []
    names = list(roots)
    for i, root in enumerate(names):
        if len(names) == 1:
            head, rest = f"-[{root}]-", " " * 10
        else:
            last = i == len(names) - 1
            head = ("-" if i == 0 else " ") + ("\\" if last else "+") + f"-[{root}]-"
            rest = (" " if last else " |") + " " * (len(head) - (1 if last else 2))
        lines += _bus(roots[root], head, rest[: len(head)].ljust(len(head)))
    return "".join(f"{line}\n" for line in lines)


def _bus(devices: Devices, head: str, rest: str) -> list[str]:
    if not devices:
        return [head]
    if len(devices) == 1:
        ((place, what),) = devices.items()
        return _device(place, what, head + "--", rest + "  ")
    lines = []
    for i, (place, what) in enumerate(devices.items()):
        last = i == len(devices) - 1
        lines += _device(
            place, what, (head if i == 0 else rest) + ("\\-" if last else "+-"), rest + ("  " if last else "| ")
        )
    return lines


def _device(place: str, what: str | tuple[str, Devices], head: str, rest: str) -> list[str]:
    if isinstance(what, str):
        return [f"{head}{place}  {what}"]
    buses, below = what
    text = f"{head}{place}-[{buses}]--"
    return _bus(below, text, rest + " " * (len(text) - len(rest)))


A100 = "NVIDIA Corporation GA100 [A100 PCIe 80GB]"
CX6 = "Mellanox Technologies MT28908 Family [ConnectX-6]"


def server(gpu: str = A100, nic: str = CX6) -> str:
    """Two sockets with a switch each: two GPUs and a dual-port card below a switch, a GPU on a root port of its own."""
    roots: dict[str, Devices] = {}
    for domain in ("0000", "0001"):
        roots[f"{domain}:00"] = {
            "00.0": "Intel Corporation Device 09a2",
            "01.0": (
                "01-06",
                {
                    "00.0": (
                        "02-06",
                        {
                            "00.0": ("03", {"00.0": gpu}),
                            "04.0": ("04", {"00.0": gpu}),
                            "08.0": ("05", {"00.0": nic, "00.1": nic}),
                            "0c.0": ("06", {}),
                        },
                    )
                },
            ),
            "02.0": ("07", {"00.0": gpu, "00.1": "NVIDIA Corporation Device 1aef"}),
            "03.0": ("08-09", {"00.0": ("09", {"00.0": "ASPEED Technology, Inc. ASPEED Graphics Family"})}),
        }
    roots["0001:80"] = {"00.0": "Intel Corporation Device 09a2", "05.0": "Intel Corporation I350 Gigabit Network"}
    return draw(roots)
