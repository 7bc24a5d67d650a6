"""Run by test_on_gloo.py: merges by heads over a gloo group, against the formula in float64; `few` checks few."""

import functools
import sys

import torch
import torch.distributed as dist

from attention.engines import substitution
from attention.engines.combine import combine_heads
from attention.engines.sglang.dcp_hooks import HOOKS
from attention.engines.vllm.dcp_combine import in_place_of
from tests.attention.engines.partials import EMPTY, assert_merged, formula, partials

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


class Coordinator:
    """What engines give as the group; theirs have a group for devices too."""

    def __init__(self):
        self.cpu_group, self.device_group = dist.new_group(backend="gloo"), dist.group.WORLD
        self.world_size, self.rank_in_group = size, rank


def cp_lse_ag_out_rs(cp_attn_out, cp_attn_lse, cp_group, ctx, return_lse, is_lse_base_on_e, seq_lens, query_start_loc):
    raise AssertionError("the engine's own function was called")


def gathered(part):
    """The parts of all ranks along the heads."""
    parts = [None] * size
    dist.all_gather_object(parts, part.contiguous())
    return torch.cat(parts, 1)


group = Coordinator()
vllm = in_place_of(functools.partial(cp_lse_ag_out_rs, is_lse_base_on_e=False))
checked = 0
shapes, kinds = ((1, 2 * size, 16), (5, 3 * size, 8), (7, size, 40)), EMPTY
if "few" in sys.argv:
    shapes, kinds = shapes[1:2], EMPTY[1:2]
for shape in shapes:
    for number, empty in enumerate(kinds):
        for dtype in (torch.float32, torch.bfloat16):
            made = partials(size, shape, dtype, empty=empty, seed=number)
            own = made[rank]
            natural, binary = formula(made, "e"), formula(made, 2)
            merged = combine_heads(*own, dist.group.WORLD, return_lse=True)
            assert_merged(gathered(merged.out), gathered(merged.lse), natural, dtype)
            out, lse = vllm(*own, group, return_lse=True)
            assert_merged(gathered(out), gathered(lse), binary, dtype)
            out, lse = HOOKS["cp_lse_ag_out_rs_mha"](cp_lse_ag_out_rs, *own, group, return_lse=True)
            assert_merged(gathered(out), gathered(lse), natural, dtype)
            out = HOOKS["cp_lse_ag_out_rs_mla"](cp_lse_ag_out_rs, *own, group).transpose(0, 1)
            assert_merged(gathered(out), None, binary, dtype)
            assert_merged(gathered(HOOKS["dcp_a2a_lse_reduce"](cp_lse_ag_out_rs, *own, group)), None, natural, dtype)
            checked += 5
assert not substitution._said
dist.destroy_process_group()
sys.stdout.write(f"[{rank}] {checked} merges\n")
