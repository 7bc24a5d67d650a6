"""Functions that torch.compile leaves alone: ranks meet in them, and they run as they are between the graphs it makes.

Dynamo, which traces for torch.compile, would otherwise follow them into the planner and into compiled code. It looks
for two marks: an attribute of a function that it would inline, and a strategy of a code object that is about to run,
with all that it calls. Neither costs a call outside of torch.compile anything; `torch.compiler.disable` imports torch,
and puts a function around each.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, TypeVar

REASON = "ranks meet in it, or compiled code runs, which Dynamo cannot trace"
T = TypeVar("T")

_codes: list[CodeType] = []
"""Those that get their strategy when Dynamo is imported."""


def skipped_by_dynamo(target: T) -> T:
    """Let torch.compile skip a function, or all methods of a class, and what they call; imports no torch.

    Put it innermost: the wrapper that another decorator returns shares its code with all that this ever wrapped.
    """
    members = [target] if isinstance(target, FunctionType) else vars(target).values()
    functions = [x for x in (getattr(member, "__func__", member) for member in members) if isinstance(x, FunctionType)]
    for function in functions:
        vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=REASON)
    _codes.extend(function.__code__ for function in functions)
    if "torch" in sys.modules:
        _skip()
    elif _BeforeDynamo not in sys.meta_path:
        sys.meta_path.insert(0, _BeforeDynamo)
    return target


class _BeforeDynamo:
    """Finds no module; hears of Dynamo's import, which comes before the first frame is traced."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch._dynamo":
            _skip()


def _skip() -> None:
    with suppress(ImportError, AttributeError):  # names private to torch: without them torch.compile traces on
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        while _codes:
            eval_frame.set_code_exec_strategy(_codes.pop(), eval_frame._FrameExecStrategy(skip, skip))
