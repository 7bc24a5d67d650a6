"""The plug-in of vLLM: found, registered, and harmless where vLLM is another than we know."""

import sys
import tomllib
from enum import Enum
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from attention.engines import substitution
from attention.engines.vllm.vllm_plugin import register

ROOT = Path(__file__).parents[4]


class Registry(Enum):
    FLASH_ATTN = "vllm.backends.FlashAttentionBackend"
    TRITON_MLA = "vllm.backends.TritonMLABackend"
    FLEX_ATTENTION = "vllm.backends.FlexAttentionBackend"

    def is_overridden(self):
        return self in overridden


overridden = {}


@pytest.fixture
def vllm(monkeypatch):
    """A module in the place of vLLM's registry."""
    overridden.clear()
    monkeypatch.setattr(substitution, "_said", set())
    registry = ModuleType("vllm.v1.attention.backends.registry")
    registry.AttentionBackendEnum = Registry
    registry.register_backend = lambda backend, class_path=None: overridden.__setitem__(backend, class_path)
    parts = registry.__name__.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)


def test_the_entry_point_is_the_plug_in():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    loaded = [EntryPoint(name, value, "vllm.general_plugins").load() for name, value in table.items()]
    assert register in loaded


def test_backends_that_know_dcp_are_replaced(vllm):
    for _ in range(2):
        register()
    path = "attention.engines.vllm.dcp_backends"
    assert overridden == {getattr(Registry, name): f"{path}.{name}" for name in ("FLASH_ATTN", "TRITON_MLA")}
    assert import_module(path)


def test_a_backend_of_another_plug_in_stays(vllm):
    overridden[Registry.TRITON_MLA] = "another.Backend"
    register()
    assert overridden[Registry.TRITON_MLA] == "another.Backend" and Registry.FLASH_ATTN in overridden


def test_without_vllm_nothing_is_raised(monkeypatch, caplog):
    monkeypatch.setattr(substitution, "_said", set())
    for name in ("vllm", "vllm.v1.attention.backends.registry"):
        monkeypatch.setitem(sys.modules, name, None)
    register()
    assert "vLLM's backends stay as they are" in caplog.text
