"""The build backend: scikit-build-core, with the wheel of Zig for a C compiler on machines that have none."""

from __future__ import annotations

import os
import shutil
import sys

from scikit_build_core import build as backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

Settings = dict[str, list[str] | str] | None
COMPILER_WHEEL = "ziglang>=0.13"

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what a wheel is built with, beside `build-system.requires`."""
    return [*backend.get_requires_for_build_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return what an editable install is built with, beside `build-system.requires`."""
    return [*backend.get_requires_for_build_editable(config_settings), *_compiler()]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build a wheel and return its name."""
    _choose_compiler()
    name: str = backend.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the extensions beside their sources, and return the name of a wheel that points there."""
    _choose_compiler()
    name: str = backend.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def _compiler() -> list[str]:
    """The wheel of a C compiler, where the machine has none."""
    return [] if os.environ.get("CC") or shutil.which("cc") else [COMPILER_WHEEL]


def _choose_compiler() -> None:
    if _compiler():
        # Told nothing, Zig compiles for the processor that it runs on; the folds called baseline must run on any.
        os.environ["CC"] = f"{sys.executable} -m ziglang cc -mcpu=baseline"
