"""A model's prompt and tokens: by plain transformers in one process, and over ranks with weights whole and sharded.

mpirun -n 2 python tools/bench/model.py [--model smollm2] [--tokens 1024] [--new 32] [--repeats 3]

One thread a rank. Every method generates the same tokens, in turns: seconds to the first token, milliseconds for each
after it, medians with quartiles, and how many times faster than plain transformers, beside which the others wait.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from attention.huggingface import enable, load_sharded
from attention.jobs.models import find_model, load_model
from topocomm import Communicator

PLAIN = "plain transformers"


class Clock:
    """A streamer that notes when tokens come: first the prompt, then each new one."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        """Note a token."""
        self.at_s.append(time.perf_counter())

    def end(self) -> None:
        """As transformers wants it."""


def main() -> None:
    """Measure, and print on rank 0."""
    options = _options()
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    comm, path = Communicator.from_mpi(world), find_model(options.model)
    whole = load_model(path)
    ids = torch.randint(5, whole.config.vocab_size, (1, options.tokens), generator=torch.Generator().manual_seed(11))

    def timed(model: Any) -> tuple[float, float, list[int]]:
        clock, began_s = Clock(), time.perf_counter()
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=options.new,
            max_new_tokens=options.new,
            streamer=clock,
        )
        each_s = (clock.at_s[-1] - clock.at_s[1]) / (options.new - 1)
        return clock.at_s[1] - began_s, each_s * 1e3, made[0, options.tokens :].tolist()

    sliced = load_sharded(path, comm)

    def sharded(model: Any) -> tuple[float, float, list[int]]:
        with enable(model, comm):
            return timed(model)

    ways: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: timed(whole) if comm.rank == 0 else None,
        "whole weights": lambda: sharded(whole),
        "sharded weights": lambda: sharded(sliced),
    }
    results: dict[str, list[Any]] = {name: [] for name in ways}
    for turn in range(options.repeats + 1):  # the first one warms up
        for name, way in ways.items():
            result = way()
            comm.barrier()
            if turn:
                results[name].append(result)
    if comm.rank == 0:
        _print(results, f"{options.model}, {options.tokens} tokens, {options.new} new, {comm.size} ranks")
    comm.close()


def _print(results: dict[str, list[tuple[float, float, list[int]]]], title: str) -> None:
    print(title)
    plain = [np.median([run[place] for run in results[PLAIN]]) for place in (0, 1)]
    for name, runs in results.items():
        figures = []
        for place, unit in ((0, "s"), (1, "ms")):
            low, middle, high = np.percentile([run[place] for run in runs], (25, 50, 75))
            figures.append(f"{middle:.2f} {unit} ({low:.2f} to {high:.2f}), {plain[place] / middle:.2f}x")
        same = "equal" if all(run[2] == results[PLAIN][0][2] for run in runs) else "DIFFER"
        print(f"  {name:18}  prompt {figures[0]}  token {figures[1]}  tokens {same}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="as for python -m attention generate (default smollm2)")
    parser.add_argument("--tokens", type=int, default=1024, help="of the prompt (default 1024)")
    parser.add_argument("--new", type=int, default=32, help="tokens to generate, at least 2 (default 32)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default 3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
