"""vLLM's interfaces for decode context parallelism on the CPU: a backend, its layers, and what is built once a step.

With one rank of context everything is vLLM's own CPU backend, from which this one is derived.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from vllm.distributed.parallel_state import get_dcp_group, get_dcp_world_size_and_rank
from vllm.triton_utils import HAS_TRITON, dispatcher
from vllm.v1.attention.backend import AttentionImpl, AttentionMetadataBuilder, AttentionType
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from attention.decode.communicators import as_communicator
from attention.engines.vllm.cpu_attention import attend_step, keep, split_cache
from attention.engines.vllm.cpu_batch import Batch, batch_of
from attention.engines.vllm.cpu_cores import WorkerCores
from attention.engines.vllm.cpu_exchange import HeadExchange
from attention.engines.vllm.cpu_slots import Share, register_slots
from attention.spec import Spec
from topocomm import OperatorError


class ContextParallelCPUBackend(CPUAttentionBackend):  # type: ignore[misc]  # vLLM is not there when types are checked
    """vLLM's CPU backend, and attention over a cache that is spread over ranks where there are several."""

    @staticmethod
    def get_impl_cls() -> Any:
        """Return the class of layers."""
        return ContextParallelLayer if _ranks() > 1 else CPUAttentionBackend.get_impl_cls()

    @staticmethod
    def get_builder_cls() -> Any:
        """Return the class of builders."""
        return StepBuilder if _ranks() > 1 else CPUAttentionBackend.get_builder_cls()


def _ranks() -> int:
    """Ranks over which this process's context is spread; 1 before vLLM made its groups."""
    size: int = get_dcp_world_size_and_rank()[0]
    return size


@dataclass(frozen=True)
class Step:
    """What the layers of one step are given."""

    batch: Batch
    exchange: HeadExchange
    cores: WorkerCores


class StepBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Makes the `Step` of each of the model's steps."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        """Wrap the group's communicator; collective over the ranks of the context.

        Raises:
            OperatorError: Something in the configuration is not covered.
        """
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        for kind, config in (
            ("speculative decoding", vllm_config.speculative_config),
            ("a cache that is sent to other engines", vllm_config.kv_transfer_config),
        ):
            if config is not None:
                raise OperatorError(_not_covered(kind))
        _register_slots_once()
        group = get_dcp_group()
        interleave = vllm_config.parallel_config.cp_kv_cache_interleave_size
        self._share = Share(group.world_size, group.rank_in_group, interleave)
        self._exchange = HeadExchange(as_communicator("vLLM", group.cpu_group))
        self._cores = WorkerCores(os.environ)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Step:
        """Return the step that vLLM describes; the arguments are vLLM's."""
        common = common_attn_metadata
        batch = batch_of(
            common.query_start_loc_cpu,
            common.seq_lens,
            common.block_table_tensor,
            common.slot_mapping,
            self._share,
            self.kv_cache_spec.block_size,
        )
        return Step(batch, self._exchange, self._cores)


@cache
def _register_slots_once() -> None:
    if not HAS_TRITON:  # Triton's own kernel knows of ranks
        register_slots(dispatcher)


class ContextParallelLayer(AttentionImpl):  # type: ignore[misc]
    """Attention of one layer whose keys and values are spread over ranks by tokens."""

    can_return_lse_for_decode = True
    supports_dcp = True

    # The arguments are vLLM's.
    def __init__(  # noqa: PLR0913
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Take what vLLM says of the layer.

        Raises:
            OperatorError: It is of a kind that is not covered.
        """
        kinds = {
            f"{num_kv_heads} key heads on a rank": num_kv_heads > 1,  # vLLM itself wants more ranks than key heads
            "ALiBi": alibi_slopes is not None,
            "a sliding window": sliding_window is not None,
            f"a cache in {kv_cache_dtype}": kv_cache_dtype != "auto",
            f"attention of type {attn_type}": attn_type != AttentionType.DECODER,
            "layers that share another layer's cache": kv_sharing_target_layer_name is not None,
            "attention sinks": sinks is not None,
        }
        for kind, there in kinds.items():
            if there:
                raise OperatorError(_not_covered(kind))
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.kv_cache_dtype = float(scale), kv_cache_dtype
        self.spec = Spec(scale=self.scale, softcap=logits_soft_cap or None)

    def do_kv_cache_update(self, *arguments: Any) -> None:
        """Do nothing: `forward` writes to the cache, since the step knows there which tokens are this rank's."""

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Step | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write a step's attention to `output` and return it; collective over the ranks of the context.

        Args:
            layer: Not needed.
            query: [tokens, heads, d], perhaps with padding behind.
            key: [tokens, kv_heads, d].
            value: [tokens, kv_heads, d].
            kv_cache: [blocks, kv_heads, block size, 2 d], written.
            attn_metadata: The step; None: vLLM warms up, and nothing is done.
            output: [tokens, heads, d] or [tokens, heads * d].
            output_scale: None.
            output_block_scale: None.

        Raises:
            OperatorError: The output is to be quantised.
        """
        if output_scale is not None or output_block_scale is not None:
            raise OperatorError(_not_covered("quantised outputs of attention"))
        if attn_metadata is None:
            return output
        batch, own_cache = attn_metadata.batch, split_cache(kv_cache)
        new = key[: batch.tokens], value[: batch.tokens]
        keep(own_cache, new, batch)
        rows = output.view(-1, self.num_heads, self.head_size)
        with attn_metadata.cores:
            attend_step(query, new, own_cache, batch, attn_metadata.exchange, self.spec, rows)
        return output


def _not_covered(kind: str) -> str:
    return (
        f"vLLM: {kind}: decode context parallelism on the CPU does not cover it; set decode_context_parallel_size to 1"
    )
