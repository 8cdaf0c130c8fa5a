"""Rules for modules: layers, circular imports, length, where packages may be imported.

The rules are read from the tables in docs/explanation/architecture.md, so documentation and checks cannot
differ. The tests only read source text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source import (
    LAYER_OF_ROOM,
    LAZY_FACES,
    MODULES,
    REPOSITORY,
    RULES,
    TOP,
    UPWARDS,
    Import,
    code_lines,
    imports,
    names,
    own,
    room,
    strings,
    table,
    tree,
)

LONG = 600
"""Lines of code: blank lines, comments, and all but the first line of multi-line strings do not count. A
longer module needs a reason. So does a longer class, counted with our classes that it inherits from: to
understand one of its methods one may have to read all of them, while composition shows what is used."""
LONG_MODULES: dict[str, str] = {}
"""Long modules, each with the reason why it is not split."""
LONG_CLASSES = {
    "qworker.conf.resolved.Settings": "inherits the declarations, which are a table",
}
"""The same for classes."""


def test_every_module_belongs_to_a_layer() -> None:
    homeless = {room(module) for module in MODULES if room(module)} - LAYER_OF_ROOM.keys()
    assert not homeless, f"add {sorted(homeless)} to a layer in {RULES.relative_to(REPOSITORY)}"


SHOWN = {
    "qworker.canvas.chords",
    "qworker.canvas.graphs",
    "qworker.canvas.groups",
    "qworker.canvas.signatures",
    "qworker.results.graph_result",
    "qworker.results.result",
    "qworker.results.several",
    "qworker.tasks.task",
}
"""Modules of public classes whose attributes have public types. Only they may import ``qworker`` for the
type checker; with a protocol instead, a user's function that takes a QWorker would not accept the
attribute."""


def climbs(module: str, found: Import) -> str | None:
    """Why an import breaks the layer rules; None if it does not."""
    layer, target = LAYER_OF_ROOM[room(module)], room(found.name)
    if target == "":  # the entry points import the public package, as users do
        if layer == TOP or (found.typing_only and module in SHOWN):
            return None
        return "imports the front door; import the module itself"
    if LAYER_OF_ROOM[target] > layer:
        return f"{found.name} is in layer {LAYER_OF_ROOM[target]}, above {layer}"
    if (
        LAYER_OF_ROOM[target] == TOP
        and target != room(module)
        and room(module) not in ("cli", "__main__")
        and (room(module), target) != ("django", "beat")  # its schedules are computed as beat's are
    ):
        return f"{found.name} is an edge, which only the command line imports"
    return None


INWARDS = {
    (f"qworker.{module}", f"qworker.{face}")
    for row in table("face")
    for face in names(row[0])
    for module in names(row[1])
}
"""Pairs (module, the package's ``__init__`` that it imports although it is part of it)."""
NAMED = {
    ("qworker.cli.demo.tasks", "qworker.cli.demo"): "what its app is called",
    ("qworker.django.brokers.choice", "qworker.django.brokers"): "what names of settings begin with",
    (
        "qworker.spooler.uwsgi_api",
        "qworker.spooler.decorators",
    ): "what a program imports as uwsgidecorators",
}
"""Modules that are named in a string without being imported."""


def test_imports_only_go_down() -> None:
    """Including imports in functions, under TYPE_CHECKING, and module names in strings."""
    wrong = {
        (module, found.name): f"{MODULES[module].relative_to(REPOSITORY)}:{found.line}: {what}"
        for module in MODULES
        if room(module)
        for found in (*own(module), *strings(module))
        if (what := climbs(module, found)) and (module, found.name) not in NAMED
    }
    not_in_the_table = [what for pair, what in wrong.items() if pair not in UPWARDS]
    assert not not_in_the_table, "\n".join(not_in_the_table)
    assert wrong.keys() >= UPWARDS, f"not in the code: {UPWARDS - wrong.keys()}"


def test_imports_are_not_circular() -> None:
    """Counting every import statement, including those in functions and under TYPE_CHECKING."""
    refuse_circles({module: {found.name for found in own(module)} for module in MODULES})


def test_module_names_in_strings_are_not_circular() -> None:
    """Except those allowed by the table of upward imports."""
    allowed = UPWARDS | NAMED.keys()
    refuse_circles(
        {
            module: {found.name for found in own(module)}
            | {found.name for found in strings(module) if (module, found.name) not in allowed}
            for module in MODULES
            if module not in LAZY_FACES
        }
    )
    assert all(any(found.name == name for found in strings(module)) for module, name in NAMED)


def test_modules_do_not_import_their_own_lazy_package() -> None:
    """It would be circular, without an import statement that shows it."""
    inwards = {
        (module, found.name)
        for module in MODULES
        for found in own(module)
        if found.name in LAZY_FACES and found.name != "qworker" and module.startswith(f"{found.name}.")
    }
    assert inwards == INWARDS, "the table leaves this out, or names what is not in the code"


def refuse_circles(imported: dict[str, set[str]]) -> None:
    """Fail if modules import each other in a circle."""
    graph = {module: (found & imported.keys()) - {module} for module, found in imported.items()}
    visited: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, "circular import: " + " -> ".join([*path[path.index(module) :], module])
        if module not in visited:
            for target in sorted(graph[module]):
                visit(target, (*path, module))
            visited.add(module)

    for module in graph:
        visit(module, ())


def test_own_modules_are_imported_at_module_level() -> None:
    wrong = [
        f"{MODULES[module].relative_to(REPOSITORY)}:{found.line}: imports {found.name} inside a function"
        for module in MODULES
        if module != "qworker" and not module.startswith(("qworker.cli", "qworker.__main__"))
        for found in own(module)
        if found.deferred and not found.typing_only and found.name not in lazily_loaded(module)
    ]
    assert not wrong, "\n".join(wrong)


def lazily_loaded(module: str) -> set[str]:
    """Modules that *module* may import inside functions: its own submodules if it is a package, and those
    of the table."""
    allowed = [module] if MODULES[module].name == "__init__.py" else []
    for row in table("module"):
        if module in [f"qworker.{name}" for name in names(row[0])]:
            allowed += [f"qworker.{name}" for name in names(row[1])]
    return {name for name in MODULES if any(name == door or name.startswith(door + ".") for door in allowed)}


@pytest.mark.parametrize("row", table("import"), ids=lambda row: row[0])
def test_heavy_packages_are_imported_only_where_allowed(row: list[str]) -> None:
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


def test_long_modules_are_listed_with_a_reason() -> None:
    lengths = {module: code_lines(tree(module), module) for module in MODULES}
    assert {module for module, length in lengths.items() if length >= LONG} == LONG_MODULES.keys()


def class_named(name: str, module: str) -> tuple[str, ast.ClassDef] | None:
    """Our class called *name* in *module*, with the module that defines it."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "") in MODULES:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return class_named(alias.name, node.module or "")
    return None


def lineage(module: str, node: ast.ClassDef) -> dict[str, int]:
    """Lines of code of a class and of each of our classes that it inherits from."""
    found = {f"{module}.{node.name}": code_lines(node, module)}
    for base in node.bases:
        bare = base.value if isinstance(base, ast.Subscript) else base
        ours = class_named(bare.id, module) if isinstance(bare, ast.Name) else None
        if ours and ours[1] is not node:
            found |= lineage(*ours)
    return found


def test_long_classes_are_listed_with_a_reason() -> None:
    lineages = [
        (f"{module}.{node.name}", lineage(module, node))
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef)
    ]
    assert {name for name, lines in lineages if sum(lines.values()) >= LONG} == LONG_CLASSES.keys()


def functions(node: ast.Module | ast.ClassDef) -> set[str]:
    """The names of the functions that a module or class defines."""
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def imported_functions(module: str) -> set[str]:
    """Functions that *module* imports from our other modules, as it refers to them: ``name`` or
    ``module.name``."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name, whole = alias.asname or alias.name, f"{node.module}.{alias.name}"
                if whole in MODULES:
                    found |= {f"{name}.{function}" for function in functions(tree(whole))}
                elif node.module in MODULES and alias.name in functions(tree(node.module)):
                    found.add(name)
    return found


def assigned(node: ast.ClassDef) -> Iterator[tuple[int, str]]:
    """Assignments in a class body: the line, and the text of the value and of the arguments if it is a
    call."""
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            value = statement.value
            for part in (value, *(value.args if isinstance(value, ast.Call) else ())):
                yield statement.lineno, ast.unparse(part)


def test_methods_are_defined_in_their_class() -> None:
    """Not assigned from another module: "go to definition" must find the definition."""
    wrong = [
        f"{MODULES[module].relative_to(REPOSITORY)}:{line}: {name}"
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef)
        for line, name in assigned(node)
        if name in imported_functions(module) - functions(node)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_has_a_docstring() -> None:
    silent = [module for module in MODULES if not ast.get_docstring(tree(module))]
    assert not silent, "without a docstring"


def test_broad_excepts_have_a_reason() -> None:
    """On the same line or in a comment right below. They are for foreign code: tasks, signal receivers,
    drivers, values with arbitrary methods."""
    wrong = []
    for path in MODULES.values():
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            _, found, reason = line.partition("noqa: BLE001")
            below = lines[number + 1].strip() if found else ""
            if found and not (reason.startswith(" - ") or below.startswith("# ")):
                wrong.append(f"{path.relative_to(REPOSITORY)}:{number + 1}")
    assert not wrong, "\n".join(wrong)


def test_no_module_is_called_utils() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert not [module for module in MODULES if drawers & set(module.split("."))]


def test_every_package_in_the_layer_table_exists() -> None:
    assert LAYER_OF_ROOM.keys() <= {room(module) for module in MODULES}
