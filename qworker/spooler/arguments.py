"""Arguments of decorated functions in the pairs of a job, in the format of uWSGI's decorators.

    args      a pickle of the positional arguments, a tuple
    kwargs    a pickle of the named ones, a dictionary
    qw_args, qw_kwargs    the same in JSON, a list and an object, of which either may be missing: for
    producers that cannot or may not send pickles. uWSGI's decorators do not know them.

Comes from:  ``decorators``, on both sides.
Goes to:     the pairs of a job; a call.
Thread:      any; stateless.

A pickle can run any code, and whoever can write to a spool directory writes pickles. So only plain data is
written and read: None, bool, numbers, text, bytes, lists, tuples, dictionaries, sets, dates and times, and
Decimal. A pickle of these names no other classes, so reading it runs no code, and uWSGI can read and write
it. Other values are written and read only with ``allow_pickle``.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from qworker.errors import SpoolError, UnrunnableJob
from qworker.message.plain_pickle import CLASSES, RefusedPickle, load_plain
from qworker.safe_repr import safe_repr

PROTOCOL = 4
"""The newest pickle protocol that every Python 3 used by uWSGI can read."""
LONGEST = 65_535
"""Maximum bytes of either pair; the format allows no more."""
_CLASSES = frozenset(CLASSES.values())


def write_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, allow_pickle: bool = False
) -> dict[bytes, bytes]:
    """Return the pairs ``args`` and ``kwargs``. SpoolError when they are not plain data and *allow_pickle* is
    False, or cannot be pickled."""
    return {b"args": _dumped(args, allow_pickle), b"kwargs": _dumped(kwargs, allow_pickle)}


def read_arguments(
    env: Mapping[str, Any], *, allow_pickle: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of the function from the pairs of a job, whose values are bytes; None when the
    function takes the pairs themselves. UnrunnableJob when they cannot be read, or are not allowed."""
    if "qw_args" in env or "qw_kwargs" in env:
        args, kwargs = _json(env, "qw_args", "[]"), _json(env, "qw_kwargs", "{}")
        args = tuple(args) if isinstance(args, list) else args
    elif "args" in env:
        if "kwargs" not in env:
            raise UnrunnableJob("the job has the pair args but not kwargs: uWSGI's decorators write both")
        args, kwargs = (_loaded(env[key], key, allow_pickle) for key in ("args", "kwargs"))
    else:
        return None
    if not isinstance(args, tuple) or not isinstance(kwargs, dict) or not all(map(_is_text, kwargs)):
        raise UnrunnableJob(
            "the arguments of the job must be a list and a dictionary with names as keys, not "
            f"{safe_repr(args, 100)} and {safe_repr(kwargs, 100)}"
        )
    return args, kwargs


def _is_text(key: object) -> bool:
    return isinstance(key, str)


class _PlainPickler(pickle.Pickler):
    """Only pickles what load_plain() can read: objects of exactly these classes."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in _CLASSES or (isinstance(obj, type) and obj in _CLASSES):
            return NotImplemented
        raise SpoolError(
            f"an argument contains {safe_repr(obj, 100)}, but only plain data can be sent, such as text, "
            "numbers, lists and dates: convert it, or set spooler_allow_pickle on both sides"
        )


def _dumped(value: object, allow_pickle: bool) -> bytes:
    try:
        if allow_pickle:
            return pickle.dumps(value, PROTOCOL)
        stream = io.BytesIO()
        _PlainPickler(stream, PROTOCOL).dump(value)
        return stream.getvalue()
    except SpoolError:
        raise
    except Exception as error:  # whatever the arguments' own code raises
        raise SpoolError(f"the arguments cannot be pickled: {safe_repr(error, 200)}") from error


def _loaded(data: object, key: str, allow_pickle: bool) -> Any:
    if not isinstance(data, bytes):
        raise UnrunnableJob(f"the pair {key} is not bytes")
    load: Callable[[bytes], Any] = pickle.loads if allow_pickle else _load_plain
    try:
        return load(data)
    except UnrunnableJob:
        raise
    except Exception as error:  # a pickle can raise anything
        raise UnrunnableJob(
            f"the pair {key} is not a pickle that can be read: {safe_repr(error, 200)}"
        ) from error


def _load_plain(data: bytes) -> Any:
    """Load a pickle of plain data."""
    if len(data) > LONGEST:
        raise UnrunnableJob(f"a pickle of {len(data):,} bytes is refused: the maximum is {LONGEST:,}")
    try:
        return load_plain(data)
    except RefusedPickle as error:
        raise UnrunnableJob(
            f"a pickle is refused, because {error}: it could run any code. Set spooler_allow_pickle if "
            "nobody else can write to the directory"
        ) from None


def _json(env: Mapping[str, Any], key: str, default: str) -> Any:
    text = env.get(key, default)
    if len(text) > LONGEST:
        raise UnrunnableJob(f"the pair {key} has {len(text):,} bytes: the maximum is {LONGEST:,}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnrunnableJob(f"the pair {key} is not JSON: {safe_repr(error, 200)}") from None
