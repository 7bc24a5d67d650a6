"""Sphinx builds the site from these pages: `make docs`, output in build/docs/html."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.pages.reference_text import write_pages  # noqa: E402

project = "topocomm"
author = "The topocomm developers"
copyright = author
version = release = installed_version("topocomm")

extensions = [
    "myst_nb",  # loads myst_parser
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["reference/generated/*"]  # included by the pages that surround it
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other libraries: their pages are not read, builds need no network

myst_heading_anchors = 4
myst_enable_extensions = ["fieldlist"]
nb_execution_mode = "force"  # notebooks are stored without outputs
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
suppress_warnings = ["myst.header"]  # API pages begin sections below those of autodoc

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
# torch and transformers must be there: modules compute with their constants when they are imported.
autodoc_mock_imports = [name for name in ("triton", "mpi4py") if find_spec(name) is None]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
default_role = "code"  # in docstrings one pair of backticks is code
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "topocomm"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"

linkcheck_timeout = 10
linkcheck_retries = 2
linkcheck_anchors = False


def import_without_jax() -> None:
    """Import topocomm.jax on a stand-in: Sphinx's own cannot, as that module calls JAX when it is imported."""
    jax = MagicMock()
    jax.make_jaxpr.return_value.return_value.effects = (None,)
    names = ("jax", "jax.numpy", "jax.experimental", "jax.extend", "jax.extend.core", "jax.interpreters")
    sys.modules.update(dict.fromkeys(names, jax))
    import_module("topocomm.jax")
    for name in names:
        del sys.modules[name]


def in_plain_words(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what Google docstrings mean literally and reStructuredText would read as markup, outside of `code`."""
    text = "\n".join(lines).split("`")
    text[::2] = [re.sub(r"(?<!\\)([*|])|(?<=\w)(_)(?=\W|$)", r"\\\1\2", part) for part in text[::2]]
    lines[:] = "`".join(text).split("\n")


def is_left_out(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out fields of named tuples of which nothing is said but their number; their class describes them."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def setup(app: Any) -> None:
    """Write the generated pages, and read docstrings as they are written."""
    if find_spec("jax") is None:
        import_without_jax()
    write_pages(ROOT / "docs/reference/generated")
    app.connect("autodoc-process-docstring", in_plain_words, priority=100)
    app.connect("autodoc-skip-member", is_left_out)
