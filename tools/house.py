"""Figures of the code base, and the rules that keep it in order.

    python tools/house.py [--all]

Print modules, lines and the longest function of every folder. End with status 1, naming the place, on an import circle
(imports for types count), a folder of over 15 modules, a file of over 400 lines, a function body of over 60 lines
outside kernels, a basename that means two things, and a module without a test file of its name.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grimp
import networkx as nx

PACKAGES = ("topocomm", "attention")
PROGRAMS = ("tools",)
MOST_MODULES, MOST_LINES, MOST_BODY = 15, 400, 60
KERNELS = ("_kernel.py", "/kernels/", "gpu_")
"""Parts of paths of kernel files, whose functions may be long: a compiled function is one launch."""
TWINS = {
    "shift": "one exchange, in host and in device memory",
    "agreement": "ranks that agree before they wait for each other, in both packages",
}
"""Basenames that modules share because they do the same job for another device or package."""


class Module(NamedTuple):
    """One file.

    Attributes:
        path: From the root of the repository.
        lines: How many.
        longest: Lines of its longest function body, docstring and comments left out, and the function's name.
    """

    path: Path
    lines: int
    longest: tuple[int, str]


def main() -> int:
    """Print the figures and the faults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="print every folder, not only the packages' totals")
    args = parser.parse_args()
    modules = [module for root in (*PACKAGES, *PROGRAMS) for module in modules_below(Path(root))]
    folders = by_folder(modules)
    if args.all:
        print_folders(folders)
    for root in PACKAGES:
        inside = [module for module in modules if module.path.parts[0] == root]
        print(f"{root}: {len(inside)} modules, {sum(module.lines for module in inside):,} lines")
    faults = [*circles(), *crowded(folders), *long_files(modules), *homonyms(modules), *untested(modules)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def modules_below(root: Path) -> Iterator[Module]:
    """Yield all modules below a folder; `__init__.py` only if it has code."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        if path.name == "__init__.py" and len(tree.body) <= 1:
            continue
        bodies = [(body_lines(node, text), node.name) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        yield Module(path, text.count("\n"), max(bodies, default=(0, "")))


def body_lines(function: ast.FunctionDef, text: str) -> int:
    """Count the lines of code of a function's body, without docstring, comments and blank lines."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 0
    lines = text.splitlines()[body[0].lineno - 1 : function.end_lineno]
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def by_folder(modules: list[Module]) -> dict[Path, list[Module]]:
    """Group modules by folder."""
    found: dict[Path, list[Module]] = defaultdict(list)
    for module in modules:
        found[module.path.parent].append(module)
    return dict(found)


def print_folders(folders: dict[Path, list[Module]]) -> None:
    """Print a line per folder."""
    print(f"{'folder':44} {'modules':>7} {'lines':>6}  longest function")
    for folder, inside in sorted(folders.items()):
        size, name = max(module.longest for module in inside)
        print(f"{folder!s:44} {len(inside):7} {sum(module.lines for module in inside):6}  {size} {name}")


def circles() -> Iterator[str]:
    """Find modules that import each other, directly or indirectly; imports for types count."""
    graph = grimp.build_graph(*PACKAGES)
    imports = nx.DiGraph()
    for module in graph.modules:
        imports.add_edges_from((module, other) for other in graph.find_modules_directly_imported_by(module))
    for root in PROGRAMS:
        imports.add_edges_from(program_imports(Path(root)))
    for circle in nx.strongly_connected_components(imports):
        if len(circle) > 1:
            yield f"import circle: {', '.join(sorted(circle))}"


def program_imports(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (importer, imported) among programs, which import by path from their own folder."""
    for path in root.rglob("*.py"):
        folder = root.joinpath(*path.relative_to(root).parts[:-1][:1])
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module, *(f"{node.module}.{name}" for name in names)]
            for name in names:
                other = folder.joinpath(*name.split(".")).with_suffix(".py")
                if other.exists():
                    yield path.as_posix(), other.as_posix()


def crowded(folders: dict[Path, list[Module]]) -> Iterator[str]:
    """Find folders with too many modules."""
    for folder, inside in sorted(folders.items()):
        if len(inside) > MOST_MODULES:
            yield f"{folder}: {len(inside)} modules; expected {MOST_MODULES} at most"


def long_files(modules: list[Module]) -> Iterator[str]:
    """Find files and functions that are too long."""
    for module in modules:
        path = module.path.as_posix()
        if module.lines > MOST_LINES:
            yield f"{path}: {module.lines} lines; expected {MOST_LINES} at most"
        size, name = module.longest
        if size > MOST_BODY and not any(part in path for part in KERNELS):
            yield f"{path}: {name} has {size} lines; expected {MOST_BODY} at most"


def homonyms(modules: list[Module]) -> Iterator[str]:
    """Find basenames that several modules share."""
    named: dict[str, list[Path]] = defaultdict(list)
    for module in modules:
        if module.path.parts[0] in PACKAGES and not module.path.stem.startswith("__"):
            named[module.path.stem].append(module.path)
    for name, paths in sorted(named.items()):
        if len(paths) > 1 and name not in TWINS:
            yield f"{name}: the basename of {', '.join(path.as_posix() for path in paths)}; give each a name of its own"


def untested(modules: list[Module]) -> Iterator[str]:
    """Find modules of the packages without a test file of their name."""
    for module in modules:
        path = module.path
        if path.parts[0] not in PACKAGES or path.stem.startswith("__"):
            continue
        below = Path(*path.parts[1:]) if path.parts[0] == "topocomm" else path
        if not (Path("tests") / below.parent / f"test_{path.name}").exists():
            yield f"{path.as_posix()}: no tests/{below.parent.as_posix()}/test_{path.name}"


if __name__ == "__main__":
    sys.exit(main())
