"""The streamer of `generate`: the prompt is no token, times begin at the context, and hooks are gone afterwards."""

from types import SimpleNamespace

import torch

from attention.jobs.progress import Meter


def model_of(layers):
    decoder = torch.nn.Module()
    decoder.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(layers))
    return SimpleNamespace(get_decoder=lambda: decoder), decoder.layers


def test_times_of_the_first_token_and_of_the_others(monkeypatch):
    model, _ = model_of(1)
    now_s = iter([10.0, 12.5, 13.0, 15.0])
    monkeypatch.setattr("attention.jobs.progress.time.perf_counter", lambda: next(now_s))
    with Meter(model, 3, show=False) as meter:
        meter.put(torch.zeros(1, 7))  # the prompt
        for _ in range(3):
            meter.put(torch.zeros(1))
        meter.end()
    assert (meter.first_token_s, meter.other_tokens_s) == (2.5, 2.5)


def test_a_bar_over_the_layers_and_one_over_the_tokens(capsys):
    model, layers = model_of(4)
    with Meter(model, 2, show=True) as meter:
        for layer in layers:
            layer(torch.zeros(1))
        meter.put(torch.zeros(1, 7))
        meter.put(torch.zeros(1))
        assert not any(layer._forward_hooks for layer in layers)
        meter.put(torch.zeros(1))
    said = capsys.readouterr().err
    assert "prefill: 100%" in said and "4/4" in said
    assert "decode: 100%" in said and "2/2" in said
