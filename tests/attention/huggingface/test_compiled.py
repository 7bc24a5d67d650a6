"""Models that torch.compile has compiled generate from a sharded cache what they generate alone."""

import copy
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from attention.huggingface import enable, shard_generation
from attention.huggingface.sharded_cache import ShardedCache
from tests.attention.huggingface import tiny_latents
from tests.attention.huggingface.tiny_llama import build, refused, small
from tests.mpi import mpirun
from topocomm import run_local

IDS = torch.randint(3, 199, (2, 12), generator=torch.Generator().manual_seed(2))
MASK = torch.ones_like(IDS)
MASK[0, :3] = 0
OPTIONS = {"attention_mask": MASK, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
LIMIT = 1e-4
WINDOWS = {"sliding_window": 8, "head_dim": 16, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def generate(model, **options):
    return model.generate(IDS, **OPTIONS | options, return_dict_in_generate=True, output_logits=True)


def on_demand(backend="eager"):
    """What compiles where transformers would on a GPU alone."""
    config = transformers.CompileConfig(backend=backend)
    config._compile_all_devices = True
    return config


@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("Llama", 2), ("GptOss", 3))),
        *(
            pytest.param(*case, marks=pytest.mark.soak)
            for case in (("Llama", 1), ("Llama", 3), ("Gemma2", 2), ("DeepseekV3", 2))
        ),
    ],
)
def test_generate_with_a_compiled_forward(family, ranks):
    if family == "DeepseekV3":
        model = copy.deepcopy(tiny_latents.build(family))
    else:
        model = build(family, **({} if family == "Llama" else WINDOWS))
    alone, graphs = generate(model), []

    def work(comm):
        with enable(model, comm, shards=small(ranks)) as sharding:
            return generate(model), sharding.cache

    model.forward = torch.compile(model.forward, backend=lambda graph, _: graphs.append(graph) or graph)
    for got, cache in run_local(work, ranks=ranks):
        assert torch.equal(got.sequences, alone.sequences)
        assert float((torch.stack(got.logits) - torch.stack(alone.logits)).abs().max()) <= LIMIT
        assert cache.record.length == cache.get_seq_length() == 15
    assert any("linear" in graph.code for graph in graphs)


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        pytest.param("model", 1, marks=pytest.mark.long),
        pytest.param("compiled", 2, marks=pytest.mark.long),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in (("model", 2), ("compiled", 1))),
    ],
)
def test_a_compiled_model(given, ranks):
    """Its tokens are noted too, whichever of the two `enable` is given."""
    model = build(num_hidden_layers=1)
    with torch.no_grad():
        alone = model(torch.cat([IDS, IDS[:, :1]], 1)).logits
    compiled = torch.compile(model, backend="eager")

    def work(comm):
        which = model if given == "model" else compiled
        with enable(which, comm, shards=small(ranks)) as sharding, torch.no_grad():
            parts = [compiled(ids, past_key_values=sharding.cache).logits for ids in (IDS, IDS[:, :1])]
        return torch.cat(parts, 1), sharding.cache.record.length

    for logits, noted in run_local(work, ranks=ranks):
        assert float((logits - alone).abs().max()) <= LIMIT
        assert noted == 13


def test_tokens_of_a_compiled_model_are_noted_in_generate():
    compiled = torch.compile(build(), backend="eager")

    def work(comm):
        with enable(compiled, comm) as sharding:
            generate(compiled)
        return sharding.cache.record.length

    assert run_local(work, ranks=1) == [15]


def test_a_static_cache_which_generate_compiles_for_by_itself():
    model = build()
    alone = generate(model)

    def work(comm):
        with enable(model, comm, shards=small(2)):
            return generate(model, cache_implementation="static", compile_config=on_demand())

    for got in run_local(work, ranks=2):
        assert torch.equal(got.sequences, alone.sequences)
        assert isinstance(got.past_key_values, ShardedCache)


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("named", [True, False])
def test_a_static_cache_inside_shard_generation_is_refused(named, tokens):
    model = build()
    cache = transformers.StaticCache(config=model.config, max_cache_len=40)
    options = {"cache_implementation": "static"} if named else {"past_key_values": cache}
    options |= {"compile_config": on_demand(), "max_new_tokens": tokens}
    message = refused(model, lambda _: generate(model, **options))
    assert "is for a static cache" in message.replace("If this call", "this call")
    assert "pass past_key_values=cache, the cache of shard_generation" in message


@pytest.mark.long
def test_one_graph_can_serve_all_layers(monkeypatch):
    """With the setting that the guide names."""
    monkeypatch.setattr("torch._dynamo.config.allow_unspec_int_on_nn_module", True)
    monkeypatch.setattr("torch._dynamo.config.fail_on_recompile_limit_hit", True)
    model = build(num_hidden_layers=10)
    alone = generate(model)

    def work(comm):
        with shard_generation(model, comm) as cache:
            return generate(model, past_key_values=cache)

    model.forward = torch.compile(model.forward, backend="eager")
    for got in run_local(work, ranks=2):
        assert torch.equal(got.sequences, alone.sequences)


@pytest.mark.parametrize(
    "backend", [pytest.param("aot_eager", marks=pytest.mark.long), pytest.param("inductor", marks=pytest.mark.soak)]
)
def test_ranks_of_mpirun(backend):
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    job = mpirun(2, [Path(__file__).with_name("compiled_job.py"), backend], timeout_s=280.0)
    assert (job.returncode, job.stdout) == (0, "same bits on all ranks, tokens as alone\n"), job.stderr
