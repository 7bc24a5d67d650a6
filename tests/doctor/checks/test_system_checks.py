"""The machine that was found, hidden GPUs, the clock, and settings of this package."""

from dataclasses import replace

from tests.doctor.findings import found
from topocomm import TopologyError, catalog
from topocomm.doctor.checks import system_checks as machine


def test_topology():
    whole = replace(catalog("dgx-h100"), warnings=("NIC0: rate unknown", "No GPU used: nvidia-smi is not on PATH"))
    ok, unknown, hidden = machine.check_topology(whole)
    found(ok, "ok", "8 gpu endpoints on 1 host", whole.digest[:12])
    found(unknown, "warn", "NIC0: rate unknown", "topocomm inspect")
    found(hidden, "warn", "nvidia-smi is not on PATH", "--input FILE")
    (none,) = machine.check_topology(replace(whole, devices=(), links=(), pairs=()))
    found(none, "FAIL", "no endpoint")
    (broken,) = machine.check_topology(TopologyError("file.txt:3: odd"))
    found(broken, "FAIL", "file.txt:3: odd")


def test_hidden_gpus():
    assert machine.check_visible_gpus({}) == []
    (some,) = machine.check_visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"})
    found(some, "info", "CUDA_VISIBLE_DEVICES=0,1", "the others are hidden")
    (none,) = machine.check_visible_gpus({"HIP_VISIBLE_DEVICES": ""})
    found(none, "info", "all are hidden", "unset HIP_VISIBLE_DEVICES")


def test_clock(tmp_path):
    found(machine.check_clock(1e-9, tmp_path), "ok", "1 ns")
    found(machine.check_clock(0.016, tmp_path), "warn", "16000 us")
    source = tmp_path / "devices/system/clocksource/clocksource0/current_clocksource"
    source.parent.mkdir(parents=True)
    source.write_text("hpet\n")
    found(machine.check_clock(1e-9, tmp_path), "warn", "hpet", "clocksource=tsc")
    source.write_text("tsc\n")
    found(machine.check_clock(1e-9, tmp_path), "ok", "clock source tsc")


def test_settings(tmp_path):
    (ok,) = machine.check_settings({"TOPOCOMM_TIMEOUT_S": "20"})
    found(ok, "ok", "TOPOCOMM_TIMEOUT_S=20", "20 s")
    (bad,) = machine.check_settings({"TOPOCOMM_TIMEOUT_S": "soon"})
    found(bad, "FAIL", "'soon'", "positive number of seconds", "unset TOPOCOMM_TIMEOUT_S")
    (odd,) = machine.check_settings({"TOPOCOMM_TIMEOUT": "20"})
    found(odd, "warn", "TOPOCOMM_TIMEOUT is not known", "TOPOCOMM_TIMEOUT_S", "unset TOPOCOMM_TIMEOUT")
    file = tmp_path / "file"
    file.touch()
    (unwritable,) = machine.check_settings({"TOPOCOMM_RECORD_DIR": str(file)})
    found(unwritable, "warn", "cannot be written", "mkdir -p")
    (fresh,) = machine.check_settings({"TOPOCOMM_RECORD_DIR": str(tmp_path / "new/one")})
    found(fresh, "ok")
