"""Checks that the API pages document every public name.

Reads ``docs/reference/api/*.md``, whose directives name classes, functions and modules, and the code.
test_api_pages runs it as a program that prints one problem per line, with Django set up for the models.

    python -m tests.docs.api_pages
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

from tests.docs.pages import REPOSITORY, blocks

DOCS = REPOSITORY / "docs"
DIRECTIVE = re.compile(
    r"^\.\. auto(?P<kind>\w+):: (?P<path>[\w.]+)\n(?P<options>(?:   :.*\n)*)", re.MULTILINE
)
MODULES = (
    "qworker",
    "qworker.beat",
    "qworker.canvas",
    "qworker.django.brokers",
    "qworker.django.models",
    "qworker.django.signals",
    "qworker.django.tasks",
    "qworker.errors",
    "qworker.spooler",
    "qworker.spooler.decorators",
    "qworker.spooler.network",
    "qworker.states",
    "qworker.testing",
    "qworker.testing.contract",
)
"""Every public name of these modules must be documented, and whatever the examples of other pages import."""
IMPORTED = re.compile(
    r"^(?:>>> )?from (?P<module>qworker[\w.]*) import (?P<names>\w+(?: as \w+)?(?:, \w+)*)$", re.MULTILINE
)


class Shown(NamedTuple):
    """A directive. kind: class, function, data or module."""

    page: str
    kind: str
    path: str
    options: str

    @property
    def left_out(self) -> set[str]:
        found = re.search(r":exclude-members: (.*)", self.options)
        return set(found[1].split(", ")) if found else set()

    def members(self) -> dict[str, Any]:
        """What the page shows of a class."""
        if self.kind != "class" or ":members:" not in self.options:
            return {}
        return {
            name: member
            for kind in reversed(found_at(self.path).__mro__)
            if kind.__module__.partition(".")[0] == "qworker"
            for name, member in vars(kind).items()
            if not name.startswith("_") and name not in self.left_out and is_documented(member)
        }


def is_documented(member: Any) -> bool:
    """Whether it is a member that has a docstring of its own."""
    return inspect.isfunction(member) or isinstance(member, property | staticmethod | classmethod)


@cache
def found_at(path: str) -> Any:
    """The object with a dotted name; an attribute of a package takes precedence over a module of the same
    name."""
    place, _, name = path.rpartition(".")
    if place:
        with suppress(AttributeError, ImportError):
            return getattr(found_at(place), name)
    return import_module(path)


def shown() -> list[Shown]:
    return [
        Shown(page.name, found["kind"], found["path"], found["options"])
        for page in sorted((DOCS / "reference" / "api").glob("*.md"))
        for found in DIRECTIVE.finditer(page.read_text(encoding="utf-8"))
    ]


def public(module: ModuleType) -> dict[str, Any]:
    names = getattr(module, "__all__", None)
    if names is None:
        kinds = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
        names = [name for name, kind in kinds.items() if kind.__module__ == module.__name__]
    return {name: getattr(module, name) for name in names if not name.startswith("_")}


def in_examples() -> Iterator[tuple[str, str]]:
    """Module and name of each import in the code blocks of other pages, except imports that are shown to
    fail."""
    for page in sorted(DOCS.rglob("*.md")):
        if page.parts[-2] != "explanation":
            for block in blocks(page.read_text(encoding="utf-8")):
                if block.language in ("python", "pycon"):
                    for found in IMPORTED.finditer(block.text):
                        for name in found["names"].split(", "):
                            with suppress(ImportError):
                                found_at(f"{found['module']}.{name.partition(' as ')[0]}")
                                yield found["module"], name.partition(" as ")[0]


def faults() -> Iterator[str]:
    directives = shown()
    objects = {id(found_at(each.path)) for each in directives}
    modules = {each.path for each in directives if each.kind == "module"}
    wanted = {(module, name) for module in MODULES for name in public(import_module(module))}
    for module, name in sorted({*wanted, *in_examples()}):
        found = found_at(f"{module}.{name}")
        home = getattr(found, "__module__", None) or module
        kind = id(type(found)) if isinstance(found, Enum) else None
        if not {id(found), kind} & objects and not {module, home} & modules:
            yield f"{module}.{name} stands on no page"
    for each in directives:
        found = found_at(each.path)
        if each.kind == "data" and not has_line(each.path):
            yield f"{each.page}: {each.path} has no text below it"
        elif each.kind != "data" and not inspect.getdoc(found):
            yield f"{each.page}: {each.path} has no docstring"
        if unknown := sorted(name for name in each.left_out if not hasattr(found, name)):
            yield f"{each.page}: {each.path} has no {unknown}, which need not be left out"
        for name, member in each.members().items():
            if not inspect.getdoc(getattr(found, name)) and not inspect.getdoc(member):
                yield f"{each.page}: {each.path}.{name} has no docstring"


def has_line(path: str) -> bool:
    """Whether the assignment is followed by a docstring."""
    module, _, name = path.rpartition(".")
    body = ast.parse(inspect.getsource(import_module(module))).body
    for statement, text in pairwise(body):
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        if [getattr(target, "id", None) for target in targets] == [name]:
            return isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    return False


if __name__ == "__main__":
    import_module("docs.conf")  # sets up Django
    print(*faults(), sep="\n", end="")
