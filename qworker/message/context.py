"""Context: the request of the running task, ``task.request``.

Comes from:  ``execution``, which pushes a Context before the body of a task runs, and pops it afterwards.
Goes to:     ``task.request``; publishing, which reads parent and root from it.
Thread:      any. It is in a context variable, so each thread and asyncio task has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Protocol

from qworker.message.chain_text import CarriedChain
from qworker.message.marks import MARKS

if TYPE_CHECKING:
    from qworker.message.protocol import Body

_NOTHING: Mapping[str, Any] = {}

_EMBEDDED = frozenset(("callbacks", "errbacks", "chain", "chord"))

_DEFAULTS: dict[str, Any] = {
    "id": None,
    "task": None,
    "args": (),
    "kwargs": _NOTHING,
    "lang": None,
    "retries": 0,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "root_id": None,
    "parent_id": None,
    "timelimit": None,
    "origin": None,
    "hostname": None,
    "delivery_info": None,
    "reply_to": None,
    "correlation_id": None,
    "callbacks": None,
    "errbacks": None,
    "chain": None,
    "chord": None,
    "is_eager": False,
    "called_directly": True,
    "ignore_result": None,
    "logfile": None,
    "loglevel": None,
    "utc": True,
    "argsrepr": None,
    "kwargsrepr": None,
    "shadow": None,
    "stamps": None,
    "stamped_headers": None,
    "replaced_task_nesting": 0,
    "properties": None,
    "deliveries": 1,
    "compression": None,
}

_LIMITS = {"time_limit": 0, "soft_time_limit": 1}
"""Positions of the call's limits in ``timelimit``."""

_NOT_THE_CALLERS = frozenset((*_DEFAULTS, *MARKS, "signature"))
"""Headers of the protocol and internal ones, as opposed to custom headers."""


class _Task(Protocol):
    @property
    def name(self) -> str: ...


class Context:
    """The request of a running task: ``task.request``.

    Every field of Celery's request is an attribute, and so is every custom header of the message
    (``request.my_header``). A field is read from the message on first use. An unknown name raises
    AttributeError. ``deliveries`` is an addition.
    """

    __module__ = "qworker"

    id: str
    """The task's id; None when the task was called as a function."""
    task: str | None
    """The name of the task."""
    args: tuple[Any, ...]
    """The positional arguments."""
    kwargs: dict[str, Any]
    """The keyword arguments."""
    retries: int
    """The number of earlier retries, 0 in the first attempt."""
    eta: str | None
    """When it was due, as ISO 8601 text; None for at once."""
    expires: str | None
    """When it expires, as ISO 8601 text; None for never."""
    group: str | None
    """The id of its group."""
    group_index: int | None
    """Its position in that group, from 0."""
    root_id: str | None
    """The id of the first call that led to this one."""
    parent_id: str | None
    """The id of the task that made this call; None if it was not made by a task."""
    timelimit: tuple[float | None, float | None] | None
    """The hard and the soft time limit of this call, in seconds; None for those of the task."""
    time_limit: float | None
    """The effective hard time limit, from this call or the task; None for none."""
    soft_time_limit: float | None
    """The effective soft time limit."""
    origin: str | None
    """The process that made the call, such as ``gen811@host`` with its number."""
    hostname: str | None
    """The name of the worker, such as ``celery@host``."""
    delivery_info: dict[str, Any] | None
    """The exchange, routing key and priority of the message."""
    reply_to: str | None
    """The queue for its result; None where results are not messages."""
    correlation_id: str | None
    """The correlation id of its result in that queue; its own id unless the caller sets another."""
    callbacks: list[Any] | None
    """The signatures called with its value."""
    errbacks: list[Any] | None
    """The signatures called when it fails."""
    chain: list[Any] | None
    """The signatures that follow it, last one first."""
    chord: Any
    """The signature of the body that waits for it; None for none."""
    headers: dict[str, Any] | None
    """The custom headers of the message; None for none."""
    is_eager: bool
    """Whether apply() runs it in its caller's process."""
    called_directly: bool
    """Whether it was called as a function, without a message."""
    ignore_result: bool | None
    """Whether its value is not stored. None: the task's option applies."""
    argsrepr: str | None
    """Its positional arguments, as shown in logs."""
    kwargsrepr: str | None
    """Its keyword arguments, as shown in logs."""
    shadow: str | None
    """Its name in logs; None for that of the task."""
    stamps: dict[str, Any] | None
    """Its stamps, by name."""
    stamped_headers: list[str] | None
    """The names of its stamps."""
    replaced_task_nesting: int
    """The number of replacements that led to this call."""
    properties: Mapping[str, Any] | None
    """The properties of the message."""
    children: list[Any]
    """The results of the calls made so far."""
    deliveries: int
    """The number of deliveries of this message to a worker, including this one."""
    ended: tuple[str, Any]
    """Its final state, and its value or exception; set once it has ended."""
    added: int = 0
    """The number of calls that the task has added to its chord."""
    unsent: tuple[Any, ...] = ()
    """A Followed for each call that was added to a chord but could not be sent."""
    _entered_by: Any = None
    """The task whose own __call__ a worker is calling, until Task.__call__ has noticed."""
    _outer: Context | None = None
    """The task within which this one was called as a function or run eagerly."""
    _has_ended: bool = False

    def __init__(self, **fields: Any) -> None:
        self._headers: Mapping[str, Any] = _NOTHING
        self._embed: Mapping[str, Any] = _NOTHING
        self._task: Any = None
        self.__dict__.update(fields)

    @classmethod
    def from_message(
        cls,
        headers: Mapping[str, Any],
        body: Body,
        *,
        properties: Mapping[str, Any] = _NOTHING,
        delivery_info: dict[str, Any] | None = None,
        hostname: str | None = None,
        deliveries: int = 1,
        task: _Task | None = None,
    ) -> Context:
        """Make the request of a received message. *headers* and *body* are not copied, and must not be
        changed.

        - headers, properties: of the message, checked.
        - delivery_info (mapping): its exchange, routing key and priority.
        - hostname (text): the name of the worker.
        - deliveries (number): the number of deliveries to a worker, including this one.
        - task: the called task; None finds it by name.
        """
        context = cls.__new__(cls)
        context._headers = headers
        context._embed = body[2]
        context._task = task
        context.id = headers["id"]
        context.args = body[0]
        context.kwargs = body[1]
        context.properties = properties
        context.delivery_info = delivery_info
        context.hostname = hostname
        context.deliveries = deliveries
        context.called_directly = False
        return context

    def __getattr__(self, name: str) -> Any:
        # Called only for missing attributes; the value is stored for the next access.
        if name == "children":
            value: Any = []
        elif name == "headers":
            value = {key: self._headers[key] for key in self._headers.keys() - _NOT_THE_CALLERS} or None
        elif name in _EMBEDDED:
            value = self._embed.get(name)
            if type(value) is CarriedChain:
                value = value.read()
        elif name in _LIMITS:
            value = (self.timelimit or (None, None))[_LIMITS[name]]
            if value is None and not self.called_directly:
                value = getattr(self._task, name, None)
        elif name in ("reply_to", "correlation_id"):
            value = (self.properties or _NOTHING).get(name, self.id if name == "correlation_id" else None)
        elif name.startswith("_"):
            raise AttributeError(name)
        elif name in self._headers:
            value = self._headers[name]
            if value is None:
                value = _DEFAULTS.get(name)
        elif name in _DEFAULTS:
            value = _DEFAULTS[name]
        else:
            raise AttributeError(f"the request has no field or header {name!r}")
        self.__dict__[name] = value
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field or header *name*, or *default* if there is none."""
        return getattr(self, name, default)

    def update(self, *mappings: Mapping[str, Any], **fields: Any) -> None:
        """Set fields, like dict.update."""
        self.__dict__.update(*mappings, **fields)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_outer"}

    def __repr__(self) -> str:
        return f"<Context: {self.task}[{self.id}] retries={self.retries}>"


_current: ContextVar[Context | None] = ContextVar("qworker_request", default=None)

current_context: Callable[[], Context | None] = _current.get
"""Return the context of the running task, None outside of one."""


def calling_context() -> Context | None:
    """Return the context of the task that makes a call now, None outside of one.

    As in Celery, that is the task with a message or an eager run, not a task that it calls as a function.
    """
    context = _current.get()
    while context is not None and context.called_directly:
        context = context._outer
    return context


def is_in_worker() -> bool:
    """Return whether a worker's task is running, also if it runs another eagerly or as a function."""
    context = _current.get()
    while context is not None and (context.called_directly or context.is_eager):
        context = context._outer
    return context is not None


def message_headers(context: Context) -> Mapping[str, Any]:
    """Return the unchanged headers of the message of *context*; {} outside of a worker."""
    return context._headers


def carried_chain(context: Context) -> CarriedChain | None:
    """Return the unparsed chain of the message; None if there is none, it was parsed, or the task has read it
    and may have changed it."""
    chain = None if "chain" in vars(context) else context._embed.get("chain")
    return chain if type(chain) is CarriedChain else None


def has_read_chain(context: Context) -> bool:
    """Return whether the task has read ``request.chain``, and may have passed it to another call."""
    return "chain" in vars(context)


def calls_within(context: Context) -> bool:
    """Return whether the message of *context* contains callbacks, errbacks, a chain or a chord."""
    return any(context._embed.values())


def context_of(task: _Task) -> Context | None:
    """Return the context of *task*; None if it is neither the running task nor one that calls it."""
    context = _current.get()
    while context is not None and context._task is not task and context.task != task.name:
        context = context._outer
    return context


def enter_by(context: Context, task: _Task) -> None:
    """Record that a worker runs *task* through its overridden ``__call__``."""
    context._entered_by = task


def is_entered(context: Context | None, task: _Task) -> bool:
    """Return whether this call of *task* is the one recorded by enter_by() for *context*. True only once."""
    if context is None or context._entered_by is not task:
        return False
    context._entered_by = None
    return True


def push(context: Context, task: _Task | None = None) -> Token[Context | None]:
    """Make *context* the current one; pass the return value to pop()."""
    if task is not None:
        context._task = task
    # A context may have been copied with the event loop's callbacks, which outlive the run.
    outer = _current.get()
    while outer is not None and (outer.called_directly or outer is context or outer._has_ended):
        outer = outer._outer
    context._outer, context._has_ended = outer, False
    return _current.set(context)


def pop(token: Token[Context | None]) -> None:
    """Undo the push() that returned *token*."""
    context = _current.get()
    if context is not None:
        context._has_ended = True
    _current.reset(token)


def task_of(context: Context) -> Any:
    """Return the task of *context*; None if only its name is known."""
    return context._task


def set_task(context: Context, task: _Task) -> None:
    """Set the task of *context*."""
    context._task = task


def add_children(context: Context, *results: Any) -> None:
    """Record *results*, those of calls, as children of the task of *context*, unless its ``trail`` is off."""
    if getattr(context._task, "trail", True):
        context.children.extend(results)
