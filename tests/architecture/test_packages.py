"""The rules that hold for packages: what a face says, what is named how, and who may know whom."""

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
"""Packages, and modules, that may stand side by side at the top."""
SERVERS = [face for face in FACES if face.rpartition(".")[0] == "qworker.transports"]


def parts(package: str) -> set[str]:
    """The names of the modules and packages right below *package*."""
    return {inside(module, package) for module in MODULES} - {"", "__main__"}


def told(package: str) -> list[str]:
    """The names that a face lists: those from "Modules" on that stand outside of parentheses."""
    text = re.sub(r"\([^()]*\)", "", ast.get_docstring(tree(package)) or "")
    listed = re.search(r"\b(Modules|Packages)\b.*", text, re.DOTALL)
    return re.findall(r"``([a-z_0-9]+)``", listed[0]) if listed else []


def imported(module: str) -> set[str]:
    """Our modules that *module* imports, at once, later, or for the type checker; not those of the table of
    imports upwards."""
    return {found.name for found in own(module) if (module, found.name) not in UPWARDS}


def test_the_top_level_can_be_taken_in_at_a_glance() -> None:
    packages = {name for name in parts("qworker") if f"qworker.{name}" in FACES}
    modules = parts("qworker") - packages
    stations = {name for name in packages if LAYER_OF_ROOM[name] < TOP}
    assert len(stations) <= MOST, sorted(stations)
    assert len(packages - stations) <= MOST, sorted(packages - stations)
    assert len(modules) <= MOST_MODULES, sorted(modules)


@pytest.mark.parametrize("package", FACES)
def test_a_face_names_the_modules_of_its_package_once(package: str) -> None:
    listed = told(package)
    there = parts(package)
    assert sorted(listed) == sorted(there), (
        f"{package}: its docstring leaves out {sorted(there - set(listed))}, names what is not there "
        f"({sorted(set(listed) - there)}) or names one twice"
    )


def test_no_file_is_named_after_its_folder() -> None:
    placed = [(module, *module.split(".")[-2:]) for module in MODULES if module.count(".") > 1]
    repeating = [
        module
        for module, folder, name in placed
        if name.startswith((f"{folder}_", f"{folder.removesuffix('s')}_"))
    ]
    assert not repeating, "leave the folder out"


@pytest.mark.parametrize("package", FACES)
def test_nothing_in_a_package_imports_in_a_circle(package: str) -> None:
    """Each module of the package is one thing here, and so is each package in it with all that it holds."""
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
    """The package in ``transports`` that *module* is, or is in."""
    return next((face for face in SERVERS if f"{module}.".startswith(f"{face}.")), None)


def test_servers_are_strangers_to_each_other() -> None:
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


def test_transports_know_no_result_store() -> None:
    wrong = [
        (module, name)
        for module in MODULES
        if room(module) == "transports"
        for name in imported(module)
        if room(name) == "backends"
    ]
    assert not wrong
