"""What all layers of one step of vLLM share: which requests are decoded, which are prompts, and what lies where."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch

from attention.engines.vllm.cpu_slots import Share
from attention.spec import PLAIN, Spec
from attention.visibility import Masking, Visibility, visibility_of

CAUSAL = Spec(causal=True)


class Group(NamedTuple):
    """Queries over the paged keys of this rank that come before them.

    Attributes:
        rows: Which of the step's shared tokens they are.
        batch, q_len: rows.stop - rows.start = batch * q_len of them.
        visibility: Which of the keys in the pages exist; None: all.
        pages: int64 [batch, pages of a request].
    """

    rows: slice
    batch: int
    q_len: int
    visibility: Visibility | None
    pages: torch.Tensor


class Prompt(NamedTuple):
    """Several new tokens of one request, which attend each other causally on every rank.

    Attributes:
        tokens: Which of the step's tokens they are.
        visibility: The causal mask.
        context: Which of the shared tokens they are; None: nothing comes before them.
    """

    tokens: slice
    visibility: Visibility | None
    context: slice | None


class Batch(NamedTuple):
    """One step.

    A request with one new token attends all its keys in the ranks' caches, the new one among them. One with more
    attends its new tokens where they are, and only what comes before them in the caches.

    Attributes:
        tokens: How many there are; what comes behind them in arrays is padding.
        shared: int64: the tokens whose queries all ranks attend; None: all of the step's, in order.
        n_shared: How many these are.
        decodes: int64: the shared tokens whose partials are already the result, numbered among the shared ones (they
            come first), as tokens of the step; None: all of the step's, in order.
        n_decodes: How many these are.
        groups: Of the shared tokens.
        prompts: Of the others, and of shared ones with context.
        own: int64: new tokens that this rank keeps.
        blocks, offsets: int64: where it keeps them.
    """

    tokens: int
    shared: torch.Tensor | None
    n_shared: int
    decodes: torch.Tensor | None
    n_decodes: int
    groups: tuple[Group, ...]
    prompts: tuple[Prompt, ...]
    own: torch.Tensor
    blocks: torch.Tensor
    offsets: torch.Tensor


def batch_of(
    starts: torch.Tensor,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    slots: torch.Tensor,
    share: Share,
    block_size: int,
) -> Batch:
    """Return the batch of one step, alike on all ranks but for what each keeps.

    Args:
        starts: Integers [requests + 1]: the first token of each request, and the number of all.
        lengths: Integers [requests]: tokens of each request, the new ones among them.
        tables: Integers [requests, blocks]: the numbers of its blocks.
        slots: int64 [tokens or more]: where this rank keeps each new token, -1 where it does not.
        share: Which tokens are this rank's.
        block_size: Tokens of a block on one rank.
    """
    first = starts.tolist()
    counts = [stop - start for start, stop in pairwise(first)]
    total, tokens = lengths.tolist(), first[-1]
    ones = [i for i, count in enumerate(counts) if count == 1]
    shared = [first[i] for i in ones]
    groups, prompts = [], []
    if ones:
        at = torch.tensor(ones)
        groups.append(_group(0, len(ones), 1, share.kept(lengths[at]), tables[at], block_size))
    for i, count in enumerate(counts):
        if count < 2:
            continue
        here, context = slice(first[i], first[i] + count), None
        if total[i] > count:  # the same on all ranks, since what follows is collective
            context = slice(len(shared), len(shared) + count)
            groups.append(
                _group(context.start, 1, count, share.kept(lengths[i : i + 1] - count), tables[i : i + 1], block_size)
            )
            shared += range(here.start, here.stop)
        causal = visibility_of("vLLM", (1, 1, count, 1), count, CAUSAL, Masking())
        prompts.append(Prompt(here, causal, context))
    own = torch.nonzero(slots[:tokens] >= 0)[:, 0]
    kept = slots[own]
    return Batch(
        tokens=tokens,
        shared=_unless_all(shared, tokens),
        n_shared=len(shared),
        decodes=_unless_all(shared[: len(ones)], tokens),
        n_decodes=len(ones),
        groups=tuple(groups),
        prompts=tuple(prompts),
        own=own,
        blocks=kept // block_size,
        offsets=kept % block_size,
    )


def _group(start: int, batch: int, q_len: int, lengths: torch.Tensor, tables: torch.Tensor, block_size: int) -> Group:
    """The group of requests of which this rank keeps `lengths` tokens [batch]."""
    columns = max(1, -(-int(lengths.max()) // block_size))  # pages that no request of the group has are left out
    n = columns * block_size
    seen = visibility_of("vLLM", (batch, 1, q_len, 1), n, PLAIN, Masking(kv_lengths=lengths))
    pages = tables[:, :columns].to(torch.int64).contiguous()
    return Group(slice(start, start + batch * q_len), batch, q_len, seen, pages)


def _unless_all(tokens: list[int], count: int) -> torch.Tensor | None:
    """The numbers as a tensor; None where they are all numbers below `count`, in order."""
    return None if tokens == list(range(count)) else torch.tensor(tokens, dtype=torch.int64)
