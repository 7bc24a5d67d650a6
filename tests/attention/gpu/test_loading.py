"""Kernels of attention are loaded at the first call of a kind, before a message is posted that another rank awaits."""

from tests.attention.gpu.playing import playing, run_in  # isort: skip

import time

import pytest
import torch

from attention import ring_attention, ring_decode, three_allreduce_decode, tree_decode
from attention.gpu import loading
from tests.attention.cases import case_of, cuts
from tests.interpreted import interpreted

RANKS = 2
SHAPE = (1, 2, 2, 1, 1200, 16, 16)


def pieces(launch):
    """What a kernel is compiled for: its constants, and which arguments there are."""
    kernel, args, options = launch
    constants = {name: value for name, value in options.items() if name not in ("grid", "warmup")}
    return kernel.fn.__name__, str(constants), tuple(x is None for x in args)


@pytest.fixture(autouse=True)
def _as_if_compiled(monkeypatch):
    monkeypatch.setattr(loading, "interpreted", lambda: False)


def loads_of(body):
    """What ranks load in `body(comm, seal)` after `seal()`; and the world, with loads and messages in its log."""
    late, loaded = [], set()
    with playing(RANKS) as world, pytest.MonkeyPatch.context() as patch:
        run, sealed = interpreted.run, set()

        def load(self, *args, **options):
            rank = world.rank_here()
            key = rank, pieces((self, args, options))
            if key not in loaded:
                time.sleep(0.1 if rank == RANKS - 1 else 0.0)
                loaded.add(key)
                world.log.append(("load", *key))
                if rank in sealed:
                    late.append(key)
            return run(self, *args, **options)

        patch.setattr(interpreted, "run", load)
        run_in(world, lambda comm: body(comm, lambda: sealed.add(comm.rank)))
    return late, world


def assert_posted_last(world):
    kinds = [entry[0] for entry in world.log]
    posts = [at for at, kind in enumerate(kinds) if kind in ("send", "recv")]
    loads = [at for at, kind in enumerate(kinds) if kind == "load"]
    assert posts and loads and max(loads) < min(posts)


METHODS = {
    "tree": lambda *told: tree_decode(*told),
    "16 bits": lambda *told: tree_decode(*told, wire="bfloat16"),
    "heads": lambda *told: tree_decode(*told, result="heads"),
    "ring": lambda *told: ring_decode(*told),
    "three": lambda *told: three_allreduce_decode(*told),
}


@pytest.mark.parametrize(
    "method", [name if name in ("tree", "ring") else pytest.param(name, marks=pytest.mark.long) for name in METHODS]
)
def test_a_context_that_grows_loads_nothing(method):
    q, k, v = case_of(SHAPE)

    def body(comm, seal):
        for n in (2, 24, 1200):  # which one program attends, and several
            part = cuts(n, comm.size)[comm.rank]
            METHODS[method](q, k[:, :, part].contiguous(), v[:, :, part].contiguous(), comm)
            seal()

    late, world = loads_of(body)
    assert not late
    assert_posted_last(world)


@pytest.mark.long
@pytest.mark.parametrize(
    "method", ["tree", *(pytest.param(name, marks=pytest.mark.long) for name in ("heads", "ring", "three"))]
)
def test_masks_and_lengths_that_come_later_on_one_rank_load_nothing(method):
    q, k, v = case_of(SHAPE)
    call = {"tree": tree_decode, "heads": tree_decode, "ring": ring_decode, "three": three_allreduce_decode}[method]
    more = {"result": "heads"} if method == "heads" else {}

    def body(comm, seal):
        part = cuts(600, comm.size)[comm.rank]
        keys, values = k[:, :, part].contiguous(), v[:, :, part].contiguous()
        n = keys.shape[2]
        mine = {"kv_mask": torch.arange(n) % 3 > 0}, {"kv_lengths": torch.tensor([n // 2])}
        for given in ({}, *mine):
            call(q, keys, values, comm, **(given if comm.rank else {}), **more)
            seal()

    late, world = loads_of(body)
    assert not late
    assert_posted_last(world)


@pytest.mark.long
def test_pages_that_come_after_dense_keys_are_loaded_together():
    """Ranks meet again, before any of them posts a message of the call."""
    q, k, v = case_of(SHAPE)

    def body(comm, seal):
        part = cuts(100, comm.size)[comm.rank]
        for page in (0, 8):
            if page:
                n = (part.stop - part.start) // page * page
                keys, values = (x[0, :, part][:, :n].unflatten(1, (-1, page)).transpose(0, 1) for x in (k, v))
                tables = torch.arange(n // page)[None]
                given = {"kv_lengths": torch.tensor([n]), "block_tables": tables}
            else:
                keys, values, given = k[:, :, part], v[:, :, part], {}
            tree_decode(q, keys.contiguous(), values.contiguous(), comm, **given)

    _, world = loads_of(body)
    loads = [at for at, entry in enumerate(world.log) if entry[0] == "load"]
    posts = [at for at, entry in enumerate(world.log) if entry[0] == "send"]
    of_pages = [at for at in loads if "'PAGE': 8" in str(world.log[at])]
    assert of_pages and [at for at in posts if at < min(of_pages)]
    assert not [at for at in posts if min(of_pages) < at < max(of_pages)]


@pytest.mark.long
def test_queries_of_another_number_are_loaded_together_again():
    _, k, v = case_of(SHAPE)

    def body(comm, seal):
        for q_len in (1, 2):
            q = torch.randn(1, 2, q_len, 16, generator=torch.Generator().manual_seed(q_len))
            tree_decode(q, k[:, :, :8], v[:, :, :8], comm)

    _, world = loads_of(body)
    second = [at for at, entry in enumerate(world.log) if entry[0] == "load" and "'Q_LEN': 2" in str(entry)]
    posts = [at for at, entry in enumerate(world.log) if entry[0] == "send"]
    assert second and not [at for at in posts if min(second) < at < max(second)]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_a_ring_of_queries_too(layout):
    from attention import Spec

    def body(comm, seal):
        tokens = [torch.randn(1, 2, 8, 16, generator=torch.Generator().manual_seed(comm.rank)) for _ in range(3)]
        ring_attention(*tokens, comm, spec=Spec(causal=True), layout=layout)

    _, world = loads_of(body)
    assert_posted_last(world)
