"""Rules for packages: docstrings of ``__init__.py``, names of files, allowed dependencies."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.architecture.source import (
    FACES,
    LAYER_OF_ROOM,
    MODULES,
    REPOSITORY,
    TOP,
    UPWARDS,
    inside,
    names,
    own,
    room,
    table,
    tree,
)

MOST, MOST_MODULES = 12, 13
"""The largest numbers of packages and of modules at the top level."""
SERVERS = [face for face in FACES if face.rpartition(".")[0] == "qworker.transports"]


def parts(package: str) -> set[str]:
    """The names of the modules and packages directly below *package*."""
    return {inside(module, package) for module in MODULES} - {"", "__main__"}


def listed_modules(package: str) -> list[str]:
    """The names in the docstring of a package from "Modules" on, except those in parentheses."""
    text = re.sub(r"\([^()]*\)", "", ast.get_docstring(tree(package)) or "")
    listed = re.search(r"\b(Modules|Packages)\b.*", text, re.DOTALL)
    return re.findall(r"``([a-z_0-9]+)``", listed[0]) if listed else []


def imported(module: str) -> set[str]:
    """Our modules that *module* imports anywhere, without those of the table of upward imports."""
    return {found.name for found in own(module) if (module, found.name) not in UPWARDS}


def test_top_level_has_a_limited_number_of_packages_and_modules() -> None:
    packages = {name for name in parts("qworker") if f"qworker.{name}" in FACES}
    modules = parts("qworker") - packages
    stations = {name for name in packages if LAYER_OF_ROOM[name] < TOP}
    assert len(stations) <= MOST, sorted(stations)
    assert len(packages - stations) <= MOST, sorted(packages - stations)
    assert len(modules) <= MOST_MODULES, sorted(modules)


@pytest.mark.parametrize("package", FACES)
def test_package_docstring_names_each_of_its_modules_once(package: str) -> None:
    listed = listed_modules(package)
    there = parts(package)
    assert sorted(listed) == sorted(there), (
        f"{package}: its docstring leaves out {sorted(there - set(listed))}, names what is not there "
        f"({sorted(set(listed) - there)}) or names one twice"
    )


def test_file_names_do_not_repeat_the_folder_name() -> None:
    placed = [(module, *module.split(".")[-2:]) for module in MODULES if module.count(".") > 1]
    repeating = [
        module
        for module, folder, name in placed
        if name.startswith((f"{folder}_", f"{folder.removesuffix('s')}_"))
    ]
    assert not repeating, "leave the folder out"


@pytest.mark.parametrize("package", FACES)
def test_parts_of_a_package_do_not_import_each_other_in_a_circle(package: str) -> None:
    """Each direct module or subpackage, with everything in it, counts as one part."""
    graph: dict[str, set[str]] = {name: set() for name in parts(package)}
    for module in MODULES:
        if inside(module, package) in graph:
            graph[inside(module, package)] |= {
                inside(name, package) for name in imported(module)
            } & graph.keys()
    visited: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"{package}: circle " + " -> ".join([*path[path.index(name) :], name])
        if name not in visited:
            for target in sorted(graph[name] - {name}):
                visit(target, (*path, name))
            visited.add(name)

    for name in graph:
        visit(name, ())


def server(module: str) -> str | None:
    """The package in ``transports`` that *module* is, or belongs to."""
    return next((face for face in SERVERS if f"{module}.".startswith(f"{face}.")), None)


def test_transports_do_not_import_each_other() -> None:
    allowed = {
        (f"qworker.{one}", f"qworker.{other}")
        for row in table("package or module")
        for one in names(row[0])
        for other in names(row[1])
    }
    seen = {
        (server(module) or module, server(name))
        for module in MODULES
        if room(module) == "transports"
        for name in imported(module)
        if server(name) not in (None, server(module))
    }
    assert seen == allowed, "the table leaves this out, or names what is not in the code"


def test_transports_do_not_import_result_backends() -> None:
    wrong = [
        (module, name)
        for module in MODULES
        if room(module) == "transports"
        for name in imported(module)
        if room(name) == "backends"
    ]
    assert not wrong


PUBLIC_THOUGH_UNDERSCORED = {
    "_asdict", "_base_manager", "_exit", "_fields", "_getframe", "_make", "_meta", "_replace", "_thread"
}  # fmt: skip
"""Documented names of Python and Django that begin with an underscore."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_THOUGH_UNDERSCORED


@cache
def defined_names() -> frozenset[str]:
    """The names that qworker defines: functions, classes, variables and attributes."""
    found = set()
    for module in MODULES:
        for node in ast.walk(tree(module)):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    found.add(node.name)
                case ast.Attribute(value=ast.Name("self" | "cls"), ctx=ast.Store()):
                    found.add(node.attr)
                case ast.Name(ctx=ast.Store()):
                    found.add(node.id)
    return frozenset(found)


def foreign_private_names(module: str) -> set[str]:
    """The private names of libraries that *module* uses: imported ones, those of imported modules and
    classes, and those that are defined nowhere in qworker."""
    foreign, found = set(), set()
    for node in ast.walk(tree(module)):
        match node:
            case ast.ImportFrom(module=str(source), names=aliases) if source.split(".")[0] != "qworker":
                foreign |= {alias.asname or alias.name for alias in aliases}
                found |= {part for part in source.split(".") if is_private(part)}
                found |= {alias.name for alias in aliases if is_private(alias.name)}
            case ast.Import(names=aliases):
                foreign |= {(alias.asname or alias.name).split(".")[0] for alias in aliases} - {"qworker"}
    for node in ast.walk(tree(module)):
        match node:
            case ast.Attribute(value=ast.Name(base), attr=name) if is_private(name) and base in foreign:
                found.add(name)
            case ast.Attribute(attr=name) | ast.Call(
                ast.Name("getattr" | "hasattr" | "setattr"), [_, ast.Constant(str(name)), *_]
            ) if is_private(name) and name not in defined_names():
                found.add(name)
    return found


def test_private_parts_of_libraries_are_listed() -> None:
    """docs/reference/dependencies.md lists them, because a release of a library may change them."""
    page = (REPOSITORY / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\w`-]+ \| (`_[^|]+) \| ([^|]+) \|", page, re.MULTILINE)
    listed = {
        (f"qworker.{path[:-3].replace('/', '.')}", name)
        for names_, paths in rows
        for name in re.findall(r"`(\w+)`", names_)
        for path in re.findall(r"`([\w/.]+)`", paths)
    }
    used = {(module, name) for module in MODULES for name in foreign_private_names(module)}
    assert listed - used == set()
    assert used - listed == set()
