"""Helpers for the architecture tests: the source text of the package and the tables of the architecture
page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "qworker"
RULES = REPOSITORY / "docs" / "explanation" / "architecture.md"


@dataclass(frozen=True)
class Import:
    """An import statement, or a module name in a string.

    deferred: runs only when a function is called. typing_only: under TYPE_CHECKING, never runs.
    """

    name: str
    line: int
    deferred: bool = False
    typing_only: bool = False


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
FACES = [module for module, path in MODULES.items() if path.name == "__init__.py"]
"""The packages, by the module of their ``__init__.py``."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"), filename=str(MODULES[module]))


LAZY_FACES = [
    face
    for face in FACES
    if any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree(face).body)
]
"""Packages that import their modules lazily, in ``__getattr__``."""


@cache
def imports(module: str) -> tuple[Import, ...]:
    return tuple(_walk(tree(module), module, deferred=False, typing_only=False))


def _walk(node: ast.AST, module: str, *, deferred: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, deferred, typing_only)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, module)
            for alias in child.names:
                whole = f"{base}.{alias.name}"
                # "from qworker import errors" imports a module; "from qworker.errors import X" a name in one.
                yield Import(whole if whole in MODULES else base, child.lineno, deferred, typing_only)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for inner in child.body:
                yield from _walk(ast.Module([inner], []), module, deferred=deferred, typing_only=True)
            for inner in child.orelse:
                yield from _walk(ast.Module([inner], []), module, deferred=deferred, typing_only=typing_only)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, module, deferred=deferred or function, typing_only=typing_only)


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join(base + ([node.module] if node.module else []))


_IN_A_STRING = re.compile(r"(qworker(?:\.\w+)+)(?::\w+)?")
_NO_IMPORTS = {"__module__", "dispatch_uid", "name"}
"""Strings with these names may look like module names, but import nothing."""


@cache
def strings(module: str) -> tuple[Import, ...]:
    """The modules that *module* names in strings, for import_object() and similar functions."""
    passed_over: set[int] = set()
    for node in ast.walk(tree(module)):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if (
            isinstance(node, ast.Expr)  # a docstring
            or (isinstance(node, ast.keyword) and node.arg in _NO_IMPORTS)
            or any(isinstance(target, ast.Name) and target.id in _NO_IMPORTS for target in targets)
        ):
            passed_over.add(id(node.value))  # type: ignore[attr-defined]
    return tuple(
        Import(found[1], node.lineno, deferred=True)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed_over
        if (found := _IN_A_STRING.fullmatch(node.value)) and found[1] in MODULES
    )


def table(first_heading: str) -> list[list[str]]:
    """Rows of the table of the architecture page whose first column has this heading, without the heading,
    split into cells."""
    rows: list[list[str]] = []
    inside = False
    for line in RULES.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] == first_heading:
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and not set(cells[0]) <= {"-", ":"}:
            rows.append(cells)
    assert rows, f"{RULES} has no table that starts with {first_heading!r}"
    return rows


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def inside(module: str, package: str) -> str:
    """The direct child of *package* (module or package) that contains *module*; '' if it is outside."""
    return module[len(package) + 1 :].partition(".")[0] if module.startswith(package + ".") else ""


LAYER_OF_ROOM = {room: int(row[0][1:]) for row in table("layer") for room in names(row[1])}
TOP = max(LAYER_OF_ROOM.values())
UPWARDS = {
    (f"qworker.{module}", f"qworker.{target}")
    for row in table("module above")
    for target in names(row[0])
    for module in names(row[1])
}
"""Pairs of the table: (module, what it imports from a higher layer)."""


def room(module: str) -> str:
    """The first name below the top-level package: 'transports' for qworker.transports.lease; '' for
    qworker itself."""
    return inside(module, "qworker")


def own(module: str) -> list[Import]:
    """Imports of our own modules, including those under TYPE_CHECKING. These are left out for packages
    that import lazily: there they only repeat the table of lazy names for the type checker."""
    lazy = module in LAZY_FACES
    return [
        found
        for found in imports(module)
        if found.name.split(".")[0] == "qworker" and not (lazy and found.typing_only)
    ]


def code_lines(node: ast.AST, module: str) -> int:
    """The number of lines of code of a module or a part of one, without blank lines, comments, and all but
    the first line of multi-line strings."""
    text = MODULES[module].read_text(encoding="utf-8").splitlines()
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", len(text))
    left_out: set[int] = set()
    for found in ast.walk(node):
        if isinstance(found, ast.Constant | ast.JoinedStr) and found.end_lineno != found.lineno:
            left_out.update(range(found.lineno + 1, (found.end_lineno or found.lineno) + 1))
        if (
            isinstance(found, ast.Expr)
            and isinstance(found.value, ast.Constant)
            and isinstance(found.value.value, str)
        ):
            left_out.update(range(found.lineno, (found.end_lineno or found.lineno) + 1))
    lines = ((number, text[number - 1].strip()) for number in range(first, last + 1))
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in left_out)
