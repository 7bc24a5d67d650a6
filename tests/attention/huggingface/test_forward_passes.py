"""What forward passes begin and end: torch's modes stay out of them, and come back however they end."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from attention.huggingface.generation import enable
from tests.attention.huggingface.tiny_llama import generate
from topocomm import run_local


class Seen(TorchFunctionMode):
    """Notes what torch asks it about."""

    def __init__(self):
        super().__init__()
        self.functions = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.functions.append(function)
        return function(*args, **(kwargs or {}))


def asked():
    with Seen() as seen:
        torch.ones(1)
    return bool(seen.functions)


def test_modes_stay_out_of_passes(llama, prompt):
    def work(comm):
        with enable(llama, comm), Seen() as seen:
            generate(llama, prompt, max_new_tokens=2)
        return seen.functions

    for functions in run_local(work, ranks=2):
        assert torch.argmax in functions and torch.nn.functional.linear not in functions


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_modes_come_back_where_a_pass_is_interrupted(llama, prompt, error):
    """Torch calls no hook after a KeyboardInterrupt."""

    def interrupt(*_):
        raise error

    alone = generate(llama, prompt, max_new_tokens=3).sequences

    def work(comm):
        with enable(llama, comm) as sharding:
            hook = llama.model.norm.register_forward_pre_hook(interrupt)
            with pytest.raises(error):
                generate(llama, prompt)
            assert asked()
            with pytest.raises(error), torch.no_grad():
                llama(**prompt, past_key_values=sharding.cache.fresh())
            hook.remove()
            tokens = generate(llama, prompt, max_new_tokens=3).sequences
        return tokens, asked()

    for tokens, works in run_local(work, ranks=1):
        assert torch.equal(tokens, alone) and works
