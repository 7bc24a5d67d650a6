"""What vLLM loads by its entry point."""

from importlib.metadata import entry_points

import pytest


def test_vllm_finds_the_entry_point():
    (entry,) = entry_points(group="vllm.general_plugins", name="topocomm_cpu")
    assert entry.load().__module__ == "attention.engines.vllm.cpu_plugin"


@pytest.mark.filterwarnings("default")  # vLLM's imports warn
def test_the_cpu_backend_is_ours_afterwards():
    pytest.importorskip("vllm", reason="vLLM is not installed: it has an environment of its own")
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from attention.engines.vllm.cpu_backend import ContextParallelCPUBackend
    from attention.engines.vllm.cpu_plugin import register

    register()
    register()  # vLLM may load plug-ins several times
    assert AttentionBackendEnum.CPU_ATTN.get_class() is ContextParallelCPUBackend
