from array import array
from typing import Any

from numpy.typing import NDArray

THROUGH: int
WAITING: int
TO_FOLD: int
STRIDE: int
FINISHED: int
MOST_FIELDS: int
CALLS_A_TRIAL: int
CALLS_A_CHOICE: int

def fold_address(operator: str, dtypes: str, /) -> int: ...
def describe(array: NDArray[Any], /) -> tuple[int, bool, tuple[int, ...], Any, int]: ...

class Engine:
    streaming: int
    until_choice: int
    quickest_plain: int
    quickest_streamed: int
    def __new__(
        cls,
        words: NDArray[Any],
        value: tuple[tuple[Any, tuple[int, ...], int], ...],
        result: tuple[tuple[Any, tuple[int, ...], int], ...],
        memory: NDArray[Any],
        other: NDArray[Any],
        counters: NDArray[Any],
        epoch: array[int],
        position: int,
        looks: int,
        most_looks: int,
        final: int,
        fold: int,
        calls_before_trial: int,
    ) -> Engine: ...
    @property
    def state(self) -> int: ...
    @property
    def stage(self) -> int: ...
    @property
    def results(self) -> tuple[NDArray[Any], ...]: ...
    def begin(
        self, value: tuple[NDArray[Any], ...] | None, result: tuple[NDArray[Any], ...] | None, direct: bool, /
    ) -> int: ...
    def start(self) -> None: ...
    def go_on(self) -> int: ...
    def behind(self) -> list[int]: ...

class Call:
    def __new__(
        cls,
        engines: tuple[Engine, Engine],
        names: tuple[str, ...],
        bare: bool,
        gives: bool,
        nothing: object,
        tag: int,
        count: array[int],
        tags: array[int],
        times_ns: array[int],
        sweep_mask: int,
    ) -> Call: ...
    def run(self, value: Any, out: Any, /) -> Any: ...
