"""Values of options: byte counts (16512, 64K, 1.5MiB), ranges of sizes, endpoints that hold ranks."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING

from topocomm.command_parser import respelled
from topocomm.errors import PlanError

if TYPE_CHECKING:
    from topocomm.topology.model import Topology

UNITS: dict[str, int] = {"": 1, "B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for unit, base in (("", 2**10), ("I", 2**10), ("IB", 2**10), ("B", 10**3))
}
"""K, Ki and KiB are 1024, as in nccl-tests; KB is 1000."""
TEXT_ENDINGS = ("txt", "text", "log", "out", "md")
"""Endings of files of text, which is the format without one."""
DEFAULT_BYTES = 1 << 16
"""What is planned and simulated without `--bytes`."""


def parse_bytes(text: str, option: str = "--bytes") -> int:
    """Parse a byte count, the value of `option`; as `parse_count`.

    Raises:
        PlanError: The text is no whole number of bytes.
    """
    return parse_count(text, option, "a whole number of bytes such as 16512, 64KiB, 64K or 1.5MiB")


def parse_count(text: str, option: str, expected: str = "a whole number such as 128, 64K, 1M or 5.5M") -> int:
    """Parse a number, the value of `option`; K, KiB, M, MiB, ... are binary, KB, MB, ... decimal.

    Raises:
        PlanError: The text is no whole number.
    """
    match = re.fullmatch(r"\s*([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(match[3].upper()) if match else None
    if match is not None and unit is not None:
        decimals = match[2] or ""
        count, left = divmod(int(match[1] + decimals) * unit, int(10 ** len(decimals)))
        if not left:
            return count
    raise PlanError(f"{option} {text!r}: expected {expected}{_meant_count(text)}")


def _meant_count(text: str) -> str:
    """A number in powers of ten, or with a longer unit, as it is written here, to end an error with."""
    power = re.fullmatch(r"([0-9]{1,9})[eE]([0-9]{1,2})", text)
    unit = re.fullmatch(r"([0-9.]+) *([KMGT])i?b(?:ytes?|/s|ps)", text, re.IGNORECASE)
    near = power[1] + "0" * int(power[2]) if power else unit[1] + unit[2] if unit else ""
    return near and f"; did you mean {near}?"


def add_operator(parser: argparse.ArgumentParser, words: str, default: str | None = None) -> None:
    """Add `--operator`, described by `words`: a registered name, or where one of the user's own is."""
    metavar, own = "NAME|FILE.py:NAME", "of your own: rise.py:RISE, or package.module:NAME"
    parser.add_argument("--operator", metavar=metavar, default=default, help=f"{words}; {own}")


def add_sizes(parser: argparse.ArgumentParser, words: str) -> None:
    """Add `--sizes A:B:FACTOR`, described by `words`, and the options of nccl-tests that say the same."""
    parser.add_argument("--sizes", metavar="A:B:FACTOR", help=words)
    add_nccl_sizes(parser, "--sizes B:E:F")


def add_nccl_sizes(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add `-b`, `-e` and `-f` of nccl-tests."""
    own = parser.add_argument_group(f"sizes as nccl-tests takes them: {meaning}")
    own.add_argument("-b", "--minbytes", metavar="B", help="the first size, the only one without -e")
    own.add_argument("-e", "--maxbytes", metavar="E", help="the last size")
    own.add_argument("-f", "--stepfactor", metavar="F", help="factor from each to the next (default 2)")


def take_one_size(args: argparse.Namespace) -> None:
    """Let `-b` alone be `--bytes`, of a command that has both."""
    if args.bytes is args.maxbytes is args.stepfactor is None:
        args.bytes, args.minbytes = args.minbytes, None


def check_outputs(args: argparse.Namespace) -> None:
    """Check that the files to be written have folders, before work begins.

    Raises:
        PlanError: One has not, or is a folder itself.
    """
    for option in ("output", "save", "trace"):
        path = vars(args).get(option) or ""
        folder = os.path.dirname(path)
        if os.path.isdir(path):
            raise PlanError(f"--{option} {path}: expected a file, not a folder; name a file in it")
        if folder and not os.path.isdir(folder):
            raise PlanError(f"--{option} {path}: expected a folder {folder}; make it, or name another")


def take_default_bytes(args: argparse.Namespace) -> None:
    """Let `--bytes` be 64 KiB in whole rows of the operator, or its one value, where not given; stderr says so last."""
    if args.bytes is None:
        from topocomm.operators.find import find_operator

        operator = find_operator(args.operator or "sum")
        row_bytes = operator.default_layout(1).row_bytes
        rows = max(DEFAULT_BYTES // row_bytes, 1) if operator.splittable else 1
        args.bytes = str(rows * row_bytes)
        whole = "" if operator.splittable else f", one value of operator {operator.name!r}"
        args.note = f"no --bytes given: {args.bytes} bytes are taken{whole}"


def nccl_sizes(args: argparse.Namespace, others: str = "--sizes", given: str | None = None) -> str | None:
    """Return what `-b`, `-e` and `-f` say as `A:B:FACTOR`, or one size; without them what is `given` by `others`.

    Raises:
        PlanError: Both are given, or `-b` is missing.
    """
    if args.minbytes is args.maxbytes is args.stepfactor is None:
        return given
    if given is not None:
        raise PlanError(f"-b, -e and -f do not go with {others}: they say the same")
    if args.minbytes is None or (args.maxbytes is None and args.stepfactor is not None):
        missing = "-b" if args.minbytes is None else "-e"
        raise PlanError(f"{missing} is missing: give sizes as -b 8 -e 128M -f 2, or one as -b 64K")
    return args.minbytes if args.maxbytes is None else f"{args.minbytes}:{args.maxbytes}:{args.stepfactor or 2}"


def range_bytes(text: str) -> tuple[int, ...]:
    """Parse the bytes of `--sizes`, one or FROM:TO:FACTOR.

    Raises:
        PlanError: The text is neither.
    """
    expected = "one size, or FROM:TO:FACTOR such as 8:128MiB:2, the factor over 1"
    if ":" not in text and "-" not in text:
        return (parse_count(text, "--sizes", expected),)
    return parse_range(text, "--sizes", expected, parse_bytes)


def parse_range(text: str, option: str, expected: str, parse: Callable[[str, str], int]) -> tuple[int, ...]:
    """Parse FROM:TO:FACTOR: FROM, times FACTOR as long as that is below TO, and TO.

    Raises:
        PlanError: The text is something else.
    """
    first, _, rest = text.partition(":")
    last, _, factor = rest.partition(":")
    if not (factor.isascii() and factor.isdecimal() and int(factor) > 1):
        raise PlanError(f"{option} {text!r}: expected {expected}")
    value, last_value = parse(first, option), parse(last, option)
    if not 0 < value <= last_value:
        raise PlanError(f"{option} {text}: expected values of at least 1, the first not above the second")
    values = []
    while value < last_value:
        values.append(value)
        value *= int(factor)
    return (*values, last_value)


def parse_sizes(text: str, row_bytes: int) -> tuple[int, ...]:
    """Parse FROM:TO:FACTOR, or one size, to numbers of whole rows.

    Sizes of a range are rounded down to whole rows, at least one, as nccl-tests does; a single size must be whole.

    Raises:
        PlanError: The text is neither, or the size is no whole number of rows.
    """
    sizes = range_bytes(text)
    if ":" not in text and (sizes[0] % row_bytes or not sizes[0]):
        from topocomm.planning.request import nearest_sizes

        raise PlanError(f"--sizes {text}: a row is {row_bytes} bytes; expected {nearest_sizes(sizes[0], row_bytes)}")
    return tuple(dict.fromkeys(max(size // row_bytes, 1) for size in sizes))


def format_by_name(given: str | None, output: str | None, formats: Iterable[str]) -> str | None:
    """Return the format asked for: the one given, else that of the ending of the output file; None for text.

    Raises:
        PlanError: The ending is that of no format, as `.png`.
    """
    if given or not output:
        return given
    ending, known = PurePath(output).suffix.removeprefix(".").lower(), list(formats)
    if ending in known:
        return ending
    if ending[:1].isalpha() and ending not in TEXT_ENDINGS:
        endings = ", ".join(f".{name}" for name in known if name != "text" and "-" not in name)
        raise PlanError(
            f"--output {output}: no format has the ending .{ending}; expected {endings} or .txt, or --format NAME, "
            f"one of {', '.join(known)}"
        )
    return None


def of(names: Iterable[str]) -> Callable[[str], str]:
    """Return the type of an option that takes names, one or several by commas, in any spelling (`respelled`)."""
    return lambda text: ",".join(respelled(name.strip(), names) or name.strip() for name in text.split(","))


def parse_ranks(text: str | None, topology: Topology) -> tuple[str, ...] | None:
    """Parse `--ranks`, a count of first endpoints or a list of ids in any case, to endpoints; None if not given.

    Raises:
        PlanError: The topology has fewer endpoints than the count, or the list has numbers.
    """
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        names = [part.strip() for part in text.split(",")]
        if all(name.isdecimal() for name in names):
            ids = ",".join(topology.endpoints[int(name)] for name in names if int(name) < len(topology.endpoints))
            raise PlanError(f"--ranks {text}: expected a number of ranks, or endpoints by ids, as {ids}")
        spelled = tuple(respelled(name, topology.endpoints) or name for name in names)
        first, _, last = (respelled(part, topology.endpoints) or "" for part in text.partition("-"))
        if first and last and spelled[0] not in topology.endpoints:
            run = topology.endpoints[topology.endpoints.index(first) : topology.endpoints.index(last) + 1]
            raise PlanError(f"--ranks {text}: expected endpoints by commas; did you mean {','.join(run)}?")
        return spelled
    count, most = int(text), len(topology.endpoints)
    if not 1 <= count <= most:
        raise PlanError(f"--ranks {count}: topology {topology.name!r} has {most} endpoints; expected 1 to {most}")
    return topology.endpoints[:count]
