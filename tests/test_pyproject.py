"""The bounds of pyproject.toml: what the image of a GPU has is within them, and `make test-oldest` has the lowest."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import topocomm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGE = {
    "python": "3.12.0",
    "numpy": "2.5.0",
    "torch": "2.11.0",  # pins triton 3.6.0 and nvidia-nccl-cu13 2.28.9
    "triton": "3.6.0",
    "nvidia-nccl-cu13": "2.28.9",
    "cupy-cuda13x": "14.2.0",
    "transformers": "5.17.0",
}
EXTRAS = ("attention", "nccl-cu13", "demo")
NOT_LOWEST = {"torch"}  # its newest build for CPUs takes any Triton; those for GPUs pin one


def test_the_version_has_one_source():
    """The metadata of an editable install may be older than the file, by as much as the last release."""
    assert topocomm.__version__ == version("topocomm")
    assert Version(topocomm.__version__) <= Version(PROJECT["version"])
    with pytest.raises(AttributeError, match="no attribute 'version'"):
        topocomm.version  # noqa: B018


def requirements(*extras):
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return {made.name: made for made in map(Requirement, lines)}


def pins(name):
    lines = (ROOT / "tools" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_image_of_a_gpu_is_within_the_bounds():
    wanted = requirements(*EXTRAS) | {"python": Requirement(f"python{PROJECT['requires-python']}")}
    assert wanted.keys() >= IMAGE.keys()
    outside = [str(wanted[name]) for name, version in IMAGE.items() if version not in wanted[name].specifier]
    assert not outside


def test_the_oldest_run_has_the_lower_bounds():
    told = pins("constraints-oldest.txt")
    for name, wanted in requirements("attention").items():
        (bound,) = (one.version for one in wanted.specifier if one.operator == ">=")
        assert Version(told[name]) == Version(bound) or name in NOT_LOWEST, name


def test_the_run_without_torch_has_the_numpy_of_the_image():
    told = pins("constraints-python312.txt")
    assert re.match(r"\d+\.\d+", told["numpy"])[0] == re.match(r"\d+\.\d+", IMAGE["numpy"])[0]
    assert not {"torch", "triton"} & told.keys()
