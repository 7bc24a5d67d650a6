"""A tiny language model on disk, with a tokenizer of its own; torch has one thread again after each job."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")


@pytest.fixture(autouse=True)
def _threads_as_before():
    """A job takes all cores, and the tests after it, beside others, would wait for them."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The directory of a random two-layer Llama with 160 positions and a tokenizer that knows letters."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from tests.attention.huggingface.tiny_llama import build

    path = tmp_path_factory.mktemp("models") / "tiny"
    letters = ["<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(path)
    build(vocab_size=len(letters), bos_token_id=None, pad_token_id=0).save_pretrained(path)
    return path
