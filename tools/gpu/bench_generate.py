"""Generation by a model of SmolLM2-135M's shape with random weights: our attention beside torch's, eager and in graphs.

python tools/gpu/bench_generate.py [OUT] [--seconds S]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from card import Card, the_card
from harness.targets import UNMEASURED, Goal
from harness.turns import FEWEST_ROUNDS, Limit, Way, in_turns
from problems.small_model import BETWEEN, DIM, HEADS, HIDDEN, KV_HEADS, Model, by_ours, by_sdpa
from results import Results, program

Generate = Callable[[], torch.Tensor]
THEIRS = "torch SDPA"
BUILDING_S = 12.0
"""Seconds that a model of transformers and its first texts take."""
RUNS = 1 + FEWEST_ROUNDS
"""Least number of timed generations of each method."""


def work(results: Results, limit: Limit, args: argparse.Namespace) -> None:
    """Equal tokens first, in float32, where no rounding to 16 bits decides between two; then times in bfloat16."""
    del args
    card = the_card()
    with results.guarded("greedy tokens in float32"), torch.no_grad():
        made = {name: run() for name, run in _ways(card, torch.float32, card.sizes.batches[0]).items()}
        unequal = _unequal(made)
        results.check("greedy tokens in float32", unequal)
        met = UNMEASURED if card.interpreted else "no" if unequal else "yes"
        results.goals([Goal("greedy tokens in float32", "equal", unequal or "equal", met, "tokens")])
    for place, batch in enumerate(card.sizes.batches):
        with results.guarded(f"batch {batch}"), torch.no_grad():
            share = Limit(limit.left_s / (len(card.sizes.batches) + 1 - place))
            _timed(results, card, f"Plain torch model, bf16, batch {batch}", _ways(card, torch.bfloat16, batch), share)
    with results.guarded("transformers"), torch.no_grad():
        _by_transformers(results, card, limit)


def _ways(card: Card, dtype: torch.dtype, batch: int) -> dict[str, Generate]:
    sizes = card.sizes
    prompt = _prompt(card, batch)
    model = Model(card, dtype, batch, sizes.prompt + sizes.new_tokens)
    ways: dict[str, Generate] = {}
    for name, attend in ((THEIRS, by_sdpa), ("ours", by_ours)):
        ways[name] = lambda attend=attend: model.generate(prompt, sizes.new_tokens, attend)  # type: ignore[misc]
        ways[f"{name}, graph"] = model.in_graph(prompt, sizes.new_tokens, attend)
    return ways


def _prompt(card: Card, batch: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(card.sizes.vocabulary, (batch, card.sizes.prompt), generator=random).to(card.place)


def _unequal(made: dict[str, torch.Tensor]) -> str | None:
    """Find methods whose tokens differ from torch's."""
    wanted = made[THEIRS]
    wrong = []
    for name, tokens in made.items():
        differ = (tokens != wanted).any(0).nonzero()
        if len(differ):
            wrong.append(f"{name} differs from token {int(differ[0, 0])} on")
    return "; ".join(wrong) or None


def _timed(results: Results, card: Card, title: str, ways: dict[str, Generate], limit: Limit) -> None:
    """Return tokens per second, prompt included."""
    sizes = card.sizes
    made: dict[str, torch.Tensor] = {}

    def kept(name: str) -> Way:
        return Way(lambda: made.update({name: ways[name]()}))

    times = in_turns(card, {name: kept(name) for name in ways}, limit)
    rows = []
    for name, one in times.items():
        per_s = made[name].numel() / one.median_us * 1e6
        equal = (made[name] == made[THEIRS]).float().mean().item()
        ratio = times[THEIRS].median_us / one.median_us
        rows.append((name, str(one), f"{per_s:,.1f}", f"{ratio:.2f}", f"{equal:.0%}"))
    note = (
        f"{sizes.prompt} tokens of prompt, {made[THEIRS].shape[1]} new ones, {sizes.layers} layers. With random "
        "weights tokens in bf16 depend on its rounding; those in float32 are checked."
    )
    head = ["way", "us a text: median (quartiles)", "new tokens/s", f"x {THEIRS}", f"tokens as {THEIRS}"]
    results.table(title, head, rows, note)
    results.data(title, {name: one.us for name, one in times.items()})


def _by_transformers(results: Results, card: Card, limit: Limit) -> None:
    """`attention.huggingface.enable` on one rank beside transformers' own SDPA, where there is time for it."""
    if limit.left_s < BUILDING_S:
        results.note(f"transformers was not measured: {limit.left_s:.0f} s were left, {BUILDING_S:.0f} are needed.")
        return
    try:
        from transformers.models.llama import LlamaConfig, LlamaForCausalLM

        from attention.huggingface.generation import enable
    except ImportError as error:
        results.note(f"transformers was not measured: {error}.")
        return
    from topocomm import run_local

    sizes = card.sizes
    config: Any = LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=HIDDEN, intermediate_size=BETWEEN, num_hidden_layers=sizes.layers,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM, tie_word_embeddings=True,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(card.place).eval()
    prompt = _prompt(card, 1)

    def plain() -> torch.Tensor:
        made: torch.Tensor = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=sizes.new_of_transformers, do_sample=False
        )
        return made[:, prompt.shape[1] :]

    def measure(comm: Any) -> None:
        def sharded() -> torch.Tensor:
            with enable(model, comm):
                return plain()

        ways: dict[str, Generate] = {THEIRS: plain, "attention.huggingface.generation": sharded}
        before_s = limit.left_s
        results.check("greedy tokens of transformers in float32", _unequal({name: run() for name, run in ways.items()}))
        needed_s = (before_s - limit.left_s) * RUNS
        if limit.left_s < needed_s:
            words = f"{limit.left_s:.0f} s were left, {needed_s:.0f} are needed"
            results.note(f"transformers was not timed: {words}.")
            return
        model.to(torch.bfloat16)
        _timed(results, card, "transformers, LlamaForCausalLM, bf16, batch 1, one rank", ways, limit)

    run_local(measure, ranks=1)


if __name__ == "__main__":
    sys.exit(program("bench_generate", "Generation", work))
