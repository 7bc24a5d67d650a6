"""Kernels are compiled and loaded by one thread at a time, launched by any, and launched as Triton would.

Triton's interpreter runs under a lock of its own and would hide all this: kernels are compiled for a GPU that is not
there, by Triton itself.
"""

import threading
from itertools import product

import pytest
import torch
import triton.language as tl
from triton import knobs
from triton.compiler.errors import CompilationError
from triton.runtime import JITFunction

from tests.operators.kernels.fake_driver import at_once, fake_driver
from topocomm.extend import launcher, load_kernel

X = torch.zeros(64)
OPTIONS = {"num_warps": 1, "enable_fp_fusion": True}


def scale(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * factor, mask=at < n)


def fresh(**options):
    """A kernel that nothing was compiled of."""
    return JITFunction(scale, **options)


def scaled(kernel, n=64, block=64):
    return lambda: launcher(kernel, (1,))(X, None, n, 2.0, BLOCK=block, **OPTIONS)


@pytest.fixture
def driver(monkeypatch, tmp_path):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    with fake_driver(load_s=0.05) as made:
        yield made
    assert not made.wrong


def test_triton_gives_a_kernel_away_before_it_is_loaded(driver):
    """Which is why all this is there: without it this fails. Ends when triton-lang/triton#11518 is in all versions."""
    kernel = fresh()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "wrong", [])
        kernel.warmup(X, None, 64, 2.0, BLOCK=64, **OPTIONS, grid=(1,))
        at_once(*[lambda: kernel[(1,)](X, None, 64, 2.0, BLOCK=64, **OPTIONS)] * 2)
        assert driver.wrong


def test_threads_that_launch_first_at_the_same_time(driver):
    kernel = fresh()
    at_once(*[scaled(kernel)] * 4)
    assert len(driver.launches) == 4 and len({function for *_, function, _ in driver.launches}) == 1
    assert len(driver.loads) == 1 and not driver.unloads


def test_threads_that_load_different_kernels_take_turns(driver):
    at_once(*[scaled(fresh(), block=block) for block in (32, 64, 128)])
    assert len(driver.loads) == 3


def test_every_device_loads_its_own(driver):
    kernel = fresh()

    def on(device):
        driver.use(device)
        scaled(kernel)()
        scaled(kernel)()

    at_once(lambda: on(0), lambda: on(1))
    assert sorted(device for _, device, _ in driver.loads) == [0, 1]
    functions = {(device, function) for _, device, _, function, _ in driver.launches}
    assert len(driver.launches) == 4 and len(functions) == 2


def test_a_launch_that_waits_keeps_nobody_from_loading(driver):
    """It may wait for room in a queue of the GPU, where the kernel that is loaded meanwhile is awaited."""
    first, second, through = fresh(), fresh(), threading.Event()
    scaled(first)()
    waits = lambda name: threading.current_thread().name == "rank0" and through.wait(10)  # noqa: E731
    driver.on_launch = waits

    def load_another():
        scaled(second)()
        through.set()

    at_once(scaled(first), load_another)
    assert through.is_set() and len(driver.loads) == 2


def test_what_is_loaded_is_not_launched_and_later_not_loaded_again(driver):
    kernel = fresh()
    launch = load_kernel(kernel, (X, None, 64, 2.0), {"BLOCK": 64, **OPTIONS})
    assert len(driver.loads) == 1 and not driver.launches
    scaled(kernel)()
    launch((3, 2), X, None, 64, 2.0)
    assert len(driver.loads) == 1
    (*_, one), (*_, other) = driver.launches
    assert one == other == (X, None, 64, 2.0, 64)


VALUES = [1, 2, 16, 2**31, 2**31 + 16, 2**63, -16, -(2**31) - 1, 0, True]
TENSORS = [X, X[1:], X.double(), X.bfloat16(), None]


def given():
    """Arguments of kinds that Triton may tell apart."""
    for value, only in product(VALUES, (False, True)):
        yield (X, None, value, 2.0), only
    for x, y in product(TENSORS[:-1], TENSORS):
        yield (x, y, 64, 2.0), False
    for factor in (1.0, 16.0, 3, 16, True):
        yield (X, None, 64, factor), False


def test_a_launch_runs_what_triton_itself_would_run(driver, monkeypatch):
    monkeypatch.setattr(driver, "_load_s", 0.0)
    kernels = {only: fresh(do_not_specialize=["n"] if only else []) for only in (False, True)}
    for _ in range(2):
        for args, only in given():
            launcher(kernels[only], (1,))(*args, BLOCK=64, **OPTIONS)
            *_, function, told = driver.launches[-1]
            own = kernels[only].warmup(*args, BLOCK=64, **OPTIONS, grid=(1,))
            assert function == own.function, args
            assert told == (*args, 64)


def test_tuples_count_by_their_members(driver):
    def first(xs, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(xs[0] + at, tl.load(xs[1] + at))

    kernel = JITFunction(first)
    for xs in ((X, X), (X, X[1:]), (X[1:], X), (X, X)):
        launcher(kernel, (1,))(xs, BLOCK=16, **OPTIONS)
        assert driver.launches[-1][3] == kernel.warmup(xs, BLOCK=16, **OPTIONS, grid=(1,)).function
    assert len(driver.loads) == 3


def test_constants_that_are_equal_to_python_are_told_apart_by_name(driver):
    def either(x, A: tl.constexpr, B: tl.constexpr):
        tl.store(x + A, B)

    kernel = JITFunction(either)
    launcher(kernel, (1,))(X, A=1, B=2, **OPTIONS)
    launcher(kernel, (1,))(X, B=1, A=2, **OPTIONS)
    assert len({function for *_, function, _ in driver.launches}) == 2


def test_a_kernel_that_cannot_be_loaded_says_so_every_time_and_holds_up_nobody(driver, monkeypatch):
    def full(*told):
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    monkeypatch.setattr(driver, "load_binary", full)
    kernel = fresh()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            scaled(kernel)()
    with pytest.raises(CompilationError):
        launcher(kernel, (1,))(X, None, 64, 2.0, BLOCK=63, **OPTIONS)
    monkeypatch.delattr(driver, "load_binary")
    at_once(scaled(kernel))
    assert len(driver.launches) == 1


def test_a_program_may_compile_elsewhere(driver, monkeypatch):
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", lambda **told: True)
    scaled(fresh())()
    assert not driver.loads and not driver.launches


def test_what_triton_does_not_compile_is_launched_as_ever():
    launched = []

    class Interpreted:
        def __getitem__(self, grid):
            return lambda *args, **options: launched.append((grid, args, options))

    launcher(Interpreted(), (2,))(1, A=3)
    load_kernel(Interpreted(), (1,), {"A": 3})((2,), 5)
    assert launched == [((2,), (1,), {"A": 3}), ((2,), (5,), {"A": 3})]
