"""`enable` in threads: generate for a streamer, ranks that share one model, and two calls at once."""

import contextvars
from threading import Thread

import pytest
import torch
import transformers

from attention.huggingface.generation import enable
from tests.attention.huggingface.test_enable import alone, assert_same, on_ranks
from tests.attention.huggingface.test_hf_layers import build, generate, prompt, small
from topocomm import run_local


@pytest.fixture(scope="module")
def llama():
    return build("Llama")


def in_a_thread(call):
    """What `call()` returns or raises in a thread of its own."""
    outcomes = []

    def run():
        try:
            outcomes.append(call())
        except Exception as error:  # noqa: BLE001 - looked at by the test
            outcomes.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return outcomes[0]


def test_generate_in_a_thread_as_streamers_need_it(llama):
    def work(comm):
        with enable(llama, comm, shards=small(1)) as sharding:
            streamer = transformers.TextIteratorStreamer(_Words(), timeout=60)
            made = in_a_thread(lambda: generate(llama, {k: v[1:] for k, v in prompt().items()}, streamer=streamer))
            return made, "".join(streamer), sharding.cache.get_seq_length()

    ((made, text, length),) = run_local(work, ranks=1)
    assert text.split() == [str(token) for token in made.sequences[0].tolist()]
    assert length == 39
    assert torch.equal(made.sequences, generate(llama, {k: v[1:] for k, v in prompt().items()}).sequences)


def test_a_stream_ends_where_generate_raises(llama):
    def work(comm):
        with enable(llama, comm):
            streamer = transformers.TextIteratorStreamer(_Words(), timeout=60)
            empty = torch.zeros((1, 0), dtype=torch.long)
            error = in_a_thread(lambda: llama.generate(empty, streamer=streamer))
            return error, "".join(streamer)

    ((error, text),) = run_local(work, ranks=1)
    assert "give at least one row" in str(error)
    assert text == ""


class _Words:
    """A tokenizer whose words are the numbers of tokens."""

    def decode(self, tokens, **_):
        return "".join(f"{int(token)} " for token in tokens)


def test_in_a_thread_where_ranks_share_the_model_the_context_tells_whose_call_it_is(llama):
    def call(_):
        context = contextvars.copy_context()
        refused = in_a_thread(lambda: generate(llama, prompt()))
        return refused, in_a_thread(lambda: context.run(generate, llama, prompt()))

    outcomes = on_ranks(llama, call)
    assert all("contextvars.copy_context().run" in str(refused) for refused, _ in outcomes)
    assert_same([made for _, made in outcomes], alone(llama))


def test_two_threads_at_once_are_refused(llama):
    def work(comm):
        refused = []

        class Meanwhile(transformers.generation.streamers.BaseStreamer):
            def put(self, _):
                refused.append(in_a_thread(lambda: generate(llama, prompt())))

            def end(self):
                pass

        with enable(llama, comm, shards=small(1)):
            row = {name: x[1:] for name, x in prompt().items()}
            return generate(llama, row, streamer=Meanwhile()).sequences, refused

    ((made, refused),) = run_local(work, ranks=1)
    assert refused and all("another thread generates on this rank" in str(error) for error in refused)
    assert torch.equal(made, generate(llama, {name: x[1:] for name, x in prompt().items()}).sequences)
