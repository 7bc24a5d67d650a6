"""The keyword arguments that type checkers know are those that the functions take."""

from inspect import Parameter, signature

import pytest

from attention import (
    PreparedDecode,
    ring_attention,
    ring_decode,
    three_allreduce_decode,
    tree_decode,
    ulysses_attention,
)
from attention.array_types import DecodeArguments, SequenceArguments, StepArguments, TreeArguments

OF_OVERLOADS = {"return_lse", "out", "ring"}
"""Arguments that overloads name themselves."""


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (tree_decode, TreeArguments),
        (PreparedDecode.step, StepArguments),
        (ring_decode, DecodeArguments),
        (three_allreduce_decode, DecodeArguments),
        (ring_attention, SequenceArguments),
        (ulysses_attention, SequenceArguments),
    ],
)
def test_keyword_arguments_are_typed_as_they_are(function, arguments):
    named = {x.name for x in signature(function).parameters.values() if x.kind is Parameter.KEYWORD_ONLY}
    assert named - OF_OVERLOADS == set(arguments.__annotations__)
