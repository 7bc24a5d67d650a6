"""A rank reads its own slices of a model's files."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attention.huggingface import enable, load_sharded
from attention.huggingface.weights import load_sharded as loading
from attention.huggingface.weights.load_sharded import CheckpointError, check_sharded
from attention.huggingface.weights.sharded_weights import sharded_weights
from tests.attention.huggingface.tiny_llama import build
from tests.attention.huggingface.weights.test_sharded_weights import OPTIONS, assert_same
from topocomm import OperatorError, run_local

FAMILIES = {
    "Llama": {},
    "Llama tied": {"tie_word_embeddings": True},
    "Gemma2": {"head_dim": 16},
    "Qwen3Moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "GptOss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
}
INPUTS = {"input_ids": torch.randint(3, 199, (2, 40), generator=torch.Generator().manual_seed(5))}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """By family, the model and its directory, of several files."""
    made = {}

    def of(family):
        if family not in made:
            model, path = build(family.split()[0], **FAMILIES[family]), tmp_path_factory.mktemp("model")
            model.save_pretrained(path, max_shard_size="100KB")
            made[family] = model, path
        return made[family]

    return of


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_model_is_the_one_that_was_saved(saved, family, ranks):
    model, path = saved(family)
    want = model.generate(**INPUTS, max_new_tokens=6, **OPTIONS)

    def work(comm):
        own = load_sharded(path, comm)
        with enable(own, comm):
            return own.generate(**INPUTS, max_new_tokens=6, **OPTIONS)

    for got in run_local(work, ranks=ranks):
        assert_same(got, want)


def test_only_own_slices_are_read(saved, monkeypatch):
    _, path = saved("Llama")
    read = []

    class Counted:
        """A slice that notes what is read of it."""

        def __init__(self, stored):
            self._stored = stored
            self.get_shape = stored.get_shape

        def __getitem__(self, index):
            part = self._stored[index]
            read.append(part.nbytes)
            return part

    class Files:
        def __init__(self, *args, **options):
            self._file = safe_open(*args, **options)

        def __enter__(self):
            self._file.__enter__()
            return self

        def __exit__(self, *error):
            return self._file.__exit__(*error)

        def keys(self):
            return self._file.keys()

        def get_slice(self, key):
            return Counted(self._file.get_slice(key))

    monkeypatch.setattr(loading, "safe_open", Files)
    held = run_local(lambda comm: sharded_weights(load_sharded(path, comm)), ranks=4)
    assert sum(read) == sum(weights.held_bytes for weights in held)
    assert all(weights.held_bytes < 0.3 * weights.whole_bytes for weights in held)


def damaged(tmp_path, saved, change):
    _, path = saved("Llama")
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change(tmp_path)
    return tmp_path


def without_a_file(path):
    sorted(path.glob("*.safetensors"))[1].unlink()


def without_a_weight(path):
    index = json.loads((path / "model.safetensors.index.json").read_text())
    file = path / index["weight_map"]["model.layers.1.mlp.up_proj.weight"]
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file)


def cut_short(path):
    file = sorted(path.glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_a_file, r"model-00002-of-\d+\.safetensors: cannot be read"),
        (without_a_weight, r"the files lack 1 weights that the model wants, model\.layers\.1\.mlp\.up_proj\.weight"),
        (cut_short, r"model-00001-of-\d+\.safetensors: cannot be read"),
    ],
)
def test_damage_is_said_on_every_rank_before_anything_is_read(tmp_path, saved, change, said):
    path = damaged(tmp_path, saved, change)
    with pytest.raises(CheckpointError, match=said):
        check_sharded(path, 3)

    def work(comm):
        with pytest.raises(CheckpointError, match=said):
            load_sharded(path, comm)

    run_local(work, ranks=3)


def test_a_missing_folder_is_said_with_the_one_that_is_meant(saved):
    _, path = saved("Llama")
    wrong = path.with_name(path.name + "-x")
    with pytest.raises(CheckpointError, match=f"is no folder: {wrong}; .* did you mean {path.parent}/"):
        run_local(lambda comm: load_sharded(wrong, comm), ranks=2)


def test_a_weight_of_another_shape_is_refused(tmp_path, saved):
    def wider(path):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "intermediate_size": 144}))

    path = damaged(tmp_path, saved, wider)
    with pytest.raises(CheckpointError, match=r"mlp\.\w+\.weight has the shape \[.*\], not \["):
        run_local(lambda comm: load_sharded(path, comm), ranks=2)


def test_quantized_weights_are_refused(tmp_path, saved):
    def quantized(path):
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))

    with pytest.raises(OperatorError, match="does not cover quantized weights"):
        check_sharded(damaged(tmp_path, saved, quantized), 2)
