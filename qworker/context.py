"""The current app, task and request, for code that runs inside a task.

Comes from:  ``execution`` pushes a Context before the body of a task runs, and pops it afterwards.
Goes to:     ``current_app``, ``current_task``, ``task.request``; publishing reads parent and root from it.
Thread:      any. The context is in a context variable, so threads and asyncio tasks have separate ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from qworker.errors import ConfigurationError
from qworker.message.chain_text import CarriedChain
from qworker.message.marks import MARKS

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.message.protocol import Body
    from qworker.tasks.task import Task

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


class Context:
    """The request of a running task: ``task.request``.

    Every field of Celery's request is an attribute, and so is every custom header of the message
    (``request.my_header``). A field is read from the message on first use. An unknown name raises
    AttributeError. ``deliveries`` is an addition: how many times the broker has delivered this message to a
    worker, including this time.
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
    """How many times it was retried before: 0 in the first attempt."""
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
    """The id of the task that made this call; None if none did."""
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
    """The correlation id of its result in that queue: its own id unless the caller sets one."""
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
    """How many tasks it has replaced in turn."""
    properties: Mapping[str, Any] | None
    """The properties of the message."""
    children: list[Any]
    """The results of the calls made so far."""
    deliveries: int
    """How many times the broker has delivered this message to a worker, including this time."""
    ended: tuple[str, Any]
    """Its final state, and its value or exception; set once it has ended."""
    added: int = 0
    """How many calls the task has added to its chord."""
    unsent: tuple[Any, ...] = ()
    """Results to store for calls that were counted and could not be sent: a Followed for each."""
    _entered_by: Any = None
    """The task whose own __call__ a worker is about to call, until Task.__call__ has seen it."""

    def __init__(self, **fields: Any) -> None:
        self._headers: Mapping[str, Any] = _NOTHING
        self._embed: Mapping[str, Any] = _NOTHING
        self._task: Task[..., Any] | None = None
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
        task: Task[..., Any] | None = None,
    ) -> Context:
        """Make the request of a received message. Nothing is copied: do not change *headers* and *body*.

        - headers, properties: as the message has them, checked.
        - delivery_info (mapping): its exchange, routing key and priority.
        - hostname (text): the name of the worker.
        - deliveries (number): how many times the broker has delivered it to a worker, including this time.
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
        # Only called for missing attributes; the value is stored, so the next access is an ordinary
        # attribute.
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
        """Return the field or header *name*, *default* when there is none."""
        return getattr(self, name, default)

    def update(self, *mappings: Mapping[str, Any], **fields: Any) -> None:
        """Set fields, like dict.update."""
        self.__dict__.update(*mappings, **fields)

    def __repr__(self) -> str:
        return f"<Context: {self.task}[{self.id}] retries={self.retries}>"


_current: ContextVar[Context | None] = ContextVar("qworker_request", default=None)

current_context: Callable[[], Context | None] = _current.get
"""Return the context of the running task, None outside of one."""


def message_headers(context: Context) -> Mapping[str, Any]:
    """Return the unchanged headers of the message of *context*; none outside of a worker."""
    return context._headers


def carried_chain(context: Context) -> CarriedChain | None:
    """Return the unparsed chain of the message; None when there is none, it was parsed already, or the task
    has read it, and may have changed it."""
    chain = None if "chain" in vars(context) else context._embed.get("chain")
    return chain if type(chain) is CarriedChain else None


def calls_within(context: Context) -> bool:
    """Tell whether the message of *context* contains calls: callbacks, errbacks, a chain or a chord."""
    return any(context._embed.values())


def context_of(task: Task[..., Any]) -> Context | None:
    """Return the context that *task* is running for; None when it is not the running task."""
    context = _current.get()
    if context is None or (context._task is not task and context.task != task.name):
        return None
    return context


def enter_by(context: Context, task: Task[..., Any]) -> None:
    """Record that a worker runs *task* through its overridden ``__call__``."""
    context._entered_by = task


def is_entered(context: Context | None, task: Task[..., Any]) -> bool:
    """Tell whether this call of *task* is the one recorded by enter_by() for *context*; only true once."""
    if context is None or context._entered_by is not task:
        return False
    context._entered_by = None
    return True


def push(context: Context, task: Task[..., Any] | None = None) -> Token[Context | None]:
    """Make *context* the current one; pass the return value to pop()."""
    if task is not None:
        context._task = task
    return _current.set(context)


def pop(token: Token[Context | None]) -> None:
    """Undo the push() that returned *token*."""
    _current.reset(token)


_apps: WeakSet[QWorker] = WeakSet()
_default: list[QWorker] = []  # empty or the one default app
_makers: list[Callable[[], QWorker]] = []  # empty, or the factory of the default app of a framework's project


def add_app(app: QWorker) -> None:
    """Record *app*, so that shared tasks reach it."""
    _apps.add(app)


def all_apps() -> list[QWorker]:
    """Return every living app of this process."""
    return list(_apps)


def set_default_app(app: QWorker | None) -> None:
    """Make *app* the ``current_app`` outside of tasks, in all threads; None to reset it."""
    _default[:] = [] if app is None else [app]


def set_default_maker(make: Callable[[], QWorker] | None) -> None:
    """Set the factory of the default app if none was made explicitly: the app of a framework's project. None:
    there is none."""
    _makers[:] = [] if make is None else [make]


def get_current_app() -> QWorker:
    """Return the app of the running task, else the default one (the last one made).

    Raises ConfigurationError when no app has been made yet.
    """
    context = _current.get()
    if context is not None and context._task is not None:
        return context._task.app
    if not _default and _makers:
        return _makers[0]()
    if not _default:
        raise ConfigurationError(
            "no app has been made yet: write app = QWorker('proj') in a module, and import it before this "
            "line"
        )
    return _default[0]


def get_current_task() -> Task[..., Any] | None:
    """Return the running task, None outside of one."""
    context = _current.get()
    if context is None:
        return None
    if context._task is None and context.task is not None:
        context._task = get_current_app().tasks[context.task]
    return context._task


class Proxy:
    """Stands for what *find* returns when it is used; two proxies are equal when their targets are."""

    __slots__ = ("__weakref__", "_find")

    def __init__(self, find: Callable[[], Any]) -> None:
        object.__setattr__(self, "_find", find)

    def _get_current_object(self) -> Any:
        return object.__getattribute__(self, "_find")()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._get_current_object())

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return self._get_current_object().__dict__

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_find")(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._get_current_object(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._get_current_object(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._get_current_object()(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._get_current_object())

    def __dir__(self) -> list[str]:
        return dir(self._get_current_object())

    def __bool__(self) -> bool:
        return bool(self._get_current_object())

    def __eq__(self, other: object) -> bool:
        return bool(self._get_current_object() == other)

    def __hash__(self) -> int:
        return hash(self._get_current_object())

    def __reduce__(self) -> Any:
        return self._get_current_object().__reduce__()


current_app: QWorker = Proxy(get_current_app)  # type: ignore[assignment]
"""The app of the running task, else the default app."""

current_task: Task[..., Any] = Proxy(get_current_task)  # type: ignore[assignment]
"""The running task; false outside of one."""
