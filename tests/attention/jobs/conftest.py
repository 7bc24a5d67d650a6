"""A tiny language model on disk, with a tokenizer of its own."""

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The directory of a random two-layer Llama with 160 positions and a tokenizer that knows letters."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    path = tmp_path_factory.mktemp("models") / "tiny"
    letters = ["<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(path)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        intermediate_size=128,
        vocab_size=len(letters),
        max_position_embeddings=160,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path
