"""Parsers of commands that take names in any spelling, and say what a wrong word was meant to be.

The commands of topocomm are read by them, and those of packages built on it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_LISTED = re.compile(r"'([^']+)'.*(?: of| has| register| are) ([^\s,;']+(?:, [^\s,;']+)+)")
"""A quoted word, and after it the names that are expected."""


def respelled(word: str, names: Iterable[str]) -> str | None:
    """Return the name that differs from a word in case, `-`, `_` and blanks at most; None if there is none."""
    names = list(names)
    return word if word in names else next((name for name in names if _plain(name) == _plain(word)), None)


def nearest(word: str, names: Iterable[str], meanings: Mapping[str, str] | None = None) -> str | None:
    """Return the name that a word was probably meant to be; None if none is near.

    Args:
        word: What was written.
        names: What could have been meant.
        meanings: Other words, in small letters without `-` and `_`, each with the names it stands for, by blanks.
    """
    from difflib import get_close_matches

    wanted, by_plain = _plain(word), {_plain(name): name for name in names}
    for meant in (meanings or {}).get(wanted, "").split():
        if _plain(meant) in by_plain:
            return meant
    close = get_close_matches(wanted, by_plain, 1, 0.8)
    if not close and len(wanted) > 2:
        close = sorted(
            (name for name in by_plain if wanted in name), key=lambda name: (name.find(wanted) > 0, len(name))
        )
    close = close or get_close_matches(wanted, by_plain, 1, 0.6)
    return by_plain[close[0]] if close else None


def did_you_mean(word: str, names: Iterable[str], meanings: Mapping[str, str] | None = None) -> str:
    """Return `; did you mean NAME?` to end an error with, and nothing where no name is near; as `nearest`."""
    name = nearest(word, names, meanings)
    return "" if name is None else f"; did you mean {name}?"


def with_suggestion(message: str, meanings: Mapping[str, str] | None = None) -> str:
    """Return an error with the name that its quoted word was meant to be, if it lists those expected in its place."""
    match = _LISTED.search(message)
    return message if match is None else message + did_you_mean(match[1], match[2].split(", "), meanings)


class CommandParser(argparse.ArgumentParser):
    """A parser, and with `add_subparsers` one of commands, that knows near misses of its options and choices.

    Attributes:
        meanings: Names of options, choices and commands by other words for the same; see `nearest`.
    """

    meanings: Mapping[str, str] = {}

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse does, but what is not known is an error, of the command that it was given to."""
        words = list(sys.argv[1:] if args is None else args)
        commands = self.commands()
        place = next((i for i, word in enumerate(words) if not word.startswith("-")), None)
        if commands and place is not None:
            words[place] = respelled(words[place], commands) or words[place]
        self._check_options(words)
        found, left = super().parse_known_args(words, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}{self._joined(words, left) or self.meant_by(left[0])}")
        return found, left

    def error(self, message: str) -> NoReturn:
        """End the process with one line and status 2."""
        self.exit(2, f"{self.prog}: error: {with_suggestion(message, self.meanings)}\n")

    def meant_by(self, word: str) -> str:
        """Return what an argument without its option was meant to be, to end an error with."""
        return next((f"; did you mean {option} {match}?" for option, match in self._choices(word)), "")

    def _joined(self, words: Sequence[str], left: Sequence[str]) -> str:
        """Return the value that is one with the words left over, which blanks cut in two, to end an error with."""
        place = words.index(left[0]) if left[0] in words else 0
        option, value = words[max(place - 2, 0) : place] if place > 1 else ("", "")
        metavar = str(getattr(self._option_string_actions.get(option), "metavar", None))
        if "," in metavar:
            return f"; did you mean {option} {','.join(each.strip(',') for each in (value, *left))}?"
        is_size = re.fullmatch(r"[\d.]+ [KMGT]?i?B", " ".join([value, *left]), re.IGNORECASE)
        return f"; did you mean {option} {value}{left[0]}?" if is_size else ""

    def owners(self, option: str) -> Sequence[str]:
        """Return the commands, as one types them, that have an option which this one lacks."""
        return ()

    def commands(self) -> Mapping[str, argparse.ArgumentParser]:
        """Return the parsers of the commands, by name; none where there are no commands."""
        groups = (action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return next(groups, {})

    def _check_options(self, words: Sequence[str]) -> None:
        """End with an error at an unknown option: argparse would miss required arguments first."""
        known = self._option_string_actions
        for before, word in zip(("", *words), words, strict=False):
            if word == "--" or (self.commands() and not word.startswith("-")):
                return
            name = word.partition("=")[0]
            if not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word) or " " in word or name in known:
                continue
            if before in known and re.match(r"-[\d.]", word):
                self.error(f"argument {before}: expected nothing below 0, got {word}")
            is_long = name.startswith("--")
            if is_long and any(option.startswith(name) for option in known):
                continue  # abbreviated; argparse knows whether to one option only
            if not is_long and name[:2] in known and f"-{name}" not in known:
                continue  # a value without a blank: -n4
            self.error(f"unrecognized arguments: {word}{self._remedy(name)}")

    def _remedy(self, name: str) -> str:
        """Return what to do about an unknown option, to end an error with."""
        if self.commands():
            return "; options come after the command"
        own = [option for option in self._option_string_actions if option.startswith("--")]
        by_value = next((f"{option} {match}" for option, match in self._choices(name)), None)
        known_as = nearest(name, own, self.meanings) if _plain(name) in self.meanings else None
        if by_value or known_as:
            return f"; did you mean {by_value or known_as}?"
        if owners := self.owners(name):
            return f"; it belongs to {', '.join(f'`{owner}`' for owner in owners)}"
        return did_you_mean(name, own, self.meanings)

    def _choices(self, word: str) -> Iterator[tuple[str, str]]:
        """Options of which a word is a choice, with it."""
        for action in self._actions:
            names = action.choices if action.option_strings else None
            if names is not None and (match := respelled(word, names)) is not None:
                yield action.option_strings[-1], match

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if action.choices and action.type is None and not isinstance(action, argparse._SubParsersAction):
            return respelled(arg_string, action.choices) or arg_string
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            kind = {int: "a whole number", float: "a number"}.get(action.type)  # type: ignore[call-overload]
            if kind is None:
                raise
            number = re.match(r"\d+(\.\d+)?(?=[a-z]+$)" if action.type is float else r"\d+(?=[a-z]+$)", arg_string)
            near = f"; did you mean {number[0]}?" if number else ""
            raise argparse.ArgumentError(action, f"expected {kind}, got {arg_string!r}{near}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = ", ".join(map(repr, action.choices))
            near = did_you_mean(str(value), action.choices, self.meanings)
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {names}){near}")


def _plain(word: str) -> str:
    return word.casefold().replace("-", "").replace("_", "").replace(" ", "")
