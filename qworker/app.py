"""QWorker: the application. Configuration, tasks and connections in one object.

Comes from:  the user's module: ``app = QWorker("proj")``.
Goes to:     everything else, as an argument. Below this room nothing imports it.
Thread:      any; what is opened at first use is opened under one lock.

Making an app reads nothing, opens nothing and imports no driver.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

from qworker import registry, signals
from qworker.arguments import keywords, positional
from qworker.awaiting import LoopWaiter, Watcher
from qworker.backends import Backend, open_backend
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf import Settings
from qworker.control import Control
from qworker.current import add_app, all_apps, current_context, set_default_app
from qworker.decorators import BoundDecorator, Decorator
from qworker.definition import adopt, make_task
from qworker.errors import ConfigurationError
from qworker.middleware import Middleware
from qworker.naming import import_object, task_name
from qworker.publishing import Publisher
from qworker.registry import TaskRegistry
from qworker.result import AsyncResult
from qworker.serialization import content_types
from qworker.signals import Signal
from qworker.signature import Signature
from qworker.task import AsyncTask, Task
from qworker.transactions import publishing_in
from qworker.transports import open_store
from qworker.transports.lease import LeaseStore

if TYPE_CHECKING:
    from qworker.signing import Signer

P = ParamSpec("P")
R = TypeVar("R")


class QWorker:
    """An application: its settings, its tasks and its connections.

    main: the name that tasks defined in ``__main__`` get as their module. broker, backend: URLs, or the objects
    themselves (broker: also a list of URLs, of which the first that answers is used); with none, messages and results are kept in ``.qworker/qworker.db``. include: modules that a worker imports for their tasks.
    config_source: as for config_from_object. set_as_current: make this what ``current_app`` is. Any setting may be
    given by its name; a wrong one raises ConfigurationError when the settings are first looked at.
    """

    def __init__(
        self,
        main: str | None = None,
        *,
        broker: str | Sequence[str] | LeaseStore | None = None,
        backend: str | Backend | None = None,
        include: Iterable[str] = (),
        config_source: Any = None,
        set_as_current: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        urls = {"broker_url": broker, "result_backend": backend}
        given: dict[str, Any] = {
            name: url for name, url in urls.items() if isinstance(url, str | list | tuple)
        }
        if modules := tuple(include):
            given["include"] = modules
        self.main = main
        self.clock = clock
        self.conf = Settings({**given, **settings})
        self.control = Control(self)
        self.user_options: dict[str, Any] = {}
        self.on_after_finalize = Signal("on_after_finalize")
        self.finalized = False
        self._lock = threading.RLock()
        self._tasks = TaskRegistry()
        self._packages: list[tuple[Callable[[], Iterable[str]], str | None]] = []
        self._added: list[Middleware] = []
        self._middleware: tuple[Any, tuple[Middleware, ...]] = (
            None,
            (),
        )  # settings they came from, themselves
        self._signer: tuple[Any, Signer | None] = (None, None)  # the same
        self._publisher = Publisher(self)
        self._broker = broker if isinstance(broker, LeaseStore) else None
        self._backend = backend if isinstance(backend, Backend) else None
        self._results_with_broker: bool | None = None
        self._waiters: WeakKeyDictionary[Any, LoopWaiter] = WeakKeyDictionary()  # by event loop
        self._watcher: Watcher | None = None
        if config_source is not None:
            self.config_from_object(config_source)
        add_app(self)
        if set_as_current:
            set_default_app(self)

    # -- configuration --

    def config_from_object(self, source: Any, namespace: str | None = None) -> None:
        """Take settings from a module, an object, a mapping, or the dotted name of one.

        namespace: "CELERY" takes ``CELERY_TASK_ROUTES`` as ``task_routes`` and leaves the rest alone.
        """
        self.conf.load(source, namespace)

    def config_from_envvar(self, variable: str) -> None:
        """Take settings from the module that the environment variable names. Raises ConfigurationError if unset."""
        module = os.environ.get(variable)
        if not module:
            raise ConfigurationError(
                f"the environment variable {variable} is not set: it should name a module"
            )
        self.config_from_object(module)

    # -- tasks --

    @property
    def tasks(self) -> TaskRegistry:
        """Every task, by name; shared ones too."""
        if not self.finalized:
            self.finalize()
        return self._tasks

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, *, bind: Literal[True], **options: Any) -> BoundDecorator: ...
    @overload
    def task(self, /, *, bind: Literal[False] = False, **options: Any) -> Decorator: ...

    def task(
        self, function: Callable[..., Any] | None = None, /, *, bind: bool = False, **options: Any
    ) -> Any:
        """Make a task of a function: ``@app.task``, or ``@app.task(max_retries=5)``.

        name: by default ``module.function``. bind: give the task itself as first argument. base: a subclass of Task.
        The rest: see the reference of task options; what is not given comes from the settings.
        """
        if function is None:
            return lambda function: self.task(function, bind=bind, **options)  # type: ignore[call-overload]
        return self.add_task(make_task(self, function, bind=bind, **options))

    def register_task(self, task: Task[P, R]) -> Task[P, R]:
        """Register an instance of a class-based task."""
        name = task.name or task_name(type(task), self.main)
        adopt(task, self, name)
        self.add_task(task)
        return task

    def add_task(self, task: Task[..., Any]) -> Task[..., Any]:
        """Take *task* in; raises ConfigurationError when another one has its name."""
        with self._lock:
            other = dict.get(self._tasks, task.name)
            if other is not None and other.origin() != task.origin():
                raise ConfigurationError(
                    f"two tasks are named {task.name!r}: {'.'.join(other.origin())} and {'.'.join(task.origin())}; "
                    "give one of them another name="
                )
            self._tasks.register(task)
            if self.finalized:
                task.bind_app(self)
                self._publisher.forget()
        return task

    def finalize(self) -> None:
        """Adopt the shared tasks and settle the options of all tasks. Happens at first use; safe to call again."""
        with self._lock:
            if self.finalized:
                return
            for make in list(registry.shared):
                make(self)
            for task in self._tasks.values():
                task.bind_app(self)
            self.finalized = True
        self.on_after_finalize.send(self)

    def autodiscover_tasks(
        self,
        packages: Iterable[str] | Callable[[], Iterable[str]] | None = None,
        related_name: str | None = "tasks",
        force: bool = False,
    ) -> None:
        """Have load_tasks() import the module *related_name* of each of *packages* that has one.

        force is there for Celery's sake: packages are looked at when tasks are first needed.
        """
        if packages is None:
            raise ConfigurationError(
                'autodiscover_tasks needs the packages to look in, such as ["proj.mail", "proj.shop"]; '
                "looking in Django's INSTALLED_APPS is not in this version"
            )
        find = packages if callable(packages) else lambda: packages
        self._packages.append((find, related_name))

    def load_tasks(self) -> None:
        """Import every module that defines tasks: those in ``imports`` and ``include``, and the discovered ones."""
        from importlib.util import find_spec

        signals.import_modules.send(self)
        modules = [*self.conf.imports, *self.conf.include]
        for find, related in self._packages:
            names = (f"{package}.{related}" if related else package for package in find())
            modules += [name for name in names if find_spec(name) is not None]
        for module in modules:
            import_object(module)
        self.finalize()

    def send_task(
        self,
        name: str,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Have a worker call the task *name*, which need not be known here. options: as for Task.apply_async."""
        return self.publisher.call_with(None, name, positional(name, args), keywords(name, kwargs), options)

    def send_many(self, calls: Iterable[Any], **options: Any) -> list[AsyncResult[Any]]:
        """Make many calls in one round trip: all are stored, or none.

        calls: ``(name, args, kwargs)``, of which kwargs and args may be left out, or a signature, for each.
        """
        return self.publisher.call_many(None, calls, options)

    def signature(self, task: Any, args: Iterable[Any] = (), kwargs: Any = None, **options: Any) -> Signature:
        """Return a call that is not made yet, of a task's name or from the dict of a signature."""
        return Signature(task, args, kwargs, options, app=self)

    def AsyncResult(self, id: str) -> AsyncResult[Any]:
        """Return the handle of a call made earlier."""
        if not isinstance(id, str):
            raise TypeError(f"AsyncResult takes the id of a call, which is text, not {id!r:.200}")
        return AsyncResult(id, app=self)

    # -- middleware --

    def add_middleware(self, middleware: Middleware | type[Middleware]) -> None:
        """Add a middleware inside of those that are there. Call it before the first task is sent or run."""
        with self._lock:
            self._added.append(_middleware(middleware))
            self._middleware = (None, ())
            self._publisher.forget()

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """The middlewares, outermost first: those of the setting, then those added."""
        given = self.conf.middleware
        kept = self._middleware  # looked at once: another thread may replace it
        if kept[0] is not given:
            kept = self._middleware = (given, (*map(_middleware, given), *self._added))
        return kept[1]

    def middleware_options(self) -> frozenset[str]:
        """The task options that the middlewares have declared."""
        return frozenset(option for middleware in self.middleware for option in middleware.options)

    # -- connections --

    @property
    def publisher(self) -> Publisher:
        """What sends calls to the broker."""
        if not self.finalized:
            self.finalize()
        return self._publisher

    def publishing_in(self, connection: Any) -> AbstractContextManager[None]:
        """Publish the calls of a ``with`` block by *connection*, within its own transaction: they are sent exactly if
        that is committed. connection: a Session or Connection of SQLAlchemy, Django's, or the driver's, to the database
        that is the broker; it is neither committed nor closed.

        Raises ConfigurationError when the broker is not such a database.
        """
        return publishing_in(self, connection)

    @property
    def broker(self) -> LeaseStore:
        """Where messages are kept; opened at first use."""
        return self._broker or self._open_broker()

    def _open_broker(self) -> LeaseStore:
        with self._lock:
            if self._broker is None:
                self._broker = open_store(self.conf.broker_url, self.conf)
            return self._broker

    @property
    def backend(self) -> Backend:
        """Where results are kept; opened at first use."""
        return self._backend or self._open_backend()

    def _open_backend(self) -> Backend:
        with self._lock:
            if self._backend is None:
                broker = self.conf.broker_url
                embedded = broker is None or (broker.startswith("sqlite:") and ";" not in broker)
                url = self.conf.result_backend or (self.broker.url if embedded else "disabled://")
                self._backend = open_backend(url, self.conf, self.clock)
            return self._backend

    def waiter(self) -> LoopWaiter:
        """What waits for results in the running event loop."""
        import asyncio  # only for who uses it: it costs 30 ms

        loop = asyncio.get_running_loop()
        if loop not in self._waiters:
            self._waiters[loop] = LoopWaiter(self.backend, loop)
        return self._waiters[loop]

    @property
    def watcher(self) -> Watcher:
        """What keeps the promises made by ``result.then``."""
        with self._lock:
            if self._watcher is None:
                self._watcher = Watcher(self)
            return self._watcher

    @property
    def results_with_broker(self) -> bool:
        """Whether results are kept in the broker's own store, so that a worker stores them together with the ack."""
        if self._results_with_broker is None:
            broker = self.broker
            self._results_with_broker = "results" not in broker.lacks and self.backend.same_store(broker.url)
        return self._results_with_broker

    @property
    def reply_to(self) -> str | None:
        """The queue in which this process gets its results; None unless they are sent (``rpc://``), and inside of a task.

        Raises BrokerUnavailable when there has to be one, and cannot be made.
        """
        conf = self.conf
        if conf.result_backend != "rpc://" or conf.task_always_eager or current_context() is not None:
            return None
        return self.backend.reply_to()

    @property
    def signer(self) -> Signer | None:
        """What signs and verifies messages; None without a security_key."""
        keys = self.conf.security_key
        if keys is None:
            return None
        if (kept := self._signer)[0] is not keys:  # looked at once: another thread may replace it
            make = import_object("qworker.signing:Signer")  # with OpenSSL: 1 MB that only those who sign need
            kept = self._signer = (keys, make(keys, self.clock))
        return kept[1]

    @property
    def accept(self) -> frozenset[str]:
        """The content types that are accepted in messages."""
        return content_types(self.conf.accept_content)

    def close(self) -> None:
        """Let go of the broker and the result store; the next use opens them again."""
        with self._lock:
            for opened in (self._broker, self._backend):
                if opened is not None:
                    opened.close()
            self._broker = self._backend = self._results_with_broker = None
            self._waiters.clear()

    def __enter__(self) -> QWorker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<QWorker {self.main or '__main__'}>"


def _middleware(given: Any) -> Middleware:
    """The middleware that a setting or an argument gives: an object, its class, or the dotted name of either."""
    found = import_object(given) if isinstance(given, str) else given
    made = found() if isinstance(found, type) else found
    if not isinstance(made, Middleware):
        raise ConfigurationError(
            f"{given!r} is no middleware: subclass qworker.Middleware", setting="middleware"
        )
    return made


def _after_fork() -> None:
    for app in all_apps():
        app._lock = threading.RLock()  # a thread that the child does not have may have held it
        app._watcher = None  # the promises are the parent's to keep


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
