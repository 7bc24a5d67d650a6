"""What tensors of a GPU say about who sees whom, made where it is asked for."""

import torch

from attention import Spec
from attention.gpu.masks import device_visibility
from attention.visibility import Masking

CPU = torch.device("cpu")


def test_lengths_beyond_the_keys_and_below_0_are_kept_within():
    def visibility(lengths):
        made = device_visibility("test", (3, 2, 2, 8), 10, Spec(causal=True), Masking(), CPU)
        made.on_device = Masking(kv_lengths=torch.tensor(lengths))  # those of a GPU are not looked at
        return made

    wanted, found = visibility([10, 0, 4]), visibility([1 << 40, -7, 4])
    for name in ("low", "high", "queries", "keys"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
