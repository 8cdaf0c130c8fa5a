"""Functions that a spooler runs: a call enqueues a job, which finds the function by its name.

Comes from:  ``decorators``; jobs, with their pairs.
Goes to:     ``uwsgi.spool()``, ours or the real one; the function itself.
Thread:      any; functions are decorated while the application is imported.

Intended differences from uWSGI's own module:

- Values may be text, bytes and whole numbers, and ``at`` a datetime or a number.
- A value that is not UTF-8 is passed as bytes; uWSGI's module fails with it every time.
- Only plain data is passed by ``pass_arguments``: see ``arguments``.
- A job for an unknown function raises UnknownFunction and is set aside, instead of being retried forever; but
  it waits if a module could not be imported.
- Two functions with the same name cause a warning: jobs only contain the name.
- Either of ``spooler`` and ``spooler-external`` is enough. Outside uWSGI only calls need one: a module can be
  imported without any.
- A ``@spoolraw`` function that does not return a number causes a warning in the log, and is tried again.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from qworker.errors import NoSpooler, NoSpoolFunction, NotSpooled, SpoolError, UnknownFunction, UnrunnableJob
from qworker.safe_repr import safe_repr
from qworker.spooler import uwsgi_api
from qworker.spooler.arguments import read_arguments, write_arguments
from qworker.spooler.files.packet import encode
from qworker.spooler.uwsgi.enqueueing import as_body, epoch
from qworker.spooler.uwsgi_api import uwsgi_of_process

logger = logging.getLogger(__name__)

uwsgi: Any = uwsgi_of_process(uwsgi_api)
"""uWSGI's own module inside uWSGI, ours elsewhere."""
spooler_functions: dict[str, Callable[..., Any]] = {}
"""The decorated functions, by name."""
_OF_THE_JOB = ("message_dict", "spooler", "priority", "at", "body")
"""Keywords for the job itself, never for the function, with pass_arguments."""


class Spooled:
    """A decorated function. Calling it, or its spool(), enqueues a job and returns the path of its file, as
    bytes; f is the function itself.

    answer: the outcome of a job that does not raise, whatever the function returns; None: the return value.
    """

    def __init__(self, function: Callable[..., Any], answer: int | None, pass_arguments: bool) -> None:
        functools.update_wrapper(self, function)
        self.f = function
        self.pass_arguments = pass_arguments
        self._base: dict[Any, Any] = {b"ud_spool_func": function.__name__}
        if answer is not None:
            self._base[b"ud_spool_ret"] = answer
        remember(function)
        with suppress(AttributeError):  # a method, or another object
            function.spool = self.__call__  # type: ignore[attr-defined]

    def __call__(self, *args: Any, **kwargs: Any) -> bytes:
        """Enqueue a job. Without pass_arguments the arguments are its pairs, as a dictionary, as keywords, or
        both; keywords win. With it they are the function's, and the keywords of _OF_THE_JOB are for the
        job."""
        message = dict(self._base)
        if self.pass_arguments:
            message.update((key.encode(), kwargs.pop(key)) for key in _OF_THE_JOB if key in kwargs)
            allowed = uwsgi_api.options().allow_pickle
            message.update(write_arguments(args, kwargs, allow_pickle=allowed))
        else:
            if len(args) > 1 or not all(isinstance(pairs, Mapping) for pairs in args):
                raise NotSpooled(
                    f"{self.f.__name__} takes the pairs of a job, one dictionary or keywords: for other "
                    "arguments decorate it with pass_arguments=True"
                )
            for pairs in (*args, kwargs):
                message.update((_encoded(key), value) for key, value in pairs.items())
        if uwsgi is not uwsgi_api:
            message = {_encoded(key): _as_uwsgi_takes_it(key, value) for key, value in message.items()}
            _check_size(message)
        path: bytes = uwsgi.spool(message)
        return path

    spool = __call__


def decorated(function: Callable[..., Any] | None, answer: int | None, pass_arguments: bool) -> Any:
    """Return *function*, decorated; None: return a decorator. NoSpooler inside a uWSGI without spoolers."""
    if function is None:
        return functools.partial(decorated, answer=answer, pass_arguments=pass_arguments)
    if uwsgi is not uwsgi_api and not {"spooler", "spooler-external"} & set(uwsgi.opt):
        raise NoSpooler(f"{function.__name__} needs a spooler: set spooler, or spooler-external, in uWSGI")
    return Spooled(function, answer, pass_arguments)


def remember(function: Callable[..., Any]) -> None:
    """Register *function* under its name, for jobs."""
    name = function.__name__
    before = spooler_functions.get(name)
    if before is not None and _place(before) != _place(function):
        logger.warning(
            "jobs for %s now run %s instead of %s: they only contain the name, so rename one of them",
            name,
            _place(function),
            _place(before),
        )
    spooler_functions[name] = function


def manage_spool_request(env: dict[Any, Any]) -> int:
    """Run the function of a job, and return the outcome. UnrunnableJob when no retry can help;
    NoSpoolFunction when the function may be in a module that could not be imported."""
    pairs = {_decoded(key): value for key, value in env.items()}
    name = _decoded(pairs.get("ud_spool_func", ""))
    function = spooler_functions.get(name)
    if function is None and uwsgi_api.not_imported:
        raise NoSpoolFunction(
            f"no function {safe_repr(name, 100)} is decorated here, and {', '.join(uwsgi_api.not_imported)} "
            "could not be imported: correct that and restart the spooler; the job waits"
        )
    if function is None:
        raise UnknownFunction(
            f"no function {safe_repr(name, 100)} is decorated here: import its module in the spooler, then "
            f"retry the job. There are {safe_repr(sorted(spooler_functions), 200)}"
        )
    answer = _answer(pairs)
    call = read_arguments(pairs, allow_pickle=uwsgi_api.options().allow_pickle)
    if call is None:
        returned = function({key: _decoded(value) for key, value in pairs.items()})
    else:
        returned = function(*call[0], **call[1])
    if answer is not None:
        return answer
    if isinstance(returned, int):
        return int(returned)
    logger.warning(
        "%s returned %s, which is not a return code: the job runs again", name, safe_repr(returned, 100)
    )
    return uwsgi_api.SPOOL_RETRY


def _answer(pairs: dict[Any, Any]) -> int | None:
    if "ud_spool_ret" not in pairs:
        return None
    try:
        return int(pairs["ud_spool_ret"])
    except (ValueError, TypeError):
        shown = safe_repr(pairs["ud_spool_ret"], 100)
        raise UnrunnableJob(f"the pair ud_spool_ret of the job is not a number: {shown}") from None


def _decoded(value: Any) -> Any:
    """Return bytes that are valid UTF-8 as text; anything else unchanged."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return value


def _encoded(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return b"%d" % value if isinstance(value, int) and not isinstance(value, bool) else value


def _as_uwsgi_takes_it(key: Any, value: Any) -> Any:
    if _encoded(key) == b"at":
        return b"%d" % math.ceil(epoch(value))
    return as_body(value) if _encoded(key) == b"body" else _encoded(value)


def _check_size(message: Mapping[Any, Any]) -> None:
    """Raise NotSpooled for sizes that uWSGI would silently truncate: it keeps two bytes of each length."""
    try:
        encode({key: value for key, value in message.items() if key != b"body"})
    except SpoolError as error:
        raise NotSpooled(str(error)) from error


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function.__name__)}"
