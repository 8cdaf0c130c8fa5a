"""Rules for packages: docstrings of ``__init__.py``, names of files, allowed dependencies."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.source import (
    FACES,
    LAYER_OF_ROOM,
    MODULES,
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
