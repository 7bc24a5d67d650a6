"""The plug-in of SGLang: found, registered, applied, and harmless where SGLang is another than we know."""

import inspect
import sys
import tomllib
from enum import Enum
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from attention.engines import substitution
from attention.engines.sglang.dcp_hooks import HOOKS, MODULE
from attention.engines.sglang.sglang_plugin import install
from tests.attention.engines.sources import path

ROOT = Path(__file__).parents[4]
REGISTRY = "sglang.srt.plugins.hook_registry"


def known(name):
    """A function with the parameters of SGLang's of this name, which returns them."""

    def function(*args, **kwargs):
        return args, kwargs

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature(
        [inspect.Parameter(each, kind) for each in substitution.parameters_of(HOOKS[name])]
    )
    return function


class Kinds(Enum):
    AROUND = "around"
    REPLACE = "replace"


class Registry:
    """In the place of SGLang's where it is not installed."""

    def __init__(self):
        self.hooks = {}

    def register(self, target, hook, hook_type):
        assert hook_type is Kinds.AROUND
        self.hooks[target] = hook


def placed(monkeypatch, **modules):
    """Put modules in the place of SGLang's, with the packages around them."""
    for name, module in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            above = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, above, sys.modules.get(above) or ModuleType(above))
            sys.modules[above].__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        setattr(sys.modules[name.rpartition(".")[0]], parts[-1], module)


@pytest.fixture
def merges(monkeypatch):
    monkeypatch.setattr(substitution, "_said", set())
    module = ModuleType(MODULE)
    for name in HOOKS:
        setattr(module, name, known(name))
    return module


@pytest.fixture
def registry(monkeypatch, merges):
    found, module = Registry(), ModuleType(REGISTRY)
    module.HookRegistry, module.HookType = found, Kinds
    placed(monkeypatch, **{REGISTRY: module, MODULE: merges})
    return found


def test_the_entry_point_is_the_plug_in():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["sglang.srt.plugins"]
    (entry,) = [EntryPoint(name, value, "sglang.srt.plugins") for name, value in table.items()]
    assert entry.load() is install


def test_each_merge_gets_its_hook(registry):
    install()
    assert registry.hooks == {f"{MODULE}.{name}": hook for name, hook in HOOKS.items()}


def test_a_merge_with_other_parameters_stays_as_it_is(registry, merges, caplog):
    merges.cp_lse_ag_out_rs_mla = lambda out, lse: None
    del merges.dcp_a2a_lse_reduce
    install()
    assert list(registry.hooks) == [f"{MODULE}.cp_lse_ag_out_rs_mha"]
    assert "SGLang's cp_lse_ag_out_rs_mla stays as it is: " in caplog.text and "(out, lse)" in caplog.text
    assert "there is no dcp_a2a_lse_reduce" in caplog.text


def test_without_sglang_nothing_is_raised(monkeypatch, caplog):
    monkeypatch.setattr(substitution, "_said", set())
    monkeypatch.setitem(sys.modules, "sglang", None)
    install()
    assert "SGLang's merges stay as they are" in caplog.text


def test_the_registry_of_the_installed_sglang_applies_the_hooks(monkeypatch, merges):
    spec = spec_from_file_location(REGISTRY, path("sglang", "srt.plugins.hook_registry"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    own = merges.cp_lse_ag_out_rs_mha
    package = ModuleType("sglang.srt.layers.dcp")
    package.cp_lse_ag_out_rs_mha = own  # as the package's `from comm import ...` has it
    placed(monkeypatch, **{REGISTRY: module, "sglang.srt.layers.dcp": package, MODULE: merges})
    install()
    module.HookRegistry.apply_hooks()

    class Alone:
        world_size = 1

    group = Alone()
    assert merges.cp_lse_ag_out_rs_mha is package.cp_lse_ag_out_rs_mha is not own
    assert merges.cp_lse_ag_out_rs_mha(1, 2, group) == (
        (1, 2, group),
        {"return_lse": False},
    )  # ours asks it for a group of one rank
