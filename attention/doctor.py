"""What `topocomm doctor` says of attention: which kernel each kind of call gets on this machine, and why.

Found by the entry-point group `topocomm.doctor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attention.local.choice import TABLE, Call, Machine, choose, unusable
from topocomm import MissingExtraError

TITLE = "Which kernel attends a shard of keys here (attention.local_attention)"
FIRST = Call("cpu", ("bfloat16", "bfloat16"), 1, 32, 8, 1, 65536, 128, 128)
"""A token of a model with 32 heads of 128 over 8 key heads, after 64k others."""
PROMPT = replace(FIRST, q_len=4096, n=4096, seen="square")
CALLS: dict[str, Call] = {
    "decode": FIRST,
    "decode, batch of 8": replace(FIRST, batch=8),
    'decode, exact="float32"': replace(FIRST, exact=True),
    "decode, pages or lengths": replace(FIRST, features=frozenset({"kv_lengths", "block_tables"})),
    "decode, latents (MLA)": replace(FIRST, heads=128, kv_heads=1, d=576, d_v=512, latents=True),
    "prompt": PROMPT,
    'prompt, exact="float32"': replace(PROMPT, exact=True),
    "prompt, any positions": replace(PROMPT, features=frozenset({"positions"})),
    "prompt, merged (ring)": replace(PROMPT, features=frozenset({"merge"})),
}
"""The calls shown, in bfloat16; those that are merged on the CPU are merged by a kernel of their own."""
CPU_LEAVES_OUT = ("prompt, merged (ring)",)
OTHERS = {row.name for row in TABLE if row.rounds}
"""The kernels of other libraries."""


def sections() -> list[tuple[str, Sequence[str]]]:
    """Return what is to be printed: a title, and lines, for the CPU and for every kind of GPU."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return [(TITLE, [str(MissingExtraError("attention", "torch", "attention"))])]
    return [(TITLE, [line for machine in machines() for line in lines_of(machine)])]


def machines() -> list[Machine]:
    """Return the CPU, and one GPU of each kind."""
    import torch

    from attention.local.local_machine import machine_of

    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    gpus = {machine.name: machine for machine in (machine_of(device, gpu=True) for device in devices)}
    return [machine_of(torch.device("cpu"), gpu=False), *gpus.values()]


def lines_of(machine: Machine) -> list[str]:
    """Return the kernel of each kind of call, and why no library has it; then the reason of each choice."""
    absent = {row.name: why for row in TABLE if row.device == machine.device and (why := unusable(row, machine))}
    lines, chosen = [f"{machine.name}:"], []
    for name, call in CALLS.items():
        if machine.device == "cpu" and name in CPU_LEAVES_OUT:
            continue
        choice = choose(replace(call, device=machine.device), machine)
        kept = [f"{other}: {why}" for other, why in choice.passed if other in OTHERS and other not in absent]
        lines.append(f"  {name:25} {choice.row.name:17} {'; '.join(kept)}".rstrip())
        chosen.append(choice.row)
    lines += [f"  {name}, never: {why}" for name, why in absent.items()]
    return lines + [f"  {row.name}: {row.reason}" for row in dict.fromkeys(chosen)]
