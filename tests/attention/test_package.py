import subprocess
import sys
from pathlib import Path

import pytest

import attention
from topocomm import TopocommError


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_operator_needs_no_torch():
    code = """
import sys
from pathlib import Path
sys.modules["torch"] = None
from attention import LOGSUMEXP, Partial, Spec
print(LOGSUMEXP.name, [name for name in ("torch", "numba", "networkx") if sys.modules.get(name)])
"""
    assert python(code) == "attention.logsumexp []\n"


def test_without_torch_the_extra_is_named():
    code = """
import sys
from pathlib import Path
sys.modules["torch"] = None
import topocomm
try:
    from attention import tree_decode
except topocomm.MissingExtraError as error:
    print(error)
"""
    assert python(code).startswith("attention.tree_decode needs torch, which is not installed; run: pip install 'torch")


def test_every_public_name_is_there():
    for name in attention.__all__:
        assert getattr(attention, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tree_encode'"):
        _ = attention.tree_encode


def test_what_attention_refuses_is_an_error_of_topocomm_and_a_value_error():
    with pytest.raises(TopocommError, match="ShardMap: ranks must be at least 1") as refused:
        attention.ShardMap(0)
    assert isinstance(refused.value, ValueError)
    sources = Path(attention.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "raise ValueError(" in path.read_text()] == []
