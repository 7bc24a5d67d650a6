"""Ways to share a long context over ranks, each as the attention of one layer: computing and collectives.

Every method starts with the queries of the new token where its projections leave them, and ends with the output where
its next projection wants it. `sharded`: whether all ranks share the weights (tensor parallelism); else each rank has
all of them, so that queries are everywhere and the output must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topocomm.planning.cost.simulated_work import Work
from topocomm.simulation.decode.layer_costs import LayerCosts
from topocomm.simulation.decode.rank_program import RankProgram

Collectives = Callable[[str, int, tuple[int, ...] | None], Work]
"""(collective, payload bytes, ranks or None for all) -> work."""


@dataclass(frozen=True)
class Layer:
    """One layer on all ranks.

    Attributes:
        ranks: How many share the context.
        sharded: Whether they share the weights too.
        start_us: What a message of the ring costs to start.
    """

    costs: LayerCosts
    program: RankProgram
    collectives: Collectives
    ranks: int
    sharded: bool
    start_us: float

    def collective(self, name: str, payload_bytes: int, label: str, ranks: tuple[int, ...] | None = None) -> None:
        """Let all ranks, or these, do a collective."""
        if (self.ranks if ranks is None else len(ranks)) > 1 and payload_bytes:
            self.program.collective(self.collectives(name, payload_bytes, ranks), label)

    @property
    def tokens(self) -> float:
        """Tokens of the context that a rank holds of each sequence."""
        return self.costs.context / self.ranks

    def gather_queries(self) -> None:
        """Bring the queries of all heads, and the new key and value, to every rank where weights are shared."""
        model = self.costs.model
        if self.sharded and model.hidden:
            numbers = (model.heads + 2 * model.kv_heads) * model.head_dim
            self.collective("allgather", self.costs.value_bytes(numbers), "queries")

    def attend(self, tokens: float, head_share: float = 1.0) -> None:
        """Compute attention over so many tokens of each sequence."""
        self.program.compute(self.costs.attention_us(tokens, head_share=head_share), "attention")


def _tree(layer: Layer) -> None:
    layer.gather_queries()
    layer.attend(layer.tokens)
    layer.collective("allreduce", layer.costs.partial_bytes(layer.costs.model.heads), "merge")


def _allgather(layer: Layer) -> None:
    heads = layer.costs.model.heads
    layer.gather_queries()
    layer.attend(layer.tokens)
    layer.collective("allgather", layer.ranks * layer.costs.partial_bytes(heads), "gather partials")
    layer.program.compute(layer.costs.merge_us(layer.ranks, heads), "merge")


def _max_sum(layer: Layer) -> None:
    heads = layer.costs.model.heads
    layer.gather_queries()
    layer.attend(layer.tokens)
    layer.collective("allreduce", layer.costs.lse_bytes(heads), "maximum")
    layer.collective("allreduce", layer.costs.partial_bytes(heads), "sum")


def _three_allreduce(layer: Layer) -> None:
    costs, model = layer.costs, layer.costs.model
    layer.gather_queries()
    layer.attend(layer.tokens)
    layer.collective("allreduce", costs.lse_bytes(model.heads), "maximum")
    layer.collective("allreduce", costs.lse_bytes(model.heads * model.head_dim), "numerator")
    layer.collective("allreduce", costs.lse_bytes(model.heads), "denominator")


def _ring(layer: Layer) -> None:
    """Keys and values go around; a rank attends to one part while it sends it on and receives the next."""
    costs, program, ranks = layer.costs, layer.program, layer.ranks
    layer.gather_queries()
    rank = np.arange(ranks)
    part_bytes = round(costs.batch * layer.tokens * costs.model.kv_token_bytes)
    part_us = costs.attention_us(layer.tokens)
    label = "keys and values"
    arrived, computed = program.last, program.last
    for step in range(ranks):
        sent = None
        if step + 1 < ranks:
            sent = program.builder.send(
                rank, (rank + 1) % ranks, part_bytes, after=arrived, before_us=layer.start_us, round_=step, label=label
            )
        waits = np.stack([arrived, computed], axis=1) if step else arrived[:, None]
        computed = program.builder.compute(rank, part_us, after=waits, round_=step, label="attention")
        if sent is not None:
            arrived = np.roll(sent, 1)
    if ranks > 1:
        program.follow(np.concatenate([rank, rank]), np.concatenate([computed, arrived]), label)
    else:
        program.last = computed


def _ring_partials(layer: Layer) -> None:
    """Partials go around: each rank sends on what comes, and merges it."""
    costs, program, ranks = layer.costs, layer.program, layer.ranks
    layer.gather_queries()
    layer.attend(layer.tokens)
    rank, heads, label = np.arange(ranks), costs.model.heads, "partials"
    merged = arrived = program.last
    for step in range(ranks - 1):
        sent = program.builder.send(
            rank,
            (rank + 1) % ranks,
            costs.partial_bytes(heads),
            after=arrived,
            before_us=layer.start_us,
            round_=step,
            label=label,
        )
        arrived = np.roll(sent, 1)
        waits = np.stack([arrived, merged], axis=1)
        merged = program.builder.compute(rank, costs.merge_us(2, heads), after=waits, round_=step, label="merge")
    program.last = merged


def _dcp(layer: Layer, by_alltoall: bool) -> None:
    """Heads are shared before and after: all queries to all ranks, the output of a rank's heads back to it."""
    costs, model = layer.costs, layer.costs.model
    if model.hidden:
        layer.collective("allgather", costs.value_bytes((model.heads + 2 * model.kv_heads) * model.head_dim), "queries")
    layer.attend(layer.tokens)
    if by_alltoall:
        layer.collective("alltoall", costs.partial_bytes(model.heads), "partials by heads")
        layer.program.compute(costs.merge_us(layer.ranks, model.heads / layer.ranks), "merge")
    else:
        layer.collective("allgather", layer.ranks * costs.lse_bytes(model.heads), "weights")
        layer.collective("reduce_scatter", costs.value_bytes(model.heads * model.head_dim), "sum")


def _helix(layer: Layer) -> None:
    """Key heads over up to `kv_heads` groups, the context over the ranks of each; one all-to-all of heads after it."""
    costs, model = layer.costs, layer.costs.model
    groups = helix_groups(model.kv_heads, layer.ranks)
    members = layer.ranks // groups
    layer.attend(costs.context / members, head_share=1 / groups)
    for group in range(groups):
        own = tuple(range(group * members, (group + 1) * members))
        layer.collective("alltoall", costs.partial_bytes(model.heads / groups), "partials by heads", own)
    if members > 1:
        layer.program.compute(costs.merge_us(members, model.heads / layer.ranks), "merge")


def helix_groups(kv_heads: int, ranks: int) -> int:
    """Return Helix's tensor parallelism of attention: the most groups, at most one for each key head."""
    fitting = (groups for groups in range(1, min(kv_heads, ranks) + 1) if ranks % groups == kv_heads % groups == 0)
    return max(fitting)


class Method(NamedTuple):
    """A way to share the context.

    Attributes:
        by_heads: Whether the output is shared by heads: weights are then shared, and the groups of ranks that project
            queries are `groups(kv_heads, ranks)`.
    """

    summary: str
    source: str
    attention: Callable[[Layer], None]
    by_heads: bool = False


METHODS = {
    "tree": Method("partials merged on the planned schedule", "arXiv 2408.04093, merged in one reduction", _tree),
    "allgather": Method("all partials to all ranks, each merges them", "flash decoding over ranks", _allgather),
    "max-sum": Method("an allreduce of maxima, one of packed sums", "docs/concepts/sums.md", _max_sum),
    "three-allreduce": Method("maxima, numerators, denominators", "arXiv 2408.04093, algorithm 3", _three_allreduce),
    "ring": Method("keys and values around a ring", "arXiv 2310.01889, as arXiv 2408.04093 compares it", _ring),
    "ring-partials": Method("partials around a ring", "the ring with what the tree sends", _ring_partials),
    "dcp": Method(
        "queries to all, weights to all, outputs scattered", "vLLM decode context parallelism, ag_rs",
        lambda layer: _dcp(layer, by_alltoall=False), by_heads=True,
    ),
    "dcp-a2a": Method(
        "queries to all, partials by heads", "vLLM decode context parallelism, a2a",
        lambda layer: _dcp(layer, by_alltoall=True), by_heads=True,
    ),
    "helix": Method("key heads over groups, partials by heads inside them", "arXiv 2507.07120", _helix, by_heads=True),
}  # fmt: skip
"""Methods by name."""
