"""A rank is lost while a model generates, and the others go on: for tests on threads and under mpirun."""

import torch
import transformers

from topocomm import RankFailedError

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "vocab_size": 199,
    "max_position_embeddings": 160,
    "initializer_range": 0.25,
    "eos_token_id": None,
}
LIMIT = 1e-3


class Died(BaseException):
    """The end of a rank on a thread."""


def leave(comm):
    """The rank of this thread ends: said to the communicator in use, which may be one that `shrink` has made."""
    comm.session.transport.world.leave(comm.rank)


def build(**changes):
    """A random model with large weights: a key that is lost or counted twice changes its tokens."""
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes})).eval()


def prompt(rows=2, tokens=37):
    """Rows of which the first has padding on its left."""
    ids = torch.randint(3, 199, (rows, tokens), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def generate(model, inputs, length, **options):
    """Greedy, up to `length` tokens, the prompt among them."""
    return model.generate(
        **inputs, max_length=length, do_sample=False, pad_token_id=0, return_dict_in_generate=True, **options
    )


def go_on(model, inputs, length, cache, comm, seen=None):
    """Generate until there are `length` tokens, over whichever ranks are left; returns (output, cache, losses)."""
    losses = []
    while True:
        try:
            if cache.comm is not comm:
                losses.append(cache.recover(comm))
                inputs = {**inputs, **cache.inputs}
                if seen is not None:
                    seen(cache)
            return generate(model, inputs, length, past_key_values=cache, output_logits=True), cache, losses
        except RankFailedError:
            comm = comm.shrink()
