"""Names: task ids, task names, dotted paths, node names, queue names.

Comes from:  nothing.
Goes to:     client, configuration, worker, command line.
Thread:      any. Fork-safe, because no random state is kept.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import count
from typing import Any

from qworker.errors import ConfigurationError

DISTRIBUTION = "qworker-queue"
"""The name on PyPI, where "qworker" is another project, which no text may suggest installing. The import and
the command are "qworker"."""
VERSION = "0.1.0"
"""The same as in ``pyproject.toml`` and in the package, which must not import this module."""
DEFAULT_NODE = "qworker"
LONGEST_NAME = 255

_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_TOGETHER = 64
_SPACE = "9a1c1f0e-52f7-4c0f-8a4e-6f1c7a0d3b55"
_FORBIDDEN_IN_QUEUE = frozenset("*?[]{}\\\"'`<>|;")
_FORBIDDEN_IN_NODE = _FORBIDDEN_IN_QUEUE | frozenset("/")


def install_command(extra: str) -> str:
    """Return the command that installs one of our extras; installed versions are kept."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def task_id() -> str:
    """Return a new random id: the text of a version 4 UUID."""
    return _uuid4(os.urandom(16).hex())


def task_ids() -> Iterator[str]:
    """Yield new ids, for code that needs many at once: it reads random bytes in blocks, which is faster.

    Do not keep the iterator: a forked process would produce the same ids.
    """
    yield task_id()
    while True:
        texts = os.urandom(16 * _TOGETHER).hex()
        for at in range(0, len(texts), 32):
            yield _uuid4(texts[at : at + 32])


def ids_of(origin: str) -> Callable[[], str]:
    """Return a function that returns a new id at each call. The sequence depends only on *origin*."""
    from uuid import UUID, uuid5  # here, because it takes milliseconds and is rarely needed

    space, numbers = UUID(_SPACE), count()
    return lambda: str(uuid5(space, f"{origin} {next(numbers)}"))


def _uuid4(text: str) -> str:
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:]}"


def task_name(name: str, module: str, main: str | None = None) -> str:
    """Return the task name of the function `name` of `module`: "module.name".

    ``__main__`` is replaced by `main`, or by the name under which that module would be imported, so that
    ``python tasks.py`` sends ``tasks.add``, the name that the worker knows.
    """
    if module == "__main__":
        module = main or _main_module()
    return f"{module}.{name}"


def _main_module() -> str:
    running = sys.modules.get("__main__")
    spec = getattr(running, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    path = getattr(running, "__file__", None)
    return os.path.splitext(os.path.basename(path))[0] if path else "__main__"


def import_object(path: str) -> Any:
    """Return the module or object at `path`: "package.module:attribute" or "package.module.attribute".

    ConfigurationError if it does not exist. Errors raised by the imported module itself are not converted.
    """
    module_name, colon, attributes = path.partition(":")
    if not all(part.isidentifier() for part in path.replace(":", ".").split(".")):
        raise ConfigurationError(f"{path!r} is not a Python path; write it as package.module:name")
    if colon:
        return _attribute(_module(module_name, path), attributes.split("."), path)
    names = path.split(".")
    for size in range(len(names), 0, -1):
        try:
            module = _module(".".join(names[:size]), path)
        except ConfigurationError:
            if size == 1:
                raise
        else:
            return _attribute(module, names[size:], path)
    raise AssertionError("unreachable: the loop ends by return or raise")


def _module(name: str, path: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # Only a missing module of *this* name is the user's mistake; a missing dependency is the module's.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise ConfigurationError(
            f"there is no module named {error.name!r} (looked for {path!r}); "
            "is it spelled right, installed, and started from the directory it is in?"
        ) from None


def _attribute(module: Any, names: list[str], path: str) -> Any:
    found = module
    for name in names:
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigurationError(
                f"{getattr(found, '__name__', found)} has no {name!r} (from {path!r})"
                f"{did_you_mean(name, dir(found))}"
            ) from None
    return found


def hostname() -> str:
    """Return this machine's name."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket  # only where there is no uname

    return socket.gethostname()


def node_name(template: str | None = None, index: int = 0) -> str:
    """Return the full name of a node, "name@host".

    `template` may contain %h (host name), %n (host name up to its first dot), %d (its domain), %i (`index` of
    the process, 0 in the main one), %I (the same with a dash before it, empty for 0) and %%. Without "@", the
    host name is appended; None is the default name. ConfigurationError if the result is not a valid name.
    """
    host = hostname()
    short, _, domain = host.partition(".")
    values = {
        "h": host,
        "n": short,
        "d": domain,
        "i": str(index),
        "I": f"-{index}" if index else "",
        "%": "%",
    }
    name = _expand(template or DEFAULT_NODE, values)
    if "@" not in name:
        name = f"{name}@{host}"
    if not valid_node_name(name):
        raise ConfigurationError(
            f"{name!r} is not a node name; use letters, digits, '.', '-' and '_' as in 'worker1@%h'",
            setting="hostname",
        )
    return name


def _expand(template: str, values: dict[str, str]) -> str:
    head, *rest = template.split("%")
    parts = [head]
    pending = iter(rest)
    for part in pending:
        if part:
            parts.append(values.get(part[0], f"%{part[0]}") + part[1:])
        else:  # "%%": the split left nothing between them
            parts.append("%" + next(pending, ""))
    return "".join(parts)


def signal_name(given: Any) -> str:
    """Return the name of a signal, given by name ("SIGKILL", "kill"), number or member of signal.Signals.

    ValueError for anything else.
    """
    try:
        if isinstance(given, int):
            return signal.Signals(given).name
        name = str(given).upper()
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"].name
    except (KeyError, ValueError):
        raise ValueError(f"{given!r} is not a signal: use SIGTERM, SIGINT or SIGKILL") from None


MISSPELT = 0.85
"""The minimum similarity of a misspelling to the correct name."""


def close_matches(name: str, candidates: Iterable[str], count: int = 3, likeness: float = 0.6) -> list[str]:
    """Return the `count` of `candidates` most similar to `name` at most, best first; [] when none is close.

    likeness: minimum similarity, from 0 to 1.
    """
    from difflib import get_close_matches  # here, because it takes 5 ms and is only used for errors

    others = [candidate for candidate in candidates if candidate != name]
    return get_close_matches(name, others, count, likeness)


def did_you_mean(name: object, candidates: Iterable[str], otherwise: str = "") -> str:
    """Return "; did you mean 'x'?" with the most similar of *candidates*, to append to a message about an
    unknown *name*; *otherwise* when none is close."""
    found = close_matches(str(name), candidates, 1)
    return f"; did you mean {found[0]!r}?" if found else otherwise


_BUILT_IN = ("celery.", "qworker.")
DJANGO_PACKAGES = "qworker.django.run"
"""The task that runs the functions given to async_task(). Only the app of a Django project has it."""


def own_tasks(names: Iterable[str]) -> list[str]:
    """Return those *names* that are not built-in tasks, sorted."""
    return sorted(name for name in names if not name.startswith(_BUILT_IN))


def close_tasks(name: str, tasks: Iterable[str]) -> list[str]:
    """Return up to three of *tasks* that are similar to *name*, best first; [] when none is close.

    The part after the last dot is compared first: "tasks.ad" is closer to "tasks.add" than to "tasks.map".
    """
    known = own_tasks(tasks)
    by_last: dict[str, list[str]] = {}
    for each in known:
        by_last.setdefault(each.rpartition(".")[2], []).append(each)
    last = name.rpartition(".")[2]
    same = [each for each in by_last.get(last, []) if each != name]
    close = [each for short in close_matches(last, by_last) for each in by_last[short]]
    return (same or close)[:3] or close_matches(name, known)


def valid_queue_name(name: object) -> bool:
    """Return whether `name` is 1 to 255 bytes of printable text without space, quote, bracket or wildcard."""
    return _valid(name, _FORBIDDEN_IN_QUEUE)


def valid_node_name(name: object) -> bool:
    """Return whether `name` is "name@host" in printable characters, no space, quote, bracket or slash."""
    if not isinstance(name, str) or not _valid(name, _FORBIDDEN_IN_NODE):
        return False
    left, at, right = name.partition("@")
    return bool(left and at and right and "@" not in right)


def _valid(name: object, forbidden: frozenset[str]) -> bool:
    return (
        isinstance(name, str)
        and 0 < len(name) <= LONGEST_NAME
        and name.isprintable()
        and len(name.encode()) <= LONGEST_NAME
        and not any(character.isspace() for character in name)
        and forbidden.isdisjoint(name)
    )
