"""The computations of the demo's tasks: which files to read, and what one contains. Pure functions.

Comes from:  driver (which files), tasks (one file).
Goes to:     report, as plain dictionaries that survive JSON.
Thread:      any; there is no state.
"""

from __future__ import annotations

import ast
import io
import os
import random
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

# Bytes of source: takes less than fifteen seconds on two cores. A plain installation has less.
BYTES_TO_READ = 40_000_000

# Tests contain hundreds of odd files, and lib2to3 a lot of Python 2; only a few are included, below.
LEFT_OUT = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "lib2to3",
    "__pycache__",
    "config",
}
ODD_PLACES = (
    "test/bad*.py",
    "test/tokenizedata/bad*.py",
    "lib2to3/tests/data/*.py",
    "test/test_lib2to3/data/*.py",
)
ODD_FILES = 12


class NotPython(ValueError):
    """The file is not valid in this version of Python: its path, the line, and the parser's message."""


class Analysis(TypedDict):
    """One file. Sizes are bytes; imports are top-level module names, each once."""

    path: str
    package: str
    size: int
    lines: int
    tokens: int
    classes: int
    functions: int
    imports: list[str]


def choose_files(budget: int = BYTES_TO_READ) -> list[Path]:
    """Return modules of this installation, up to *budget* bytes: the standard library first, then installed
    packages.

    Large and small files are mixed, always in the same way, so that progress is even. A few files known to be
    invalid are added, if the installation has them.
    """
    paths = sysconfig.get_paths()
    library = Path(paths["stdlib"])
    chosen: dict[Path, int] = {}
    for root in dict.fromkeys((library, Path(paths["purelib"]), Path(paths["platlib"]))):
        for path in _modules(root):
            size = path.stat().st_size
            if path not in chosen and size <= budget:
                chosen[path] = size
                budget -= size
    odd = [path for pattern in ODD_PLACES for path in sorted(library.glob(pattern))][:ODD_FILES]
    mixed = sorted(chosen)
    random.Random(7).shuffle(mixed)
    return odd + mixed


def _modules(root: Path) -> Iterator[Path]:
    found: list[Path] = []
    for directory, directories, files in os.walk(root):
        directories[:] = [name for name in directories if name not in LEFT_OUT]
        found += [Path(directory, name) for name in files if name.endswith(".py") and name not in LEFT_OUT]
    return (path for path in sorted(found) if path.is_file())


def write_samples(directory: Path) -> list[Path]:
    """Write two invalid files: one that is not UTF-8, one that is Python 2."""
    undecodable = directory / "sample_latin1.py"
    undecodable.write_bytes('name = "Zo\xeb"\n'.encode("latin-1"))
    python2 = directory / "sample_python2.py"
    python2.write_text('print "hello"\n', encoding="utf-8")
    return [undecodable, python2]


def package_of(path: Path) -> str:
    """Return the top-level package or module of *path*: 'asyncio' for .../asyncio/tasks.py."""
    paths = sysconfig.get_paths()
    for root in (paths["purelib"], paths["platlib"], paths["stdlib"]):
        if path.is_relative_to(root):
            return path.relative_to(root).parts[0].removesuffix(".py")
    return path.stem


def analyse_file(path: str, encoding: str | None = None) -> Analysis:
    """Count the contents of one file.

    encoding: None detects it like Python, from the byte-order mark or the coding comment. Raises UnicodeError
    or LookupError when it cannot be decoded (try another encoding), NotPython when the text is not valid in
    this version of Python, OSError when it cannot be read.
    """
    file = Path(path)
    data = file.read_bytes()
    text = data.decode(encoding or _declared_encoding(data))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, filename=path)
        tokens = sum(1 for _ in tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError) as error:
        raise NotPython(f"{path}: {_where(error)}") from error
    classes = functions = 0
    imports: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
        elif isinstance(node, ast.Import):
            imports.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.add(node.module.partition(".")[0])
    return Analysis(
        path=path,
        package=package_of(file),
        size=len(data),
        lines=text.count("\n"),
        tokens=tokens,
        classes=classes,
        functions=functions,
        imports=sorted(imports),
    )


def _declared_encoding(data: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError as error:  # an unknown or impossible encoding is declared
        raise LookupError(str(error)) from error


def _where(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    message = getattr(error, "msg", None) or str(error)
    return f"line {line}: {message}" if line else f"{type(error).__name__}: {message}"
