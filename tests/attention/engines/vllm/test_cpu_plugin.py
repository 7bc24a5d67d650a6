"""What vLLM loads by its entry point."""

import logging
import sys
from importlib.metadata import entry_points

import pytest

NOT_HERE = "vLLM is not installed: it has an environment of its own"


def test_vllm_finds_the_entry_point():
    (entry,) = entry_points(group="vllm.general_plugins", name="topocomm_cpu")
    assert entry.load().__module__ == "attention.engines.vllm.cpu_plugin"


@pytest.fixture
def cpu_backend():
    """vLLM's registered CPU backend, which is put back."""
    registry = pytest.importorskip("vllm.v1.attention.backends.registry", reason=NOT_HERE)
    backend = registry.AttentionBackendEnum.CPU_ATTN
    backend.clear_override()
    yield backend
    backend.clear_override()


@pytest.mark.filterwarnings("default")  # vLLM's imports warn
def test_the_cpu_backend_is_ours_afterwards(cpu_backend):
    from attention.engines.vllm.cpu_backend import ContextParallelCPUBackend
    from attention.engines.vllm.cpu_plugin import register

    register()
    register()  # vLLM may load plug-ins several times
    assert cpu_backend.get_class() is ContextParallelCPUBackend


@pytest.mark.filterwarnings("default")  # vLLM's imports warn
def test_a_vllm_without_what_is_needed_keeps_its_own_backend(cpu_backend, monkeypatch):
    from attention.engines.vllm.cpu_plugin import register

    monkeypatch.delitem(sys.modules, "attention.engines.vllm.cpu_backend", raising=False)
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.cpu_attn", None)
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("vllm.topocomm").addHandler(handler)
    try:
        register()
    finally:
        logging.getLogger("vllm.topocomm").removeHandler(handler)
    assert not cpu_backend.is_overridden()
    assert len(said) == 1
    assert "keeps its own attention" in said[0]
