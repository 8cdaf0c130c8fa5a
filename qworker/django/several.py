"""several: several tasks at once: an iterable of arguments, or a chain.

Comes from:  ``tasks.py``.
Goes to:     ``execution/calls.py``, one task after another; ``waiting/fetching.py`` for their results.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from qworker.django.brokers import Broker, get_broker
from qworker.django.conf import conf
from qworker.django.execution import parts
from qworker.django.execution.calls import enqueue, package_of
from qworker.django.execution.endings import call_of
from qworker.django.execution.running import note
from qworker.django.humanhash import uuid
from qworker.django.models import Task
from qworker.django.transports.packages import options_apart
from qworker.django.waiting import fetching
from qworker.safe_repr import safe_repr

Link = Any
"""``(func, args, kwargs)``, ``(func, args)``, ``(func,)`` or a function. kwargs may include options of
async_task()."""


def async_iter(func: str | Callable[..., Any], args_iter: Iterable[Any], **kwargs: Any) -> str:
    """Have a cluster call *func* for each item of *args_iter*; return the id of the task whose result is the
    list of all results.

    A tuple in *args_iter* has the arguments of a call; anything else is its only argument. kwargs: options
    and keywords of every call, as for async_task(); a hook is ignored. Raises ValueError for an id, which all
    calls would share.
    """
    kwargs, options = options_apart(kwargs)
    _check_no_id(options, "async_iter", "of a call")
    options.pop("hook", None)
    calls = [each if isinstance(each, tuple) else (each,) for each in args_iter]
    name, identity = uuid()
    given = options.pop("cached", conf.cached)
    if not calls:  # nothing will ever end
        more = {"id": identity, "task_name": name, "cached": given, "save": options.get("save")}
        package = package_of(func, (), kwargs, more)
        note(package, True, [])
        parts.store({**package, "args": []})  # the list of the calls' arguments, as for any iterable
        return identity
    options |= {
        "group": identity,
        "iter_count": len(calls),
        "iter_cached": given,
    }
    options.setdefault(
        "broker", None if options.get("sync", conf.sync) else get_broker(options.get("cluster"))
    )
    for number, args in enumerate(calls):
        enqueue(func, args, kwargs, options, warns=number == 0)
    return identity


def async_chain(
    chain: Iterable[Link],
    group: str | None = None,
    cached: Any = None,
    sync: bool | None = None,
    broker: Broker | None = None,
) -> str:
    """Have a cluster call one function after another; return the group of the results.

    Each is enqueued when the previous one has succeeded. chain: ``(func, args, kwargs)`` for each. Raises
    TypeError or ValueError for an invalid link, and for an id of any link but the first.
    """
    links = list(chain)
    name = group or uuid()[1]
    if not links:
        return name
    for number, link in enumerate(links):
        called = call_of(link)
        if number:
            _check_no_id(called[3], "async_chain", "of a link after the first")
        package_of(*called)  # invalid links must fail here, not in the previous task
    func, args, kwargs, options = call_of(links[0])
    given = {"cached": cached, "sync": sync, "broker": broker}
    options |= {option: value for option, value in given.items() if value is not None}
    enqueue(func, args, kwargs, {**options, "chain": links[1:], "group": name})
    return name


def _check_no_id(options: dict[str, Any], where: str, what: str) -> None:
    if options.get("id"):
        raise ValueError(
            f"{where}() creates the id {what} itself: remove id={safe_repr(options['id'], 80)} from q_options"
        )


class Iter:
    """An iterable of arguments, and the call of a function for each: see async_iter()."""

    def __init__(
        self,
        func: str | Callable[..., Any] | None = None,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        cached: Any = None,
        sync: bool | None = None,
        broker: Broker | None = None,
    ) -> None:
        self.func = func
        self.args = list(args or ())
        self.kwargs = kwargs or {}
        self.id = ""
        self.broker = broker
        self.cached = conf.cached if cached is None else cached
        self.sync = conf.sync if sync is None else sync
        self.started = False

    def append(self, *args: Any) -> int:
        """Add the arguments of a call; return how many calls there are. Results of an earlier run are no
        longer available."""
        self.args.append(args)
        self.started = False
        return self.length()

    def run(self) -> str:
        """Enqueue all calls; return the id of the task with all results."""
        if self.func is None:
            raise TypeError("Iter has no function to call")
        kwargs, options = options_apart(self.kwargs)
        options |= {"cached": self.cached, "sync": self.sync, "broker": self.broker}
        self.id = async_iter(self.func, self.args, **{**kwargs, "q_options": options})
        self.started = True
        return self.id

    def result(self, wait: int = 0) -> list[Any] | None:
        """Return all results; None until all have ended. wait: milliseconds, -1 for no limit."""
        found = self.fetch(wait)
        return None if found is None else found.result

    def fetch(self, wait: int = 0) -> Task | None:
        """Return the task with all results; None until all have ended."""
        return fetching.fetch(self.id, wait, self.cached) if self.started else None

    def length(self) -> int:
        """Return how many calls there are."""
        return len(self.args)


class Chain:
    """Functions that are called one after another: see async_chain()."""

    def __init__(
        self,
        chain: Iterable[Link] | None = None,
        group: str | None = None,
        cached: Any = None,
        sync: bool | None = None,
        broker: Broker | None = None,
    ) -> None:
        self.chain = list(chain or ())
        self.group = group or ""
        self.broker = broker
        self.cached = conf.cached if cached is None else cached
        self.sync = conf.sync if sync is None else sync
        self.started = False

    def append(self, func: str | Callable[..., Any], *args: Any, **kwargs: Any) -> int:
        """Add a call, with async_task()'s arguments; return how many there are. Results of an earlier run are
        removed from the group."""
        self.chain.append((func, args, kwargs))
        if self.started:
            fetching.delete_group(self.group, cached=self.cached)
            self.started = False
        return self.length()

    def run(self) -> str:
        """Enqueue the first call; return the group of the results."""
        self.group = async_chain(list(self.chain), self.group or None, self.cached, self.sync, self.broker)
        self.started = True
        return self.group

    def result(self, wait: int = 0) -> list[Any] | None:
        """Return the results; None until all have ended. wait: milliseconds, -1 for no limit."""
        if not self.started:
            return None
        return fetching.results(self.group, wait=wait, count=self.length(), cached=self.cached)

    def fetch(self, failures: bool = True, wait: int = 0) -> Any:
        """Return the tasks; None until all have ended."""
        if not self.started:
            return None
        return fetching.fetch_group(self.group, failures, wait, self.length(), self.cached)

    def current(self) -> int | None:
        """Return the index of the running call, from 0; None before run()."""
        return (fetching.count_group(self.group, cached=self.cached) or 0) if self.started else None

    def length(self) -> int:
        """Return how many calls there are."""
        return len(self.chain)
