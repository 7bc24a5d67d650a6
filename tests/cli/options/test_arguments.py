"""Values of options: sizes, ranges of sizes, and the endpoints that hold ranks."""

import argparse

import pytest

from topocomm import PlanError, catalog
from topocomm.cli.options.arguments import (
    add_sizes,
    format_by_name,
    nccl_sizes,
    of,
    parse_bytes,
    parse_count,
    parse_ranks,
    parse_sizes,
    take_default_bytes,
)
from topocomm.operators.find import find_operator
from topocomm.planning.request import layout_of


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("16512", 16512),
        ("64KiB", 65536),
        (" 8 mib ", 8 << 20),
        ("64KB", 64000),
        ("3GB", 3 * 10**9),
        ("64K", 65536),
        ("1.5MiB", 3 << 19),
        ("0.5k", 512),
        ("2G", 2 << 30),
        ("1.5KB", 1500),
    ],
)
def test_bytes_in_binary_and_decimal_units(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "64 KiBB", "-1", "1.0001KiB", "1.5.5K", ".5K", "KiB", "9" * 19])
def test_bad_bytes_name_the_option(text):
    with pytest.raises(PlanError, match=r"^--max-scratch .*such as 16512"):
        parse_bytes(text, "--max-scratch")


@pytest.mark.parametrize(
    ("text", "number"), [("128", 128), ("64k", 65536), ("5.12M", None), ("2GiB", 2 << 30), ("16 KB", 16000)]
)
def test_counts(text, number):
    if number is not None:
        assert parse_count(text, "--context") == number
    else:
        with pytest.raises(PlanError, match=r"--context '5\.12M': expected a whole number such as 128, 64K, 1M"):
            parse_count(text, "--context")


@pytest.mark.parametrize(("operator", "taken"), [("sum", "65536"), ("attention.logsumexp", "65532"), ("welford", None)])
def test_without_bytes_64_kib_are_taken_in_whole_rows_and_said(operator, taken):
    args = argparse.Namespace(bytes=None, operator=operator)
    take_default_bytes(args)
    assert taken is None or args.bytes == taken
    assert args.note == f"no --bytes given: {args.bytes} bytes are taken"
    layout_of(find_operator(operator), int(args.bytes))
    given = argparse.Namespace(bytes="8", operator=operator)
    take_default_bytes(given)
    assert "note" not in given


def test_ranks_are_a_count_or_a_list():
    dgx = catalog("dgx-h100")
    assert parse_ranks(None, dgx) is None
    assert parse_ranks("3", dgx) == ("GPU0", "GPU1", "GPU2")
    assert parse_ranks("GPU5, GPU1", dgx) == ("GPU5", "GPU1")
    for text in ("0", "9", "-1"):
        with pytest.raises(PlanError, match=f"--ranks {text}: topology 'dgx-h100' has 8 endpoints; expected 1 to 8"):
            parse_ranks(text, dgx)


@pytest.mark.parametrize(
    ("text", "row_bytes", "rows"),
    [
        ("8:128:2", 4, (2, 4, 8, 16, 32)),
        ("8:16KiB:8", 516, (1, 7, 31)),
        ("8:20:2", 4, (2, 4, 5)),
        ("1KiB:1KiB:2", 4, (256,)),
        ("16512", 516, (32,)),
    ],
)
def test_sizes_in_rows(text, row_bytes, rows):
    assert parse_sizes(text, row_bytes) == rows


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("16513", ["--sizes 16513", "516 bytes", "expected 16512 or 17028"]),
        ("0", ["expected 516"]),
        ("8:16", ["FROM:TO:FACTOR"]),
        ("8:16:1", ["the factor over 1"]),
        ("8:16:2:3", ["FROM:TO:FACTOR"]),
        ("16:8:2", ["the first not above the second"]),
        ("0:8:2", ["at least 1, the first"]),
        ("8:x:2", ["--sizes 'x'"]),
    ],
)
def test_bad_sizes_are_named(text, parts):
    with pytest.raises(PlanError) as error:
        parse_sizes(text, 516)
    for part in parts:
        assert part in str(error.value)


def sizes_of(*words):
    parser = argparse.ArgumentParser()
    add_sizes(parser, "sizes")
    args = parser.parse_args(words)
    return nccl_sizes(args, given=args.sizes)


def test_sizes_as_nccl_tests_takes_them():
    assert sizes_of() is None
    assert sizes_of("--sizes", "8:64:2") == "8:64:2"
    assert sizes_of("-b", "8", "-e", "128M", "-f", "4") == "8:128M:4"
    assert sizes_of("--minbytes", "8", "--maxbytes", "1K") == "8:1K:2"
    assert sizes_of("-b64K") == "64K"
    assert parse_sizes(sizes_of("-b", "1K", "-e", "4K"), 4) == (256, 512, 1024)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-e", "8"], "-b is missing"),
        (["-b", "8", "-f", "2"], "-e is missing"),
        (["-b", "8", "--sizes", "8"], "do not go with --sizes"),
    ],
)
def test_half_a_range_is_refused(words, why):
    with pytest.raises(PlanError, match=why):
        sizes_of(*words)


def test_names_in_any_spelling():
    names = of(("reduce_scatter", "nccl-ring", "planned"))
    assert names("Reduce-Scatter, NCCL_RING,other") == "reduce_scatter,nccl-ring,other"
    assert parse_ranks("gpu5,Gpu1", catalog("dgx-h100")) == ("GPU5", "GPU1")
    with pytest.raises(PlanError, match="--ranks 5,1: expected a number of ranks, or endpoints by ids, as GPU5,GPU1"):
        parse_ranks("5,1", catalog("dgx-h100"))


@pytest.mark.parametrize(
    ("given", "output", "found"),
    [
        (None, "a.svg", "svg"),
        (None, "b/a.SVG", "svg"),
        ("json", "a.svg", "json"),
        (None, "a.txt", None),
        (None, "/dev/null", None),
        (None, "plan.2026-11", None),
        ("json", "a.png", "json"),
        (None, "svg", None),
        (None, None, None),
    ],
)
def test_the_ending_of_a_file_names_the_format(given, output, found):
    assert format_by_name(given, output, ("text", "json", "svg")) == found


def test_an_ending_of_no_format_is_refused():
    with pytest.raises(PlanError, match=r"--output p.png: no format has the ending .png; expected .json, .svg or .txt"):
        format_by_name(None, "p.png", ("text", "json", "msccl-xml", "svg"))
