"""Memory of weights in mapped files goes when it was read, and nothing else does."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

from attention.huggingface.generation import enable
from attention.huggingface.weights import load_sharded as loading
from attention.huggingface.weights import mapped_pages
from attention.huggingface.weights.load_sharded import load_sharded
from attention.huggingface.weights.mapped_pages import LEAST_BYTES, PAGEMAP, release_pages
from attention.huggingface.weights.sharded_weights import put_slices
from attention.huggingface.weights.slices import Cut
from topocomm import run_local

pytestmark = pytest.mark.skipif(not PAGEMAP.exists(), reason="pages are given back on Linux only")
NUMBERS = 1 << 18
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def resident_bytes(path):
    """What this process holds of a mapped file."""
    held, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = str(path) in line
        elif inside and line.startswith("Rss:"):
            held += 1024 * int(line.split()[1])
    return held


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "weights"
    torch.arange(NUMBERS, dtype=torch.float32).numpy().tofile(path)
    return path


def read(path, shared=False):
    x = torch.from_file(str(path), shared=shared, size=NUMBERS)
    assert x.sum() > 0
    return x


def test_pages_of_a_file_go_and_come_again(path):
    x = read(path)
    assert resident_bytes(path) == x.nbytes
    assert release_pages(x)
    assert resident_bytes(path) == 0
    assert torch.equal(x, torch.arange(NUMBERS, dtype=torch.float32))


def test_a_part_takes_the_pages_between_its_first_and_its_last_number(path):
    x = read(path)
    assert release_pages(x[: NUMBERS // 2].view(-1, 1024)[:, :900])
    assert resident_bytes(path) == x.nbytes // 2


@pytest.mark.parametrize("written", [0, NUMBERS // 2, NUMBERS - 1])
def test_what_this_process_wrote_stays(path, written):
    x = read(path)
    x[written] = -5
    assert not release_pages(x)
    assert x[written] == -5
    assert resident_bytes(path) == x.nbytes


def test_writes_that_the_file_takes_stay(path):
    x = read(path, shared=True)
    x.fill_(7)
    release_pages(x)
    assert (x == 7).all()


@pytest.mark.parametrize("shared", [False, True])
def test_memory_of_no_file_stays(shared):
    x = torch.full((NUMBERS,), 3.0)
    if shared:
        x.share_memory_()
    release_pages(x)
    assert (x == 3).all()


def test_what_is_left_alone(path):
    x = read(path)
    for other in (x[: LEAST_BYTES // 4 - 1], x[:0], torch.empty(NUMBERS, device="meta")):
        assert not release_pages(other)
    assert resident_bytes(path) == x.nbytes


def test_a_system_that_does_not_say_what_pages_are(path, monkeypatch, tmp_path):
    x = read(path)
    assert release_pages(x)  # so that madvise is known
    assert x.sum() > 0
    monkeypatch.setattr(mapped_pages, "PAGEMAP", tmp_path / "none")
    assert not release_pages(x)
    assert resident_bytes(path) == x.nbytes


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of 32 MiB, whose largest weights are a quarter of it."""
    path = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def saved_experts(tmp_path_factory):
    """A model of which the files have each expert's matrices apart."""
    path = tmp_path_factory.mktemp("experts")
    config = MixtralConfig(**SIZES | {"vocab_size": 64}, num_local_experts=4, num_experts_per_tok=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("load", [False, True])
def test_sharding_never_holds_a_file_whole(saved, monkeypatch, load, dtype):
    whole = (saved / "model.safetensors").stat().st_size
    held, of = [], Cut.of

    def noted(*args):
        part = of(*args)
        held.append(resident_bytes(saved))
        return part

    monkeypatch.setattr(Cut, "of", noted)

    def work(comm):
        if load:
            return comm.rank or load_sharded(saved, comm, dtype=dtype)
        model = AutoModelForCausalLM.from_pretrained(saved)
        if comm.rank == 1:  # the other rank's is in memory: what is held of the file is one rank's
            for x in model.parameters():
                x.data = x.data.clone()
        with enable(model, comm, weights="sharded"):
            return model

    run_local(work, ranks=2)
    assert len(held) > 20
    assert max(held) < whole / 4, "reading maps 64 KiB around, so some of each weight is held"


def test_weights_that_stay_whole_leave_the_file(saved):
    model = AutoModelForCausalLM.from_pretrained(saved)
    in_file = [x.data for x in model.parameters()]  # as others of its tensors would, these keep the file mapped
    assert sum(x.sum() for x in in_file) != 0
    put_slices(model, [], lambda weight, cut: weight)
    assert resident_bytes(saved) < (saved / "model.safetensors").stat().st_size / 4
    assert all(torch.equal(x, y) for x, y in zip(in_file, model.parameters(), strict=True))


@pytest.mark.parametrize(("model", "dtype"), [("saved", torch.bfloat16), ("saved_experts", torch.float32)])
def test_weights_that_are_cast_or_joined_leave_the_file(model, dtype, request, monkeypatch):
    path, held = request.getfixturevalue(model), []

    def noted(*args):
        held.append(resident_bytes(path))

    monkeypatch.setattr(loading, "split_modules", lambda *_: [])
    monkeypatch.setattr(loading, "put_slices", noted)
    run_local(lambda comm: load_sharded(path, comm, dtype=dtype), ranks=1)
    assert held[0] < (path / "model.safetensors").stat().st_size / 4
