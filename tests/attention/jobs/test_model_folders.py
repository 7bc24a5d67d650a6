"""A path that is no folder of a model: what is said, and which folder of this machine was meant."""

from pathlib import Path

import pytest

from attention.jobs.model_folders import KNOWN, cache_directory, missing_model


def test_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TOPOCOMM_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "topocomm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "topocomm"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A folder with two models and a folder without; a cache with the known model, and one of huggingface_hub."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TOPOCOMM_CACHE_DIR", str(tmp_path / "cache"))
    for name in (
        "here/tiny-llama",
        "here/big-llama",
        "here/run/checkpoint-5",
        f"cache/models/{KNOWN['smollm2'].folder}",
        "hub/models--owner--fine-mistral/snapshots/0a1b",
    ):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "here/tiny-llama/model.safetensors").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("tiny_lama", "here/tiny-llama"),
        ("tiny-llama/model.safetensors", "here/tiny-llama"),
        ("run", "here/run/checkpoint-5"),
        ("smolm2", f"cache/models/{KNOWN['smollm2'].folder}"),
        ("owner/fine-mistral", "hub/models--owner--fine-mistral/snapshots/0a1b"),
        ("fine-mistrel", "hub/models--owner--fine-mistral/snapshots/0a1b"),
        ("xyz", None),
    ],
)
def test_the_nearest_folder_is_named(folders, monkeypatch, path, meant):
    monkeypatch.chdir(folders / "here")
    said = missing_model(Path(path))
    assert str(folders / "here" / path) in said and "nothing is downloaded" in said
    where = said.partition("; did you mean ")[2].removesuffix("?")
    assert Path(where) == (folders / meant if meant else Path())


def test_a_folder_with_a_config_is_one(folders):
    assert missing_model(folders / "here" / "big-llama") is None
