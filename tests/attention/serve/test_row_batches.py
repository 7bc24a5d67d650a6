"""Rows that join a batch at any time, and leave it, have the logits of plain transformers."""

import numpy as np
import pytest
import torch

from attention.cache.shards import ShardMap
from attention.huggingface import enable
from attention.serve.row_batches import BLOCK_TOKENS, RowBatches
from tests.attention.huggingface.tiny_llama import build
from topocomm import run_local

LIMIT = 1e-3


def on_ranks(model, ranks, work):
    def run(comm):
        with enable(model, comm, shards=ShardMap(comm.size, block_size=BLOCK_TOKENS)) as sharding:
            return work(RowBatches(model, sharding.cache))

    return run_local(run, ranks=ranks)


def expected(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0, -1]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_that_come_and_go(ranks):
    """Of each row the text is kept beside; every step is compared with the pass of that text alone."""
    model, chance = build(), np.random.default_rng(3)
    texts: list[list[int]] = []
    plain: dict[tuple[int, ...], torch.Tensor] = {}

    def steps():
        """(what, arguments, expected logits by row), the same on all ranks."""
        for step in range(14):
            if step in (0, 2, 3, 9):
                prompt = chance.integers(3, 199, (40, 7, 61, 19)[(0, 2, 3, 9).index(step)]).tolist()
                copies = 2 if step == 3 else 1
                texts.extend([*prompt] for _ in range(copies))
                yield "prefill", (0, prompt, copies), [prompt]
            kept = [row for row in range(len(texts)) if (step, row) not in ((5, 0), (8, 1))]
            tokens = chance.integers(3, 199, len(kept)).tolist()
            texts[:] = [[*texts[row], token] for row, token in zip(kept, tokens, strict=True)]
            yield "step", (0, kept, tokens), [[*text] for text in texts]

    script = [*steps()]
    for _, _, rows in script:
        plain |= {tuple(row): expected(model, row) for row in rows}

    def work(batches):
        worst = 0.0
        for what, arguments, rows in script:
            logits = getattr(batches, what)(*arguments).reshape(len(rows), -1)
            for got, row in zip(logits, rows, strict=True):
                worst = max(worst, float((got - plain[tuple(row)]).abs().max()))
        batches.step(0, [], [])
        return worst, len(batches.batches)

    for worst, left in on_ranks(model, ranks, work):
        assert worst <= LIMIT
        assert left == 0


def test_windows_keep_to_themselves():
    model = build("Mistral", sliding_window=12)
    prompts = [[*range(3, 40)], [*range(50, 60)]]

    def work(batches):
        assert not batches.may_join
        firsts = [batches.prefill(place, prompt, 1) for place, prompt in enumerate(prompts)]
        return [*firsts, *(batches.step(place, [0], [7])[0] for place in (0, 1))]

    wanted = [expected(model, ids) for ids in (*prompts, [*prompts[0], 7], [*prompts[1], 7])]
    for got in on_ranks(model, 2, work):
        assert all((a - b).abs().max() <= LIMIT for a, b in zip(got, wanted, strict=True))
