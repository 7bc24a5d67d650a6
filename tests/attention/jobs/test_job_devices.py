"""Where a job computes."""

from types import SimpleNamespace

import pytest
import torch

from attention.__main__ import main
from attention.jobs import job_launch as devices


@pytest.mark.parametrize("command", [["decode"], ["generate", "--model=smollm2", "--prompt=Hello"]])
def test_without_a_gpu_it_is_bad_input(capsys, monkeypatch, command):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([*command, "--device=cuda"]) == 2
    assert "error: --device cuda: torch sees no GPU here" in capsys.readouterr().err


def test_ranks_take_the_gpu_of_the_topology_or_the_visible_ones_in_turn(monkeypatch):
    chosen, streams = [], []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "Stream", lambda index: f"a stream of {index}")
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)

    def of(rank, gpu, device="cuda", **how):
        return devices.device_of_rank(SimpleNamespace(rank=rank, gpu=gpu), device, **how)

    assert of(3, None, "cpu") == torch.device("cpu") and chosen == []
    assert [of(rank, None).index for rank in range(3)] == [0, 1, 0]
    assert of(0, 1).index == 1
    assert [of(rank, None, shared=True).index for rank in range(2)] == [0, 0]
    assert streams == [f"a stream of {index}" for index in chosen]  # threads that shared one would wait for ever
    monkeypatch.setattr(devices, "launched_as", lambda: (1, 2))
    assert of(1, None, shared=True).index == 1
    assert chosen == [0, 1, 0, 1, 0, 0, 1] and len(streams) == 6


@pytest.mark.parametrize(
    ("command", "prepared"),
    [(["--device=cuda", "--ranks=2"], True), (["--device=cuda"], False), (["--device=cpu", "--ranks=2"], False)],
)
def test_cuda_is_prepared_for_ranks_on_threads_before_it_starts(monkeypatch, command, prepared):
    seen = []
    monkeypatch.setattr(devices, "prepare_for_threads", lambda: seen.append("prepared"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append("CUDA") or False)
    main(["decode", *command, "--context=64", "--steps=1", "--heads=3", "--kv-heads=2"])
    on_gpu = "--device=cuda" in command
    assert seen == ["prepared"] * prepared + ["CUDA"] * on_gpu


def test_processes_need_no_preparation(monkeypatch):
    monkeypatch.setattr(devices, "prepare_for_threads", lambda: pytest.fail("ranks are processes"))
    monkeypatch.setattr(devices, "launched_as", lambda: (1, 2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    devices.check_device("cuda", 2)
