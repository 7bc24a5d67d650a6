"""Where there is no JAX the module says what to install."""

import sys

import pytest

from topocomm import MissingExtraError


def test_without_jax_the_error_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "jax" or name.startswith("topocomm.jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtraError, match=r"topocomm.jax needs jax, .* pip install 'jax"):
        import topocomm.jax  # noqa: F401
