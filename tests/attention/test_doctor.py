"""What `topocomm doctor` says of attention."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch

from attention import doctor
from attention.doctor import lines_of, sections
from attention.local.choice import Machine
from topocomm.doctor.report import GROUP, WIDTH, section_text

H100 = Machine("cuda", "NVIDIA H100", (9, 0), {"flashinfer": "flashinfer is not installed"})


def kernels(lines):
    """By kind of call, the kernel and what is said of others."""
    return {
        line[2:27].strip(): (line[28:45].strip(), line[46:]) for line in lines if line[2:27].strip() in doctor.CALLS
    }


def test_a_card_with_flash_attention_3():
    found = kernels(lines_of(H100))
    assert list(found) == list(doctor.CALLS)
    assert {name: kernel for name, (kernel, _) in found.items()} == {
        "decode": "FlashAttention-3",
        "decode, batch of 8": "FlashAttention-3",
        'decode, exact="float32"': "decode kernel",
        "decode, pages or lengths": "decode kernel",
        "decode, latents (MLA)": "FlashAttention-3",
        "prompt": "FlashAttention-3",
        'prompt, exact="float32"': "prefill kernel",
        "prompt, any positions": "prefill kernel",
        "prompt, merged (ring)": "prefill kernel",
    }
    rounded = "FlashAttention-3: rounds out to bfloat16; cuDNN: rounds out to bfloat16"
    assert found['prompt, exact="float32"'][1] == rounded
    assert "  FlashInfer, never: flashinfer is not installed" in lines_of(H100)


def test_a_card_with_torch_alone():
    missing = {name: f"{name} is not installed" for name in ("flash_attn_interface", "flashinfer")}
    lines = lines_of(Machine("cuda", "NVIDIA A100", (8, 0), missing))
    found = kernels(lines)
    assert found["prompt"][0] == "cuDNN"
    assert found["decode"] == ("decode kernel", "cuDNN: is for 17 queries and more")
    assert "  FlashAttention-3, never: flash_attn_interface is not installed" in lines
    assert any(line.startswith("  cuDNN: comes with torch") for line in lines)


def test_this_machine():
    ((title, lines),) = sections()
    assert "attention.local_attention" in title
    assert lines[0] == "CPU:" and kernels(lines)["prompt, any positions"][0] == "rows kernel"
    text = section_text(title, lines)
    assert all(len(line) <= WIDTH for line in text.splitlines()) and text.isascii()


def test_without_torch(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (line,) = sections()[0][1]
    assert line.startswith("attention needs torch, which is not installed; run: pip install 'torch")


def test_one_gpu_of_each_kind(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    names = {0: "H100", 1: "H100", 2: "A100"}
    monkeypatch.setattr(
        "attention.local.local_machine.machine_of",
        lambda device, *, gpu: Machine("cuda", names[device.index]) if gpu else Machine("cpu", "CPU"),
    )
    assert [machine.name for machine in doctor.machines()] == ["CPU", "H100", "A100"]


def test_it_is_registered():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"][GROUP].values()
    assert import_module(module) is doctor


def test_prompts_on_the_cpu():
    """With AMX, without it, and without the compiled part."""
    machines = {"torch flash, AMX": {}, "rows kernel": {"torch.amx": "no AMX"}}
    machines["torch flash, CPU"] = machines["rows kernel"] | {"native": "not built"}
    for kernel, missing in machines.items():
        found = kernels(lines_of(Machine("cpu", "CPU", None, missing)))
        assert found["prompt"][0] == kernel
        assert found['prompt, exact="float32"'][0] == ("blocks" if "native" in missing else "rows kernel")


@pytest.mark.parametrize("name", doctor.CALLS)
def test_calls_on_the_cpu(name):
    found = kernels(lines_of(Machine("cpu", "CPU")))
    assert (name in found) == (name not in doctor.CPU_LEAVES_OUT)


def test_a_card_with_flashinfer():
    lines = lines_of(Machine("cuda", "NVIDIA A100", (8, 0), {"flash_attn_interface": "not installed"}))
    found = {name: kernel for name, (kernel, _) in kernels(lines).items()}
    assert found["decode"] == "FlashInfer" and found["decode, batch of 8"] == "FlashInfer, batch"
    assert found["decode, latents (MLA)"] == "FlashInfer, MLA" and found["decode, pages or lengths"] == "decode kernel"
    for name in ("FlashInfer, batch: splits the keys of every sequence", "FlashInfer, MLA: reads latents once"):
        assert any(line.startswith(f"  {name}") for line in lines)
    blackwell = lines_of(Machine("cuda", "NVIDIA B200", (10, 0)))
    assert kernels(blackwell)["decode, latents (MLA)"][0] == "decode kernel"
    assert "  FlashInfer, MLA, never: is for compute capability 8.0 to 9.0, this is 10.0" in blackwell
