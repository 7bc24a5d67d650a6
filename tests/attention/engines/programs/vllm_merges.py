"""Run by test_installed_vllm.py: vLLM's merges replaced by ours, on vLLM's own coordinator, against the formula."""

import functools
import sys

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.v1.attention.ops import dcp

from attention.engines.vllm.dcp_combine import dcp_combine, in_place_of
from tests.attention.engines.partials import assert_merged, formula, partials

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
group = GroupCoordinator([list(range(size))], rank, "gloo", use_device_communicator=False, group_name="dcp")
made = partials(size, (5, 3 * size, 16), torch.bfloat16)
own = slice(3 * rank, 3 * rank + 3)
for function in (dcp.cp_lse_ag_out_rs, dcp.dcp_a2a_lse_reduce):
    for natural in (True, False):
        ours = in_place_of(functools.partial(function, cp_group=group, is_lse_base_on_e=natural))
        assert ours.func is dcp_combine
        wanted = [part[:, own] for part in formula(made, "e" if natural else 2)]
        assert_merged(*ours(*made[rank], return_lse=True), wanted, torch.bfloat16)
sys.stdout.write(f"[{rank}] ok\n")
dist.destroy_process_group()
