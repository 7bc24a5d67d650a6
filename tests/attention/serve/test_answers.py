"""Documents of OpenAI's protocols: its client reads them, whole and in pieces."""

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from attention.serve.answers import Answers, Progress
from attention.serve.protocol import parse

NEWS = [Progress(1, "x", 1, None), Progress(0, "a", 1, None), Progress(1, "", 2, None), Progress(0, "b", 2, "stop")]
LAST = Progress(1, "y", 3, "length")


def answers(*, chat, usage=True):
    asked = {"messages": [{"role": "user", "content": "q"}]} if chat else {"prompt": "q"}
    options = {"stream": True, "stream_options": {"include_usage": usage}, "n": 2}
    return Answers(parse({"model": "m", **asked, **options}, chat=chat, model="m"), "m", 5)


def test_whole():
    for chat, kind in ((True, ChatCompletion), (False, Completion)):
        made = answers(chat=chat)
        for news in NEWS:
            made.take(news)
        assert not made.done
        made.take(LAST)
        assert made.done
        read = kind.model_validate(made.whole(), strict=True)
        assert [choice.message.content if chat else choice.text for choice in read.choices] == ["ab", "xy"]
        assert [choice.finish_reason for choice in read.choices] == ["stop", "length"]
        assert (read.usage.prompt_tokens, read.usage.completion_tokens, read.usage.total_tokens) == (5, 5, 10)


def test_streams():
    for chat, kind in ((True, ChatCompletionChunk), (False, Completion)):
        made, documents = answers(chat=chat), []
        documents += made.opening()
        for news in (*NEWS, LAST):
            made.take(news)
            documents += made.chunks(news)
        closing = made.closing()
        read = [kind.construct(**document) for document in (*documents, *closing)]  # as the client does
        choices = [choice for chunk in read[:-1] for choice in chunk.choices]
        for index, text, reason in ((0, "ab", "stop"), (1, "xy", "length")):
            own = [choice for choice in choices if choice.index == index]
            assert "".join((one.delta.content or "") if chat else one.text for one in own) == text
            assert [one.finish_reason for one in own if one.finish_reason] == [reason]
            assert not chat or own[0].delta.role == "assistant"
        assert read[-1].choices == []
        assert read[-1].usage.total_tokens == 10
        assert all(document["usage"] is None for document in documents)


def test_no_usage_where_none_is_wanted():
    made = answers(chat=True, usage=False)
    made.take(LAST)
    assert not made.closing()
    assert all("usage" not in document for document in (*made.opening(), *made.chunks(LAST)))
