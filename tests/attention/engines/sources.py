"""Functions of an installed engine, read from its source: importing it takes seconds, and on some machines a GPU."""

import ast
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest


def parameters(package, module, function):
    """The names of a function's parameters in the installed engine; skips the test where it is not installed."""
    (found,) = [
        node
        for node in tree(package, module).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == function
    ]
    return tuple(arg.arg for arg in (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs))


def classes(package, module):
    """The names that each class of a module assigns in its body."""
    return {
        node.name: {
            target.id
            for statement in node.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }
        for node in tree(package, module).body
        if isinstance(node, ast.ClassDef)
    }


def tree(package, module):
    """The syntax tree of a module of the engine."""
    return ast.parse(path(package, module).read_text())


def path(package, module):
    """The file of a module of the engine; skips the test where there is none."""
    spec = find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent.joinpath(*module.split(".")).with_suffix(".py")


def installed(package):
    """The engine's version, "unpacked" where no metadata say it; skips the test where it is not installed."""
    path(package, "__init__")
    try:
        return version(package)
    except PackageNotFoundError:
        return "unpacked"
