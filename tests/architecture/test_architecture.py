"""The house rules that a machine can hold: layers, cycles, sizes, doors.

The rules themselves are three tables in docs/explanation/architecture.md, so that what the documentation
shows is what stands. Everything here reads source text; only the last tests import the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "qworker"
RULES = REPOSITORY / "docs" / "explanation" / "architecture.md"
LONGEST_MODULE = 375
"""Lines of code: blank lines, comments, and all but the first line of a text do not count."""


@dataclass(frozen=True)
class Import:
    """One import statement's target: dotted name, line, and whether it runs when the module does."""

    name: str
    line: int
    deferred: bool
    typing_only: bool


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"), filename=str(MODULES[module]))


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


def table(first_heading: str) -> list[list[str]]:
    """Rows of the table in the rules whose first column has this heading, cells split, heading left out."""
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


LAYER_OF_ROOM = {room: int(row[0][1:]) for row in table("layer") for room in names(row[1])}
TOP = max(LAYER_OF_ROOM.values())


def room(module: str) -> str:
    """The first name below the package: 'transports' for qworker.transports.lease; '' for ours itself."""
    return module.split(".")[1] if "." in module else ""


def own(module: str, *, typing_only: bool = False) -> list[Import]:
    """Imports of our own modules that happen at run time (or only for the type checker)."""
    return [
        found
        for found in imports(module)
        if found.name.split(".")[0] == "qworker" and found.typing_only == typing_only
    ]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_room_in_the_table(module: str) -> None:
    assert not room(module) or room(module) in LAYER_OF_ROOM, (
        f"{module}: add {room(module)!r} to a layer in {RULES.relative_to(REPOSITORY)}"
    )


@pytest.mark.parametrize("module", [name for name in MODULES if room(name)])
def test_imports_go_down(module: str) -> None:
    layer = LAYER_OF_ROOM[room(module)]
    wrong = []
    for found in own(module):
        target = room(found.name)
        if target == "":
            if layer < TOP:  # the edges come in by the front door as everybody does
                wrong.append(f"line {found.line}: imports the front door; import the module itself")
        elif LAYER_OF_ROOM[target] > layer:
            wrong.append(
                f"line {found.line}: {found.name} is in layer {LAYER_OF_ROOM[target]}, above {layer}"
            )
        elif (
            LAYER_OF_ROOM[target] == TOP
            and target != room(module)
            and room(module) not in ("cli", "__main__")
        ):
            wrong.append(f"line {found.line}: {found.name} is an edge, which only the command line imports")
    assert not wrong, f"{MODULES[module].relative_to(REPOSITORY)}:\n" + "\n".join(wrong)


def test_nothing_imports_in_a_circle() -> None:
    graph = {
        module: {found.name for found in own(module) if not found.deferred and found.name in MODULES}
        - {module}
        for module in MODULES
    }
    visited: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, "circular import: " + " -> ".join([*path[path.index(module) :], module])
        if module not in visited:
            for target in sorted(graph[module]):
                visit(target, (*path, module))
            visited.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("module", MODULES)
def test_own_modules_are_imported_at_the_top(module: str) -> None:
    if module == "qworker" or module.startswith(("qworker.cli", "qworker.__main__")):
        return
    wrong = [found for found in own(module) if found.deferred and found.name not in lazily_loaded(module)]
    assert not wrong, f"{module} imports inside a function: " + ", ".join(
        f"{found.name} (line {found.line})" for found in wrong
    )


def lazily_loaded(module: str) -> set[str]:
    """Modules that may wait until they are asked for: those behind a front door,
    and those the table names."""
    allowed = [module] if MODULES[module].name == "__init__.py" else []
    for row in table("module"):
        if module in [f"qworker.{name}" for name in names(row[0])]:
            allowed += [f"qworker.{name}" for name in names(row[1])]
    return {name for name in MODULES if any(name == door or name.startswith(door + ".") for door in allowed)}


@pytest.mark.parametrize("row", table("import"), ids=lambda row: row[0])
def test_costly_packages_have_one_door(row: list[str]) -> None:
    (package,) = names(row[0])
    allowed = tuple(f"qworker.{name}" for name in names(row[1]))
    wrong = [
        f"{module}:{found.line}"
        for module in MODULES
        for found in imports(module)
        if found.name.split(".")[0] == package
        and not found.typing_only
        and not any(module == door or module.startswith(door + ".") for door in allowed)
    ]
    assert not wrong, f"{package} may be imported only in {row[1] or 'no module'}: {', '.join(wrong)}"


def code_lines(node: ast.AST, module: str) -> int:
    """How many lines of code a module, or a part of one, has; see LONGEST_MODULE."""
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


@pytest.mark.parametrize("module", MODULES)
def test_modules_stay_readable(module: str) -> None:
    length = code_lines(tree(module), module)
    assert length < LONGEST_MODULE, (
        f"{module} has {length} lines of code: it has more than one reason to change"
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(tree(module)), f"{module} has no docstring"


def test_there_is_no_drawer() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert not [module for module in MODULES if drawers & set(module.split("."))]


def test_every_room_in_the_table_is_there() -> None:
    assert LAYER_OF_ROOM.keys() <= {room(module) for module in MODULES}
