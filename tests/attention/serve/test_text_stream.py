"""Pieces add up to the text, and nothing of a stop text comes out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.serve.text_stream import TextStream


def decode(tokens):
    """Tokens are bytes."""
    return bytes(tokens).decode(errors="replace")


def stream(data, stops):
    made, pieces = TextStream(decode, stops), []
    for token in data:
        pieces.append(made.add(token))
        if made.stopped:
            return made, pieces
    return made, [*pieces, made.finish()]


@given(st.text("abé€😀 "), st.lists(st.text("abé", min_size=1, max_size=4), max_size=3))
def test_pieces_are_the_text_up_to_the_first_stop(text, stops):
    made, pieces = stream(text.encode(), tuple(stops))
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    got = "".join(pieces)
    assert made.stopped == bool(ends)
    # Where one stop text ends before another that began earlier, the answer has ended by then.
    assert text.startswith(got)
    assert not any(stop in got for stop in stops)
    assert got == text if not ends else len(got) >= min(ends)
    if len(stops) == 1 and ends:
        assert got == text[: ends[0]]


def test_a_character_comes_when_it_is_whole():
    made = TextStream(decode, ())
    assert [made.add(byte) for byte in "a😀b".encode()] == ["a", "", "", "", "😀", "b"]


def test_the_beginning_of_a_stop_text_is_held_back():
    made = TextStream(decode, ("STOP",))
    assert [made.add(byte) for byte in b"aSTxSTO"] == ["a", "", "", "STx", "", "", ""]
    assert made.finish() == "STO"


@pytest.mark.parametrize("data", [b"\xff" * 9, b"a\xf0\x9f"])
def test_bytes_that_are_no_character_come_too(data):
    assert "".join(stream(data, ())[1]) == decode(data)


def test_a_token_that_depends_on_its_neighbour():
    """As where a decoder drops the space before the first word."""
    words = ["one", "two", "three"]
    made = TextStream(lambda tokens: " ".join(words[token] for token in tokens), ())
    assert [made.add(token) for token in (0, 1, 2)] == ["one", " two", " three"]
