"""A model served by vLLM on two processes with the cache shared out, and vLLM's interfaces as we use them.

In an environment with vLLM's CPU build (docs/guide/vllm-cpu.md); elsewhere all is skipped.
"""

import inspect
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from attention.engines.vllm.cpu_slots import compute_slots
from attention.jobs.job_launch import SetupError
from attention.jobs.models import convert
from tests.attention.engines.vllm.multi_query import as_multi_query
from topocomm import OperatorError

pytest.importorskip("vllm", reason="vLLM is not installed: it has an environment of its own")
pytestmark = pytest.mark.filterwarnings("default")  # vLLM's imports warn
LENGTHS = (3, 64, 700, 129, 33)
TOKENS = 40


def test_slots_take_the_arguments_of_vllms_kernel():
    """vLLM's dispatcher passes them by position where names differ: so their order is what counts."""
    from vllm.v1.worker.block_table import ComputeSlotMappingKernel

    kernel = ComputeSlotMappingKernel.kernel
    theirs = list(inspect.signature(getattr(kernel, "func", kernel)).parameters)
    ours = list(inspect.signature(compute_slots).parameters)
    assert [x.lower().removesuffix("_ptr") for x in theirs][:-1] == ours[:-1]
    assert (theirs[-1], ours[-1]) == ("BLOCK_SIZE", "triton_block_size")


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        ({"alibi_slopes": [0.5, 0.25]}, "ALiBi"),
        ({"sliding_window": 128}, "a sliding window"),
        ({"kv_cache_dtype": "fp8"}, "a cache in fp8"),
        ({"attn_type": "encoder"}, "attention of type encoder"),
        ({"kv_sharing_target_layer_name": "model.layers.0"}, "layers that share"),
        ({"sinks": torch.zeros(2)}, "attention sinks"),
        ({"num_kv_heads": 2}, "2 key heads"),
    ],
    ids=str,
)
def test_layers_that_are_not_covered_are_refused(argument, kind):
    from attention.engines.vllm.cpu_backend import ContextParallelLayer

    plain = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto", "num_kv_heads": 1}
    with pytest.raises(OperatorError, match=f"{kind}.*set decode_context_parallel_size to 1"):
        ContextParallelLayer(num_heads=2, head_size=16, scale=0.25, **(plain | argument))


@pytest.mark.parametrize(
    ("field", "kind"),
    [("speculative_config", "speculative decoding"), ("kv_transfer_config", "a cache that is sent to other engines")],
)
def test_configurations_that_are_not_covered_are_refused(field, kind):
    from attention.engines.vllm.cpu_backend import StepBuilder

    config = SimpleNamespace(**({"speculative_config": None, "kv_transfer_config": None} | {field: object()}))
    with pytest.raises(OperatorError, match=f"{kind}.*set decode_context_parallel_size to 1"):
        StepBuilder(None, [], config, torch.device("cpu"))


def test_with_one_rank_of_context_the_backend_is_vllms():
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    from attention.engines.vllm.cpu_backend import ContextParallelCPUBackend

    assert ContextParallelCPUBackend.get_impl_cls() is CPUAttentionBackend.get_impl_cls()
    assert ContextParallelCPUBackend.get_builder_cls() is CPUAttentionBackend.get_builder_cls()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """SmolLM2-135M with its real weights, rewritten with one key head."""
    try:
        source = convert("smollm2")
    except SetupError as error:
        pytest.skip(f"convert SmolLM2 in the environment of `make setup` first: {error}")
    folder = tmp_path_factory.mktemp("multi-query")
    as_multi_query(source, folder)
    return folder


def answers(model, tmp_path, tensor_ranks, context_ranks, *options):
    result = tmp_path / f"{tensor_ranks}-{context_ranks}-{'-'.join(options)}.json"
    lengths = map(str, LENGTHS)
    program = [sys.executable, "-m", "tests.attention.engines.vllm.serve_job", str(model)]
    subprocess.run(
        [*program, str(tensor_ranks), str(context_ranks), str(result), *options, "--lengths", *lengths],
        check=True,
        timeout=600,
    )
    return json.loads(result.read_text())


@pytest.mark.long
@pytest.mark.timeout(1900)
def test_two_processes_with_half_the_cache_each_answer_as_one(model, tmp_path):
    """Prompts of unequal lengths at once, the long one in parts of 256 tokens, 40 tokens decoded of each.

    Then the same with four tokens in turn on a rank, once more with what the cache has of the prompts.
    """
    one = answers(model, tmp_path, 1, 1)
    by_token = answers(model, tmp_path, 2, 2)
    by_four = answers(model, tmp_path, 2, 2, "--interleave", "4", "--prefix-caching", "--repeats", "2")
    (expected,) = one["calls"][0]["tokens"]
    assert [len(x) for x in expected] == [TOKENS] * len(LENGTHS)
    assert by_token["calls"][0]["tokens"] == [expected]
    assert by_four["calls"][0]["tokens"] == [expected, expected]
    assert by_token["room_tokens"] == 2 * one["room_tokens"]  # in the same memory on each rank
    cached = [n + TOKENS - 1 for n in LENGTHS]  # nobody asks for the keys of the last token
    assert by_token["kept_tokens"] == [sum(-(-n // 2) for n in cached), sum(n // 2 for n in cached)]
