"""calls: makes the package of a call, and enqueues it; or runs it at once, for ``sync``.

Comes from:  ``async_task``, ``schedule`` and similar functions; ``work.py``, with follow-ups of a task.
Goes to:     the broker; ``running.py`` and ``endings.py`` for ``sync``.
Thread:      any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from django.db import Error, connections
from django.utils import timezone

from qworker.django.brokers import Broker, get_broker
from qworker.django.conf import conf, logger
from qworker.django.execution import cached as cached_results
from qworker.django.execution import endings
from qworker.django.execution.running import SENDER, is_kept, row_of, run, unpacked
from qworker.django.humanhash import uuid
from qworker.django.signals import pre_enqueue
from qworker.django.signing import PickleSerializer, SignedPackage
from qworker.django.transports import task_rows
from qworker.django.transports.packages import Package, options_apart
from qworker.interrupts import reraise_interrupt
from qworker.safe_repr import safe_repr, storable

LONGEST = 100
"""Maximum characters of names and groups."""


def async_task(func: str | Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Have a cluster call ``func(*args, **kwargs)``; return the id of the task, 32 hexadecimal digits.

    func: a dotted path, or a function that can be pickled. The following keywords are options and are not
    passed to the function. They may also be in the dict ``q_options``; then keywords with the same names are
    passed to the function:

    - hook: a dotted path or a function, called with the ``Task`` when it has succeeded or failed.
    - group (text): the group of its result.
    - save (bool): whether to store a success. None: as in the settings.
    - timeout (seconds): when its process is killed. None: as in the settings; -1: never.
    - sync (bool): run it here and now.
    - cached (True or seconds): store the result in the cache instead of the database.
    - ack_failure (bool): False: it is redelivered when it fails.
    - broker: a Broker to use. cluster (text): the name of another cluster.
    - task_name (text): its name, instead of a generated one.

    Raises ValueError for a group or name of more than 100 characters and for invalid seconds, TypeError for
    an invalid broker, pickle's errors with a note that names the argument, and the broker's errors.
    """
    keywords, options = options_apart(kwargs)
    return enqueue(func, args, keywords, options)


def enqueue(
    func: str | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any] | None = None,
    warns: bool = True,
) -> str:
    """Like async_task(), with separate args, kwargs and options. warns: warn if the cache is not shared."""
    package = package_of(func, args, kwargs, dict(options or {}))
    broker: Broker | None = package.pop("broker", None)
    if broker is not None and not hasattr(broker, "send"):
        raise TypeError(f"broker={safe_repr(broker, 80)} must be a Broker, such as get_broker() returns")
    if conf.sync:
        package.setdefault("sync", True)
    pre_enqueue.send(SENDER, task=package)
    sync = package.pop("sync", False)  # a receiver may have set it
    if warns and (package.get("cached") or package.get("iter_cached")):
        cached_results.warn_unshared(bool(sync))
    try:
        text = SignedPackage.dumps(package)
    except Exception as error:
        if culprit := _unpicklable(package):
            error.add_note(f"{culprit} of the call of {safe_repr(package['func'], 80)} cannot be pickled")
        raise
    if sync:
        _run_here(text)
    else:
        (broker or get_broker(package.get("cluster"))).send(text, package)
        logger.debug("Enqueued [%s] %s", package.get("cluster") or conf.cluster_name, package["id"])
    return str(package["id"])


def _unpicklable(package: Package) -> str:
    """Return the name of the part of a call that cannot be pickled; "" if each part can."""
    named = {"the function": package["func"]}
    named |= {f"argument {number}": each for number, each in enumerate(package["args"], 1)}
    named |= {f"argument {name!r}": each for name, each in package["kwargs"].items()}
    for name, each in named.items():
        try:
            PickleSerializer.dumps(each)
        except Exception as error:  # noqa: BLE001 - the user's classes
            reraise_interrupt(error)
            return f"{name}, {safe_repr(each, 80)},"
    return ""


def package_of(
    func: str | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> Package:
    """Return the package of a call. Raises ValueError for an invalid name, group, cluster or seconds."""
    name, identity = uuid()
    for option in ("group", "task_name", "cluster"):
        _check_text(option, options.get(option))
    _check_seconds(options)
    package: Package = {
        "id": options.pop("id", None) or identity,
        "name": options.pop("task_name", None) or name,
        "func": func,
        "args": args,
        "kwargs": kwargs,
        "started": timezone.now(),
    }
    # Options must not replace the call itself.
    package |= {name: value for name, value in options.items() if value is not None and name not in package}
    if "cached" not in package and conf.cached:
        package["cached"] = conf.cached
    return package


def _check_text(option: str, value: Any) -> None:
    if value is None:
        return
    text = str(value)
    if len(text) > LONGEST or storable(text) != text:
        raise ValueError(
            f"{option}={safe_repr(value, 80)} must have at most {LONGEST} characters, without NUL or lone "
            "surrogates"
        )


def _check_seconds(options: Mapping[str, Any]) -> None:
    timeout = options.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and math.isfinite(timeout)):
        raise ValueError(f"timeout={safe_repr(timeout, 80)} must be a number of seconds, or -1 for no limit")
    for cached in (options.get("cached"), options.get("iter_cached")):
        if cached and not _is_positive(cached):
            raise ValueError(f"cached={safe_repr(cached, 80)} must be True or a positive number of seconds")


def _is_positive(value: Any) -> bool:
    try:
        return 0 < float(value) < math.inf
    except (TypeError, ValueError, OverflowError):
        return False


def signed(package: Package) -> str:
    """Send ``pre_enqueue``, and return *package* as signed text."""
    pre_enqueue.send(SENDER, task=package)
    return SignedPackage.dumps(package)


def _run_here(text: str) -> None:
    """Run the package *text* and its follow-ups, one after another."""
    waiting = [text]
    while waiting:
        package = unpacked(waiting.pop(0))
        _run_between_savepoints(package)
        following = endings.end(package)
        if is_kept(package):
            task_rows.save(row_of(package))
        for func, args, kwargs, options in following:
            local = {name: value for name, value in options.items() if name not in ("broker", "sync")}
            waiting.append(signed(package_of(func, args, kwargs, local)))


def _run_between_savepoints(package: Package) -> None:
    """Run *package*. A statement that fails in it must not break the caller's transactions: a worker would
    not use them, and the result could not be stored."""
    blocks = [each for each in connections.all(initialized_only=True) if each.in_atomic_block]
    savepoints = [(each, each.savepoint()) for each in blocks if not each.needs_rollback]
    try:
        run(package)
    except Exception as error:  # noqa: BLE001 - a failure is a result, as in a worker
        reraise_interrupt(error)
        logger.debug("task %s failed", package["id"], exc_info=error)
        for connection, savepoint in savepoints:
            if connection.needs_rollback or isinstance(error, Error):
                connection.needs_rollback = False
                connection.savepoint_rollback(savepoint)
    else:
        for connection, savepoint in savepoints:
            if not connection.needs_rollback:
                connection.savepoint_commit(savepoint)
