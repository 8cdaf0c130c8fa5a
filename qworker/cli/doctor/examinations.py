"""Examinations: the checks of `qworker doctor`, each a function from the app to findings.

Comes from:  doctor.
Goes to:     the settings, the broker, the result store, the tasks, the machine.
Thread:      main. Nothing is changed, except for a small file that is written beside the broker and removed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
import types
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Union, get_args, get_origin, get_type_hints

from kombu.utils import json as kombu_json

from qworker.cli.beat import examined
from qworker.cli.discovery import AppChoice, load_tasks
from qworker.cli.doctor import suitability
from qworker.cli.names import queues_in_use, queues_option
from qworker.cli.output import age, count
from qworker.cli.servers import facts
from qworker.clock import Clock
from qworker.control import looking
from qworker.errors import BrokerUnavailable
from qworker.naming import DISTRIBUTION, DJANGO_PACKAGES, own_tasks
from qworker.tasks.codecs import Codecs
from qworker.transports import broker_urls
from qworker.transports.lease import QueueInfo
from qworker.transports.presence import Presence, held_seconds
from qworker.transports.sql.embedded.path import database_path

# RETURNING, which claims and settles in one statement.
_OLDEST_SQLITE = (3, 35, 0)
_SCARCE_DISK = 100 * 1024**2
_SCARCE_FILES = 256
_LARGEST_SKEW = 2.0  # seconds
_OLD_MESSAGE = 600.0  # seconds
_HELD = 10.0  # seconds


class Finding(NamedTuple):
    """The result of a check.

    - severity: "error", "warning" or "ok".
    - what: the finding.
    - advice: what to do; "" for nothing.
    """

    severity: str
    what: str
    advice: str = ""


def interpreter(choice: AppChoice) -> Iterator[Finding]:
    """Check Python, SQLite, and limits of the system."""
    yield Finding("ok", f"app {choice.target}: {choice.how}")
    version = ".".join(map(str, sys.version_info[:3]))
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        yield Finding(
            "error",
            f"SQLite {sqlite3.sqlite_version} is too old for the embedded broker",
            "use a Python that is built with SQLite 3.35 or newer, or another broker",
        )
    else:
        yield Finding("ok", f"Python {version}, SQLite {sqlite3.sqlite_version}")
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < _SCARCE_FILES:
        yield Finding("warning", f"a process may open only {hard} files", "raise the limit: ulimit -n 4096")


def installation(choice: AppChoice) -> Iterator[Finding]:
    """Check whether another project's package with the same import name is installed in the same place."""
    try:
        theirs = version("qworker")
    except PackageNotFoundError:
        return
    yield Finding(
        "error",
        f"the package qworker {theirs} of another project is installed, in the same directory as ours",
        f"pip uninstall qworker {DISTRIBUTION}, then install {DISTRIBUTION} again",
    )


def settings(choice: AppChoice) -> Iterator[Finding]:
    """Check the settings, all problems at once."""
    problems = choice.app.conf.problems()
    for problem in problems:
        yield Finding("ok" if problem.severity == "note" else problem.severity, str(problem), "")
    if all(problem.severity == "note" for problem in problems):
        yield Finding("ok", "every setting has a valid value")


def tasks(choice: AppChoice) -> Iterator[Finding]:
    """Check whether the app has tasks, and whether their results can be stored."""
    load_tasks(choice.app)
    own = {name: choice.app.tasks[name] for name in own_tasks(choice.app.tasks)}
    if DJANGO_PACKAGES in choice.app.tasks:
        more = f"; there {'is' if len(own) == 1 else 'are'} also {count(len(own), 'task')}" if own else ""
        yield Finding("ok", f"functions of the project are called by name with async_task(){more}")
    elif not own:
        yield Finding(
            "warning",
            f"{choice.target} has no tasks",
            "decorate functions with @app.task, and import their modules (setting `imports`)",
        )
    else:
        yield Finding("ok", count(len(own), "task"))
    serializer = choice.app.conf.result_serializer
    if serializer != "json":
        return
    for name, task in own.items():
        kept = not task.ignore_result
        if kept and (bad := unserialisable(task.run)) is not None:
            yield Finding(
                "error",
                f"{name} returns {bad}, which {serializer} cannot store: its runs will fail",
                "return plain values (numbers, text, lists, dicts), or set ignore_result=True",
            )


def broker(choice: AppChoice) -> Iterator[Finding]:
    """Check whether the broker is available, its contents, and its workers."""
    store = choice.app.broker
    now = choice.app.clock.now()
    infos = {info.queue: info for info in store.admin.queues()}
    if store.missing:
        yield from _not_there(store.missing, "nothing has been sent there yet", "broker_url", choice)
    else:
        ready = sum(info.ready for info in infos.values())
        yield Finding("ok", f"broker {store.url}: {count(ready, 'message')} ready")
    workers = looking.workers(choice.app)
    worked_on = {queue for worker in workers for queue in worker.queues}
    if workers:
        yield Finding(
            "ok", f"{count(len(workers), 'worker')}: {', '.join(worker.name for worker in workers)}"
        )
    yield from _held(choice, workers, infos, now)
    if "workers" in store.lacks:
        yield Finding("ok", "this broker does not report its workers")
        worked_on |= {*queues_in_use(choice.app), *infos}
    for queue, senders in sorted(queues_in_use(choice.app).items()):
        if queue in worked_on:
            continue
        info = infos.pop(queue, None)
        yield from _unattended(choice, queue, info.ready if info else 0, senders, bool(workers))
    for queue, info in infos.items():
        if queue not in worked_on and info.ready:
            yield from _unattended(choice, queue, info.ready, "", bool(workers))
        if info.oldest is not None and queue in worked_on and now - info.oldest > _OLD_MESSAGE:
            waited = age(now - info.oldest)
            yield Finding(
                "warning",
                f"queue {queue!r} is behind: its oldest message has been waiting for {waited}",
                "start more workers",
            )
    for info in store.admin.queues():
        if info.dead:
            advice = "see why: qworker dead list"
            yield Finding("warning", f"{count(info.dead, 'dead letter')} of queue {info.queue!r}", advice)
        if info.oldest is not None and info.oldest - now > _LARGEST_SKEW:
            ahead = age(info.oldest - now)
            yield Finding(
                "error", f"a message of queue {info.queue!r} was sent {ahead} in the future", _SET_CLOCKS
            )


def _held(
    choice: AppChoice, workers: Sequence[Presence], infos: Mapping[str, QueueInfo], now: float
) -> Iterator[Finding]:
    """Find workers whose slots have been occupied for long, while messages wait for them."""
    for worker in workers:
        seconds = held_seconds(worker, now)
        waiting = worker.waiting + sum(infos[queue].ready for queue in worker.queues if queue in infos)
        if seconds < _HELD or not waiting:
            continue
        task = worker.running[0]
        known = choice.app.tasks.get(task.name)
        limited = choice.app.conf.task_time_limit or (known is not None and known.time_limit)
        # Without child processes the worker runs tasks in threads, which cannot be killed.
        end, later = (
            (f"end it with: qworker revoke {task.id} --terminate", "set time_limit for tasks that may hang")
            if worker.pool
            else (
                "restart the worker",
                "use the prefork pool for tasks that may hang, or make them async def",
            )
        )
        yield Finding(
            "warning",
            f"{worker.name}: no slot has been free for {age(seconds)}, and "
            f"{count(waiting, 'message waits', 'messages wait')}; {task.name}[{task.id}] has run for "
            f"{age(now - task.started)}{'' if limited else ', and has no time limit'}",
            f"{end}; {later}, or start more workers",
        )


def _not_there(path: str, what: str, setting: str, choice: AppChoice) -> Iterator[Finding]:
    """Report a file, directory or table that the first task creates, if possible."""
    where = Path(path)
    above = next(each for each in where.absolute().parents if each.exists())
    if not where.is_absolute() or (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        advice = f"correct {setting} ({choice.app.conf.source(setting)}), unless nothing has been sent yet"
        yield Finding("warning", f"there is no {path}: {what}", advice)
    else:
        advice = f"let the user that runs this write to {above}, or correct {setting}"
        yield Finding("error", f"there is no {path}, and it cannot be created", advice)


_SET_CLOCKS = "set the clocks of all machines by NTP; ETAs, expiry and leases depend on them"


def _unattended(choice: AppChoice, queue: str, ready: int, senders: str, others: bool) -> Iterator[Finding]:
    start = f"start one: qworker start{queues_option(choice.app, queue)}"
    if DJANGO_PACKAGES in choice.app.tasks:
        name = "" if queue == choice.app.conf.task_default_queue else f" --name {queue}"
        start = f"start one: python manage.py qcluster{name}"
    whose = f" ({senders})" if senders else ""
    if ready:
        waiting = count(ready, "message waits", "messages wait")
        yield Finding("error", f"no worker consumes queue {queue!r}{whose}, where {waiting}", start)
    elif others:
        yield Finding("error", f"there are workers, but none consumes queue {queue!r}{whose}", start)
    else:
        yield Finding("warning", f"no worker consumes queue {queue!r}{whose}", start)


def suits(choice: AppChoice) -> Iterator[Finding]:
    """Compare the app's needs with the broker's capabilities. (Stores that cannot be opened are reported
    elsewhere.)"""
    for problem in suitability.problems(choice):
        if problem.severity == "warning":
            yield Finding("warning", str(problem))


def servers(choice: AppChoice) -> Iterator[Finding]:
    """Check servers: version, clock, disk. (Unavailable ones are reported elsewhere.)"""
    conf = choice.app.conf
    urls = [("broker_url", url) for url in broker_urls(conf.broker_url)]
    if conf.result_backend is not None:
        urls.append(("result_backend", conf.result_backend))
    for setting, url in urls:
        with suppress(BrokerUnavailable):
            yield from (Finding(*fact) for fact in facts(url, setting, conf))


def database_directory(choice: AppChoice) -> Iterator[Finding]:
    """Check the directory of the embedded broker: free space, permissions, clock. Network file systems are
    refused when it is opened."""
    url = choice.app.broker.url
    if not url.startswith("sqlite:"):
        return
    directory = database_path(url).parent
    if not directory.is_dir():
        return  # created by the first task; whether that is possible was reported
    free = shutil.disk_usage(directory).free
    if free < _SCARCE_DISK:
        severity = "error" if free < _SCARCE_DISK // 10 else "warning"
        what = f"{directory} has {free // 1024**2} MB left"
        yield Finding(severity, what, "make room: nothing can be sent when it is full")
    yield from writable(directory, choice.app.clock)


def writable(directory: Path, clock: Clock) -> Iterator[Finding]:
    """Check whether a directory is writable, and whether its clock agrees with this machine's."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
            skew = os.fstat(file.fileno()).st_mtime - clock.now()
    except OSError as error:
        yield Finding(
            "error",
            f"cannot write to {directory}: {error.strerror}",
            "let the user that runs this write to it",
        )
        return
    if abs(skew) > _LARGEST_SKEW:
        yield Finding("error", f"the clock of {directory} differs by {age(abs(skew))} from ours", _SET_CLOCKS)


def results(choice: AppChoice) -> Iterator[Finding]:
    """Check whether the result store is available. The error names the extra to install, or is the broker's,
    which determines where results are."""
    conf, place = choice.app.conf, choice.app.stores.place
    if conf.result_backend is None:
        _ = choice.app.broker  # raises an error that is then reported once
    if DJANGO_PACKAGES in choice.app.tasks:
        choice.app.backend.get("doctor-looks-for-nothing")
        yield Finding("ok", "results of async_task() are in the project's database, or its cache")
        return
    if place.why_none and conf.result_backend is None and not conf.task_ignore_result:
        what, _, advice = place.why_none.partition(": ")
        yield Finding("warning", what, f"{advice}; or task_ignore_result = True if results are not needed")
    elif place.why_none:
        yield Finding("ok", "no results are kept")
    elif place.replies:
        choice.app.backend.reply_to()
        yield Finding("ok", "results are sent to the caller (rpc://), and no other process can read them")
    else:
        choice.app.backend.get("doctor-looks-for-nothing")
        path = None if place.with_broker else choice.app.stores.missing_results
        where = "beside the messages" if place.with_broker else f"in {place.url}"
        if path is None:
            yield Finding("ok", f"results are kept {where}")
        else:
            yield from _not_there(path, "no result has been stored there yet", "result_backend", choice)


def schedules(choice: AppChoice) -> Iterator[Finding]:
    """Check the schedule's entries, where they are stored, and whether a scheduler is running."""
    yield from (Finding(*fact) for fact in examined.facts(choice))


Examination = Callable[[AppChoice], Iterator[Finding]]

EXAMINATIONS: tuple[Examination, ...] = (
    interpreter,
    installation,
    settings,
    tasks,
    suits,
    servers,
    broker,
    database_directory,
    results,
    schedules,
)


# -- Return types: whether values of a task's return annotation can be stored as JSON --
# Thread: pure, except for the user's annotations, which are evaluated.

CODECS = Codecs(exact=False)
"""Converts results according to annotations."""
_PLAIN = (str, int, float, list, tuple, dict, bytes, types.NoneType)
_CONTAINERS = frozenset({list, tuple, dict})


def unserialisable(function: Callable[..., Any]) -> str | None:
    """Return the type in a function's return annotation that JSON does not support; None when there is none,
    or it is unknown."""
    try:
        hints = get_type_hints(function)
    except Exception:  # noqa: BLE001
        # Annotations are user code, and may use names known only to type checkers.
        return None
    return _first_bad(hints.get("return", Any))


def _first_bad(annotation: Any, beside: bool = False) -> str | None:
    """Return the first unsupported type in an annotation. beside: the annotation is a member of a union, and
    a worker cannot tell which member's type a value has."""
    if not beside and CODECS.of(annotation).typed:
        return None
    origin, parts = get_origin(annotation), get_args(annotation)
    if (is_union := origin in (Union, types.UnionType)) or origin in _CONTAINERS:
        within = beside or is_union
        return next((bad for part in parts if (bad := _first_bad(part, within)) is not None), None)
    plain = origin or annotation
    if not isinstance(plain, type) or _storable(plain):
        return None
    return f"{plain.__module__}.{plain.__qualname__}".removeprefix("builtins.")


def _storable(kind: type) -> bool:
    """Return whether the JSON encoder accepts, or may accept, values of a class."""
    if kind is object or kind is Any or hasattr(kind, "__json__") or issubclass(kind, _PLAIN):
        return True
    if Protocol in kind.__mro__ or getattr(kind, "_is_protocol", False):
        return True
    if kind.__module__ in ("collections.abc", "typing"):  # Mapping and Sequence may be dict and list
        return issubclass(kind, Collection) and not issubclass(kind, (Set, Iterator, AsyncIterator))
    return any(issubclass(kind, known) for known in getattr(kombu_json, "_encoders", ()))
