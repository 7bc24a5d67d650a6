import subprocess
import sys

import pytest

import attention


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_operator_needs_no_torch():
    code = """
import sys
sys.modules["torch"] = None
from attention import LOGSUMEXP, Partial, Spec
print(LOGSUMEXP.name, [name for name in ("torch", "numba", "networkx") if sys.modules.get(name)])
"""
    assert python(code) == "attention.logsumexp []\n"


def test_without_torch_the_extra_is_named():
    code = """
import sys
sys.modules["torch"] = None
import topocomm
try:
    from attention import tree_decode
except topocomm.MissingExtraError as error:
    print(error)
"""
    assert python(code) == (
        "attention.tree_decode needs torch, which is not installed; run: pip install 'topocomm[attention]'\n"
    )


def test_every_public_name_is_there():
    for name in attention.__all__:
        assert getattr(attention, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tree_encode'"):
        _ = attention.tree_encode
