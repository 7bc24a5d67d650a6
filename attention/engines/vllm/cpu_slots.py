"""Which rank of a decode-context-parallel group keeps a token, and where: vLLM's rule, on the CPU.

Tokens go to the ranks in turns of `interleave` tokens. A block of vLLM's block table stands for `block_size` tokens on
every rank, ranks * block_size in all; a rank's tokens lie in its blocks one after the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

KERNEL = "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"
"""Name under which vLLM's dispatcher of kernels knows the one that `compute_slots` stands in for."""


class Share(NamedTuple):
    """The part of every sequence that one rank keeps.

    Attributes:
        ranks: Size of the group, vLLM's decode_context_parallel_size.
        rank: This rank's number in it.
        interleave: Consecutive tokens that one rank keeps, vLLM's cp_kv_cache_interleave_size; divides the block size.
    """

    ranks: int
    rank: int
    interleave: int

    def kept(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return how many of the first `lengths` tokens of sequences this rank keeps; integers of the same shape."""
        turn = self.ranks * self.interleave
        rest = lengths % turn - self.rank * self.interleave
        return lengths // turn * self.interleave + rest.clamp(0, self.interleave)

    def slots(self, positions: torch.Tensor, rows: torch.Tensor, tables: torch.Tensor, block_size: int) -> torch.Tensor:
        """Return the slot of each token in this rank's cache, block * block_size + offset; -1 where it has none.

        Args:
            positions: int64 [tokens], each token's place in its sequence.
            rows: int64 [tokens], each token's row of `tables`.
            tables: Integers [sequences, blocks]: the numbers of a sequence's blocks.
            block_size: Tokens of a block on one rank.
        """
        turns, offsets = positions // self.interleave, positions % self.interleave
        own = turns // self.ranks * self.interleave + offsets  # number among the rank's own tokens
        blocks = tables[rows, own // block_size].to(torch.int64)
        return torch.where(turns % self.ranks == self.rank, blocks * block_size + own % block_size, -1)


# The arguments are those of vLLM's kernel, in its order.
def compute_slots(  # noqa: PLR0913
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    slot_mapping: torch.Tensor,
    kv_cache_block_size: int,
    total_cp_world_size: int,
    total_cp_rank: int,
    cp_kv_cache_interleave_size: int,
    pad_id: int,
    triton_block_size: int,
) -> None:
    """Write the slot of each token of a step to `slot_mapping` [max_num_tokens], `pad_id` where it has none.

    Args:
        num_tokens: Tokens of the step; beyond them everything is padding.
        max_num_tokens: Length of `slot_mapping`.
        query_start_loc: Integers [requests + 1]: the first token of each request, and the number of all.
        positions: int64 [num_tokens].
        block_table: int32 [most requests, most blocks].
        block_table_stride: Not needed: the table is a tensor of two axes.
        slot_mapping: int64, written.
        kv_cache_block_size: Tokens of a block on one rank.
        total_cp_world_size: As `Share.ranks`.
        total_cp_rank: As `Share.rank`.
        cp_kv_cache_interleave_size: As `Share.interleave`.
        pad_id: -1 in vLLM.
        triton_block_size: Not needed.
    """
    share = Share(total_cp_world_size, total_cp_rank, cp_kv_cache_interleave_size)
    starts = query_start_loc.to(torch.int64)
    rows = torch.repeat_interleave(torch.arange(len(starts) - 1), starts[1:] - starts[:-1])
    tokens = len(rows)
    slots = share.slots(positions[:tokens], rows, block_table, kv_cache_block_size)
    slot_mapping[:tokens] = slots if pad_id == -1 else torch.where(slots < 0, pad_id, slots)
    slot_mapping[tokens:max_num_tokens] = pad_id


def register_slots(dispatcher: Any) -> None:
    """Have vLLM compute slots by `compute_slots`; `dispatcher` is its module `vllm.triton_utils.dispatcher`.

    To be called in a worker after the platform registered its own replacement, which knows a single rank only.
    """
    dispatcher.register_kernels({KERNEL: compute_slots})
