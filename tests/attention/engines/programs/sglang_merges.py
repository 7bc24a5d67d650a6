"""Run by test_installed_sglang.py: SGLang's merges as they are, then hooked by its plug-ins, on its own coordinator."""

import sys

import torch
import torch.distributed as dist
from sglang.srt.distributed.parallel_state import GroupCoordinator
from sglang.srt.layers.dcp import comm
from sglang.srt.plugins import load_plugins

from attention.engines.sglang.dcp_hooks import HOOKS
from tests.attention.engines.partials import assert_merged, formula, partials

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
NONE = ("pynccl", "mscclpp", "custom_allreduce", "torch_symm_mem_all_reduce", "hpu_communicator", "xpu_communicator")
group = GroupCoordinator([list(range(size))], rank, "gloo", **{f"use_{name}": False for name in NONE}, group_name="dcp")
made = partials(size, (5, 3 * size, 16), torch.float32)
made = [(out.nan_to_num(0.0), lse.nan_to_num(-torch.inf, posinf=-torch.inf).contiguous()) for out, lse in made]


def gathered(part):
    """The parts of all ranks along the heads."""
    parts = [None] * size
    dist.all_gather_object(parts, part.contiguous())
    return torch.cat(parts, 1)


def merge():
    """out and lse of all heads, by SGLang's name for it."""
    out, lse = (x.clone() for x in made[rank])
    return [gathered(part) for part in comm.cp_lse_ag_out_rs_mha(out, lse, group, return_lse=True)]


def check():
    assert_merged(*merge(), formula(made, "e"), torch.float32)


own = [comm.cp_lse_ag_out_rs_mha]  # SGLang replaces what names refer to in all modules, in this one too
check()
load_plugins()
assert comm.cp_lse_ag_out_rs_mha.__wrapped__ is own[0]
own[0].__code__ = (lambda *args, **kwargs: 1 / 0).__code__  # what calls it fails
check()
hooked = [name for name in HOOKS if getattr(comm, name).__wrapped__.__name__ == name]
sys.stdout.write(f"[{rank}] {hooked}\n")
dist.destroy_process_group()
