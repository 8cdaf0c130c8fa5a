"""Names in docstrings and comments exist: files, modules, classes, methods, functions.

A word counts as a name if it ends in ``.py`` or ``()``, stands in backticks, is written ``LikeThis`` or
``like_this``, or has a capital letter inside a sentence. It must occur in the code: defined, used, or in a
string that is not a docstring (a server-side script, for example). Of two names joined by a dot, the
second must belong to the first.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import tokenize
from collections.abc import Collection, Iterator
from functools import cache
from itertools import pairwise

import pytest

from tests.architecture.source import MODULES, REPOSITORY, tree

THEIRS = {
    # Programs, formats and machines of others.
    "Ctrl", "Erlang", "KeyDB", "Latin", "Linux", "Lua", "Markdown", "NaN", "OpenSSL", "Prometheus", "PyMySQL",
    "PyPI", "CO_VARKEYWORDS", "INSTALLED_APPS", "ext4", "malloc", "wal_writer_delay",
    "_codecs.encode", "einfo.exception", "exceptions.EncodeError", "exceptions.OperationalError",
    "kombu.Connection", "lock.acquire", "pool.acquire", "producer_pool.acquire", "string.Template",
    # What users write.
    "CELERY_TASK_ROUTES", "add.delay", "add.s", "my_option", "request.my_header", "tasks.add",
    # Placeholders and names on a command line, in a message, in a broker or in a database.
    "FROM_URL", "__value__", "module.function", "qworker.owners", "qworker.revoked",
    "qworker_owner.armed_until",
}  # fmt: skip
"""Names that do not occur in our code."""
THEIR_FILES = {"file.py", "manage.py", "tasks.py"}

_FILE = re.compile(r"[\w./]*\w\.py\b")
_NAME = re.compile(
    r"``?(?P<quoted>[A-Za-z_][\w.]*)(?:\([^`]*\))?``?"
    r"|\b(?P<called>[A-Za-z_][\w.]*)\(\)"
    r"|\b(?P<shaped>[A-Z]+[a-z]+[A-Z]\w*|\w+_\w+)\b"
    r"|(?:(?<=[a-z,;(] )|(?<=Comes from: )|(?<=Goes to: ))(?P<capital>[A-Z][a-z]{2,})\b"
)
KINDS = tuple(_NAME.groupindex)
_WORD = re.compile(r"[A-Za-z_]\w*")
_PAIR = re.compile(r"(?=\b([A-Za-z_]\w*)\.([A-Za-z_]\w*))")


def docstrings(module: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, including those below attributes."""
    for node in ast.walk(tree(module)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def comments(module: str) -> Iterator[tuple[int, str]]:
    with MODULES[module].open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and not re.match(r"# (noqa|type:|fmt:)", token.string):
                yield token.start[0], token.string


@cache
def words() -> frozenset[str]:
    """Every name in the code, and every word in its strings."""
    found = {*dir(builtins), *keyword.kwlist}
    for module in MODULES:
        found |= set(module.split("."))
        found |= set(_WORD.findall(code(module)))
    return frozenset(found)


@cache
def pairs() -> frozenset[tuple[str, str]]:
    """Names that belong together: ``a.b`` in the code, and the names in each class or module."""
    found: set[tuple[str, str]] = set()
    for module in MODULES:
        parts = module.split(".")
        found |= set(pairwise(parts))
        found |= set(_PAIR.findall(code(module)))
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef | ast.Module):
                owner = node.name if isinstance(node, ast.ClassDef) else parts[-1]
                found |= {(owner, name) for part in ast.walk(node) for name in made(part)}
    return frozenset(found)


def made(node: ast.AST) -> list[str]:
    """The names that a statement or expression binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case ast.alias(name=name, asname=known_as):
            return [known_as or name.rpartition(".")[2]]
    return []


@cache
def code(module: str) -> str:
    """The source of the module without docstrings and comments."""
    return ast.unparse(_Undocumented().visit(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


class _Undocumented(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def is_there(file: str, module: str) -> bool:
    """Whether *file*, as named in *module*, exists relative to the module's folder or a parent of it."""
    folders = MODULES[module].parents
    return any((folder / file).is_file() for folder in folders if folder.is_relative_to(REPOSITORY))


def unknown(text: str, module: str, kinds: Collection[str | None] = KINDS) -> Iterator[str]:
    """Names in *text* that do not exist. kinds: the groups of _NAME to look at."""
    for name in _FILE.findall(text):
        if name.rpartition("/")[2] not in THEIR_FILES and not is_there(name, module):
            yield f"there is no file {name} from here"
    for match in _NAME.finditer(_FILE.sub("", " ".join(text.split()))):
        name = match[match.lastgroup or 0].strip(".")
        last = name.rpartition(".")[2]
        two = ".".join(name.split(".")[-2:])
        if last in THEIRS or two in THEIRS or match.lastgroup not in kinds:
            continue
        if last not in words() and last.removesuffix("s") not in words():
            yield f"{name} is nowhere in the code"
        elif two != last and tuple(two.split(".")) not in pairs():
            yield f"nothing that is called {two.partition('.')[0]} has a {last}"


@pytest.mark.timeout(300)  # it reads the whole package
def test_names_in_docstrings_and_comments_exist() -> None:
    wrong = [
        f"{MODULES[module].relative_to(REPOSITORY)}:{line}: {what}"
        for module in MODULES
        for found in (docstrings(module), comments(module))
        for line, text in found
        for what in unknown(text, module)
    ]
    assert not wrong, "\n".join(wrong)


def test_search_finds_only_unknown_names() -> None:
    for text in (
        "See ``gone.py``.",
        "Comes from:  ``transports/gone.py``.",
        "``gone_from_here`` is read.",
        "It calls gone_away() first.",
        "What the GoneStore holds.",
        "What the Gonestore holds.",
        "As ``Settings.gone`` says.",
        "Goes to:     ``naming.gone``.",
    ):
        assert list(unknown(text, "qworker.app")), text
    for text in (
        "See ``app.py``, ``transports/lease.py`` and `delay()`.",
        "The Mediator asks for ``max_retries``. Gone is what begins a sentence.",
        "As ``QWorker.task`` says; ``naming.close_matches`` too.",
    ):
        assert not list(unknown(text, "qworker.app")), text
