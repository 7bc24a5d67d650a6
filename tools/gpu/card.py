"""The GPU that the programs of this folder run on: its memory, clocks, streams and graphs, and problems of its size.

The programs ask nothing of a device but through `the_card()`, so that tests run them whole on a CPU in its place.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from nccl_files.raw_nccl import RawNccl

if TYPE_CHECKING:
    from topocomm import Communicator

Run = Callable[[], object]


class Sizes(NamedTuple):
    """Sizes of problems that suit the card.

    Attributes:
        heads: (query heads, key heads, head dim) of most problems.
        even_heads: The same of decoding without groups.
        latent: The same of keys that hold the values too, and the head dim of values (MLA).
        tokens: Contexts of decoding, in order of worth; at the first figures are to be reached.
        batches: Batches of decoding.
        prompts: Queries and keys of prefill.
        cold_bytes: What is read before the same is read again, so that it comes from memory.
        block_us: What a timed block takes at least.
        rounds: How often each way is timed.
        merged: Partials merged at once.
        in_graph: Short calls in one graph, and of ranks in a timed block.
        candidates: Configurations of a problem that are tried, at most.
        ranks: How many share the card.
        payload_batches: Batches of the payloads that ranks reduce.
        layers, vocabulary: Of the model that generates.
        prompt, new_tokens: Of the text that it generates.
        new_of_transformers: New tokens where transformers generates, whose steps take the CPU long.
        most_keys: Keys of checks, at most.
        key_heads, groups: Key heads of checks, and query heads for each.
        fold_rows: Rows of folds that are checked.
    """

    heads: tuple[int, int, int] = (32, 8, 128)
    even_heads: tuple[int, int, int] = (32, 32, 128)
    latent: tuple[int, int, int, int] = (128, 1, 576, 512)
    tokens: tuple[int, ...] = (65_536, 8_192, 524_288, 131_072, 262_144)
    batches: tuple[int, ...] = (1, 8)
    prompts: tuple[int, ...] = (4096, 16_384)
    cold_bytes: int = 1 << 30
    block_us: float = 1000.0
    rounds: int = 15
    merged: int = 8
    in_graph: int = 20
    candidates: int = 32
    ranks: tuple[int, ...] = (2, 4, 8)
    payload_batches: tuple[int, ...] = (1, 8, 64)
    layers: int = 30
    vocabulary: int = 49_152
    prompt: int = 512
    new_tokens: int = 64
    new_of_transformers: int = 32
    most_keys: int = 6000
    key_heads: tuple[int, ...] = (1, 2, 3, 8)
    groups: tuple[int, ...] = (1, 2, 3, 4, 8)
    fold_rows: tuple[int, ...] = (1, 7, 129, 3001)


class Card:
    """The first GPU that torch sees.

    Attributes:
        place: What tensors are made on.
        interpreted: Whether kernels run in Triton's interpreter: then nothing timed means anything.
        sizes: Problems that suit it.
    """

    place = torch.device("cuda", 0)
    interpreted = False
    sizes = Sizes()

    @property
    def name(self) -> str:
        """Name of the card."""
        return str(torch.cuda.get_device_name(self.place))

    @property
    def cores(self) -> int:
        """Multiprocessors."""
        return int(torch.cuda.get_device_properties(self.place).multi_processor_count)

    def synchronize(self) -> None:
        """Wait until the card has finished all work; raise its earlier errors."""
        torch.cuda.synchronize(self.place)

    def answers(self) -> bool:
        """Whether it still works for this process: after an illegal access it does nothing more."""
        try:
            self.synchronize()
        except RuntimeError:
            return False
        return True

    def stopwatch(self) -> Stopwatch:
        """Return a clock on the current stream."""
        return Stopwatch()

    def stream(self) -> Any:
        """Return a new stream."""
        made: Any = torch.cuda
        return made.Stream(self.place)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one of this thread."""
        made: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return made

    def graph(self, run: Run, stream: Any = None) -> Run:
        """What replays a CUDA graph of a call.

        Without a stream it is recorded on one of its own, where the call is made once before: what it keeps for a
        stream is there then, and in no graph. On a stream that is given it has run. Of several threads let one at a
        time record, while no other waits for the card.
        """
        made = torch.cuda.CUDAGraph()
        own = self.stream() if stream is None else stream
        own.wait_stream(torch.cuda.current_stream(self.place))
        if stream is None:
            with self.on(own):
                run()
        with torch.cuda.graph(made, stream=own, capture_error_mode="thread_local"):
            run()

        def replay() -> None:
            made.replay()

        return replay

    def library(self, comm: Communicator) -> RawNccl:
        """Return plain NCCL between the ranks of a communicator; collective."""
        return RawNccl(comm, self.place)

    def free_bytes(self) -> int:
        """What can be allocated; graphs that nobody holds any more give back theirs first."""
        gc.collect()
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.place)[0])


class Stopwatch:
    """Time on the device between two points of the current stream."""

    def __init__(self) -> None:
        cuda: Any = torch.cuda
        self._began, self._ended = (cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        """Start the clock."""
        self._began.record()

    def stop(self) -> None:
        """Stop the clock."""
        self._ended.record()

    def us(self) -> float:
        """Wait for the end, and return microseconds."""
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) * 1e3


@cache
def the_card() -> Card:
    """The card; SystemExit where torch sees none."""
    if not torch.cuda.is_available():
        raise SystemExit("no GPU: torch.cuda.is_available() is False, and these programs measure nothing else")
    torch.cuda.set_device(Card.place)
    return Card()


def randn(card: Card, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Normal values on the card; float8 ones by way of 16 bits, made in parts so that no wider copy is held whole."""
    random = torch.Generator(card.place).manual_seed(seed)
    if dtype.itemsize > 1:
        return torch.randn(shape, dtype=dtype, device=card.place, generator=random)
    made = torch.empty(shape, dtype=dtype, device=card.place)
    for part in torch.split(made.view(-1), 1 << 28):
        part.copy_(torch.randn(part.shape, dtype=torch.bfloat16, device=card.place, generator=random))
    return made
