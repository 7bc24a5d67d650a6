"""A model's prompt and tokens: by plain transformers in one process, and over ranks with weights whole and sharded.

mpirun -n 2 python tools/bench/model.py [--model smollm2] [--tokens 1024] [--new 32] [--repeats 3] [--only WAY]

One thread a rank; plain transformers on one thread, and on as many as there are ranks. Every method generates the same
tokens, in turns: seconds to the first token, milliseconds for each after it, medians with quartiles, and how many times
faster than plain transformers on one thread, beside which the other ranks sleep.
--only plain, threads, whole or sharded runs one of them, once, and prints the memory it takes on each rank as well.

`--random DIR` makes a model of the Llama kind with 1.1 B random weights there, which --model takes.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI

from attention.huggingface import enable, load_sharded
from attention.jobs.models import find_model, load, load_model
from topocomm import Communicator

PLAIN = "plain transformers"
THREADS = "plain, P threads"
WAYS = {"plain": PLAIN, "threads": THREADS, "whole": "whole weights", "sharded": "sharded weights"}
SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}
"""As TinyLlama has them (Zhang et al., arXiv:2401.02385, table 2), with more positions."""


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
    if options.random:
        make_random(options.random)
        return
    torch.set_num_threads(1)
    comm, path = Communicator.from_mpi(MPI.COMM_WORLD), find_model(options.model)
    only = WAYS.get(options.only)
    whole = load_model(path) if only != WAYS["sharded"] and (comm.rank == 0 or only not in (PLAIN, THREADS)) else None
    sliced = load_sharded(path, comm) if only in (None, WAYS["sharded"]) else None
    size = load("configuration", path).vocab_size
    ids = torch.randint(5, size, (1, options.tokens), generator=torch.Generator().manual_seed(11))

    def sharded(model: Any) -> Run:
        with enable(model, comm) as sharding:
            return timed(model, ids, options.new, lambda: sharding.cache.used_bytes)

    def plain(threads: int) -> Run | None:
        run = None
        if comm.rank == 0:
            torch.set_num_threads(threads)
            run = timed(whole, ids, options.new)
            torch.set_num_threads(1)
        _sleep_until_all_come()
        return run

    ways: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: plain(1),
        THREADS: lambda: plain(comm.size),
        WAYS["whole"]: lambda: sharded(whole),
        WAYS["sharded"]: lambda: sharded(sliced),
    }
    title = f"{options.model}, {options.tokens} tokens, {options.new} new, {comm.size} ranks"
    if only is None:
        _in_turns(comm, ways, options.repeats, title)
    else:
        _only(comm, only, ways[only](), sliced if whole is None else whole, title)
    comm.close()


def _sleep_until_all_come() -> None:
    """Wait for the other ranks without taking a core from the threads of one that computes."""
    arrived = MPI.COMM_WORLD.Ibarrier()
    while not arrived.Test():
        time.sleep(0.005)


class Run(NamedTuple):
    """One generation: seconds to the first token, milliseconds for each other, the tokens, bytes of the cache."""

    first_s: float
    each_ms: float
    tokens: list[int]
    cache_bytes: int


def timed(model: Any, ids: torch.Tensor, new: int, cache_bytes: Callable[[], int] = lambda: 0) -> Run:
    """Generate `new` tokens after a prompt [1, tokens]."""
    clock, began_s = Clock(), time.perf_counter()
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        min_new_tokens=new,
        max_new_tokens=new,
        streamer=clock,
    )
    each_s = (clock.at_s[-1] - clock.at_s[1]) / (new - 1)
    return Run(clock.at_s[1] - began_s, each_s * 1e3, made[0, ids.shape[1] :].tolist(), cache_bytes())


def make_random(path: Path) -> None:
    """Write a model of `SIZES` with random weights."""
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM
    from transformers.models.llama import LlamaConfig

    torch.manual_seed(11)
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, eos_token_id=None))
    model.save_pretrained(path, max_shard_size="1GB")


def _in_turns(comm: Communicator, ways: dict[str, Callable[[], Any]], repeats: int, title: str) -> None:
    results: dict[str, list[Any]] = {name: [] for name in ways}
    for turn in range(repeats + 1):  # the first one warms up
        for name, way in ways.items():
            result = way()
            comm.barrier()
            if turn:
                results[name].append(result)
    if comm.rank == 0:
        _print(results, title)


def _only(comm: Communicator, name: str, run: Run | None, model: Any, title: str) -> None:
    """Print what one way took, and a row of memory for each rank that took part."""
    figures = np.zeros(3, np.int64)
    if run is not None:
        held = {x.data_ptr(): x.numel() * x.element_size() for x in model.parameters()}
        figures[:] = sum(held.values()), run.cache_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows = [np.asarray(row).view(np.int64) / 2**30 for row in comm.allgather_bytes(figures.view(np.uint8))]
    if comm.rank == 0 and run is not None:
        digest = sha256(str(run.tokens).encode()).hexdigest()[:12]
        print(f"{title}, {name}: prompt {run.first_s:.1f} s, token {run.each_ms:.1f} ms, tokens {digest}")
        for rank, (weights, cache, peak) in enumerate(rows):
            if peak:
                print(
                    f"  rank {rank}: weights {weights:.2f} GiB, cache {cache:.2f} GiB, at most {peak:.2f} GiB resident"
                )


def _print(results: dict[str, list[Run]], title: str) -> None:
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
    parser.add_argument("--only", choices=WAYS, help="one way alone, once, and the memory that it takes")
    parser.add_argument("--random", type=Path, metavar="DIR", help="make a model of random weights, and no more")
    return parser.parse_args()


if __name__ == "__main__":
    main()
