"""QWorker: the application. It holds the configuration, the tasks and the connections.

Comes from:  the user's module: ``app = QWorker("proj")``.
Goes to:     everything else, as an argument. Lower packages do not import it.
Thread:      any; connections are opened on first use, under one lock.

Making an app reads no settings, opens no connection and imports no driver.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

from qworker import signals
from qworker.backends import Backend
from qworker.backends.stores import Stores
from qworker.canvas.signatures import Signature, signature
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf import Settings, unsupported
from qworker.conf.sources import refuse_unknown
from qworker.conf.unsupported import refuse
from qworker.context import add_app, all_apps, get_current_task, set_default_app
from qworker.control import looking
from qworker.control.client import Control
from qworker.errors import ConfigurationError, NotAvailable
from qworker.message.context import calling_context, task_of
from qworker.message.serialization import content_types
from qworker.middleware import Middleware, make_middleware
from qworker.naming import import_object, task_name
from qworker.publishing.arguments import keywords, positional
from qworker.publishing.call import Invocation
from qworker.publishing.connections import Connection, Pool, Producer
from qworker.publishing.publisher import Publisher
from qworker.publishing.transactions import publishing_in
from qworker.results.result import AsyncResult
from qworker.signals import Signal, announce
from qworker.tasks import registry, shared
from qworker.tasks.builtins import add_builtin_tasks
from qworker.tasks.definition import adopt, bind, change_class, make_task, task_class
from qworker.tasks.loading import TaskModules
from qworker.tasks.registry import TaskRegistry
from qworker.tasks.task import AsyncTask
from qworker.tasks.task import Task as TaskBase
from qworker.transports.lease import Broker, QueueInfo
from qworker.transports.presence import Presence

if TYPE_CHECKING:
    from qworker.beat.api import Schedules
    from qworker.canvas.options import CallOptions, SignatureOptions
    from qworker.control.embedded import EmbeddedWorker, WorkerOptions
    from qworker.control.failed import Failed
    from qworker.message.signing import Signer
    from qworker.results.group_result import GroupResults, ResultSet
    from qworker.tasks.decorators import BoundDecorator, Decorator, TaskOptions

P = ParamSpec("P")
R = TypeVar("R")


class QWorker:
    """An application: its settings, its tasks and its connections.

    - main (text): the module name of tasks defined in ``__main__``.
    - broker: a URL, a broker, or a list of URLs, of which the first available one is used. By default,
      messages are kept in ``.qworker/qworker.db``.
    - backend: a URL or a result store. By default, results are kept with the messages if that is a file.
    - include (names): modules with tasks, which a worker imports.
    - config_source, namespace: as for config_from_object.
    - changes (mapping): more settings.
    - set_as_current (bool): make this the ``current_app``.
    - task_cls: the class of its tasks, or its dotted name.
    - settings: any setting, by name.

    An argument that is not a setting raises ConfigurationError here; an invalid value does so when the
    settings are first used. An argument that only Celery's app supports raises NotAvailable.

    It has four signals of its own. on_configure is sent before the settings are first read, and
    on_after_configure after that. on_after_finalize is sent when all tasks have their options, and
    on_after_fork in every process forked from this one.
    """

    __module__ = "qworker"

    task_cls: str | type[TaskBase[..., Any]] = TaskBase

    def __init__(
        self,
        main: str | None = None,
        *,
        broker: str | Sequence[str] | Broker | None = None,
        backend: str | Backend | None = None,
        include: Iterable[str] = (),
        config_source: Any = None,
        namespace: str | None = None,
        changes: Mapping[str, Any] | None = None,
        set_as_current: bool = True,
        task_cls: str | type[TaskBase[..., Any]] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        refuse("QWorker(…)", settings, unsupported.APP_ARGUMENTS)
        refuse_unknown(settings)
        urls = {"broker_url": broker, "result_backend": backend}
        initial: dict[str, Any] = {
            name: url
            for name, url in urls.items()
            if url is not None and not isinstance(url, Broker | Backend)
        }
        if modules := tuple(include):
            initial["include"] = modules
        self.main = main
        self.clock = clock
        self.conf = Settings(
            {**initial, **(changes or {}), **settings},
            before=lambda: announce(self, self.on_configure),
            after=lambda: announce(self, self.on_after_configure),
        )
        self.on_configure: Signal = Signal("on_configure")
        self.on_after_configure: Signal = Signal("on_after_configure")
        self.on_after_finalize = Signal("on_after_finalize")
        self.on_after_fork = Signal("on_after_fork")
        self.control = Control(self)
        self.finalized = False
        self.lock = threading.RLock()  # held while part of the app is created
        self._task_class = task_class(task_cls or self.task_cls)
        self._tasks = TaskRegistry()
        self._modules = TaskModules()
        self._added: list[Middleware] = []
        self.periodic_tasks: dict[str, dict[str, Any]] = {}
        self._schedules: Schedules | None = None
        # The setting that the middlewares were made from, and the middlewares.
        self._middleware: tuple[Any, tuple[Middleware, ...]] = (None, ())
        self._signer: tuple[Any, Signer | None] = (None, None)  # likewise
        self._publisher = Publisher(self)
        self.stores = Stores(
            self,
            broker if isinstance(broker, Broker) else None,
            backend if isinstance(backend, Backend) else None,
        )
        if config_source is not None:
            self.config_from_object(config_source, namespace=namespace)
        add_app(self)
        if set_as_current:
            set_default_app(self)
        self.on_init()

    # -- configuration --

    def config_from_object(
        self, obj: Any, silent: bool = False, force: bool = False, namespace: str | None = None
    ) -> None:
        """Load settings from a module, object, mapping, or the dotted name of one. They replace earlier ones.

        - silent (bool): ignore a missing module.
        - force (bool): read it now, not on first use.
        - namespace (text): "CELERY" reads ``CELERY_TASK_ROUTES`` as ``task_routes`` and ignores other names.
        """
        self.conf.load(obj, namespace, silent)
        if force:
            self.conf.resolve()

    def config_from_envvar(self, variable_name: str, silent: bool = False, force: bool = False) -> bool:
        """Take settings from the module named in an environment variable; return whether it is set.

        - variable_name (text): its name.
        - silent (bool): return False when it is unset, instead of raising ConfigurationError.
        - force (bool): read the module now, not on first use.
        """
        module = os.environ.get(variable_name)
        if not module:
            if silent:
                return False
            raise ConfigurationError(
                f"the environment variable {variable_name} is not set: it should name a module"
            )
        self.config_from_object(module, silent, force)
        return True

    def add_defaults(self, values: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        """Add default values, which every other source overrides. A function is called on first use."""
        self.conf.add_defaults(values)

    # -- tasks --

    @property
    def tasks(self) -> TaskRegistry:
        """Every task, by name, including shared ones."""
        if not self.finalized:
            self.finalize()
        return self._tasks

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> TaskBase[P, R]: ...
    @overload
    def task(self, /, *, bind: Literal[True], **options: Unpack[TaskOptions]) -> BoundDecorator: ...
    @overload
    def task(self, /, *, bind: Literal[False] = False, **options: Unpack[TaskOptions]) -> Decorator: ...
    @overload
    def task(self, /, *, base: type[TaskBase], bind: Literal[True], **options: Any) -> BoundDecorator: ...
    @overload
    def task(self, /, *, base: type[TaskBase], bind: Literal[False] = False, **options: Any) -> Decorator: ...

    def task(
        self, function: Callable[..., Any] | None = None, /, *, bind: bool = False, **options: Any
    ) -> Any:
        """Make a task of a function: ``@app.task``, or ``@app.task(max_retries=5)``.

        - bind (bool): pass the task itself as first argument.
        - base: a subclass of Task. Its attributes may be given as options too.
        - options: those of ``TaskOptions``, and those that a middleware declares. Defaults come from the
          settings.

        Returns the task, or a decorator. Raises ConfigurationError for an unknown option or an invalid value,
        for a generator, and for a second task of the same name.
        """
        if function is None:
            return lambda function: self.task(function, bind=bind, **options)  # type: ignore[call-overload]
        return self.add_task(make_task(self, function, bind=bind, **options))

    @property
    def Task(self) -> type[TaskBase[..., Any]]:
        """The class of tasks made without ``base=``. It can be changed until the tasks are first used."""
        return self._task_class

    @Task.setter
    def Task(self, base: type[TaskBase[..., Any]]) -> None:
        self._task_class = change_class(self, self._tasks, base)

    def register_task(self, task: TaskBase[P, R] | type[TaskBase[P, R]]) -> TaskBase[P, R]:
        """Register a class-based task: an instance, or its class."""
        return cast(TaskBase[P, R], self.add_task(adopt(task, self)))

    def add_task(self, task: TaskBase[..., Any]) -> TaskBase[..., Any]:
        """Add *task*. Raises ConfigurationError if another task has its name."""
        with self.lock:
            other = dict.get(self._tasks, task.name)
            if other is not None and other.origin() != task.origin():
                raise ConfigurationError(
                    f"two tasks are named {task.name!r}: {'.'.join(other.origin())} and "
                    f"{'.'.join(task.origin())}; give one of them another name="
                )
            self._tasks.register(task)
            if self.finalized:
                bind(task, self)
                self._publisher.forget()
        return task

    def gen_task_name(self, name: str, module: str) -> str:
        """Return the default task name of the function *name* in *module*. Subclasses may override it."""
        return task_name(name, module, self.main)

    def finalize(self) -> None:
        """Add the shared tasks and set the options of all tasks. Called on first use; safe to call again."""
        with self.lock:
            self.conf.resolve()  # receivers of its signals may call this method
            if self.finalized:
                return
            for make in list(registry.shared):
                make(self)
            add_builtin_tasks(self, self._tasks)
            for task in self._tasks.values():
                bind(task, self)
            self.finalized = True
        announce(self, self.on_after_finalize)

    def autodiscover_tasks(
        self,
        packages: Iterable[str] | Callable[[], Iterable[str]] | None = None,
        related_name: str | None = "tasks",
        force: bool = False,
    ) -> None:
        """Make load_tasks() import the module *related_name* of each of *packages*, if it exists.

        - packages: their names, or a function that returns them.
        - related_name (text): None imports the packages themselves.
        - force (bool): import them now.
        """
        self._modules.discover(packages, related_name)
        if force:
            self._modules.load_discovered()

    def load_tasks(self) -> None:
        """Import every module of tasks: those in ``imports`` and ``include``, and the discovered ones."""
        signals.import_modules.send(self)
        self._modules.load(self.conf)
        self.finalize()

    def send_task(
        self,
        name: str,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        task_id: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[Any]:
        """Send a call of the task *name*, which need not be registered here.

        Arguments are not checked against the function. Otherwise like Task.apply_async.
        """
        given: Mapping[str, Any] = options if task_id is None else {**options, "task_id": task_id}
        return self.publisher.call_with(
            Invocation(None, name, positional(name, args), keywords(name, kwargs), given)
        )

    async def asend_task(
        self,
        name: str,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        task_id: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[Any]:
        """send_task() for asyncio: the event loop runs while the broker takes the message."""
        import asyncio  # here, because it takes 30 ms

        return await asyncio.to_thread(self.send_task, name, args, kwargs, task_id=task_id, **options)

    def send_many(self, calls: Iterable[Any], **options: Unpack[CallOptions]) -> list[Any]:
        """Send many calls in one round trip: all are stored, or none.

        - calls: for each, ``(name, args, kwargs)`` where kwargs and args are optional, a signature, or a
          workflow.
        - options: as for Task.apply_async, the same for all.

        Returns the results in the order of *calls*. Raises like Task.apply_async.
        """
        from qworker.publishing.workflows import send_many

        return send_many(self, calls, options)

    async def asend_many(self, calls: Iterable[Any], **options: Unpack[CallOptions]) -> list[Any]:
        """send_many() for asyncio: the event loop runs while the broker takes the messages."""
        import asyncio

        return await asyncio.to_thread(self.send_many, calls, **options)

    def send_workflow(
        self,
        signature: Signature,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a workflow and return its result. What args, kwargs and options do depends on its kind.

        With ``task_always_eager`` it runs in this process. Raises PublishError if it cannot be published,
        BrokerUnavailable like apply_async, and NotSupported for a chord if the result store has no joins.
        """
        from qworker.publishing.workflows import send_workflow

        return send_workflow(self, signature, args, kwargs, options)

    @property
    def shared_canvas(self) -> bool:
        """Whether joins are written in a format that only qworker's workers read; see ``canvas_format``."""
        from qworker.publishing.workflows import shares_joins

        return shares_joins(self)

    def signature(
        self,
        task: Any,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **more: Unpack[SignatureOptions],
    ) -> Any:
        """Return the signature of a call. *task*: a task, its name, or the dict of a signature or workflow.
        *more* overrides *options*."""
        if isinstance(task, Mapping):
            return signature(task, app=self)
        return Signature(task, args, kwargs, options, immutable=immutable, app=self, **more)

    subtask = signature

    def AsyncResult(self, id: str) -> AsyncResult[Any]:
        """Return the result handle of an earlier call."""
        if not isinstance(id, str):
            raise TypeError(f"AsyncResult() takes the id of a call as a string, not {id!r:.200}")
        return AsyncResult(id, app=self)

    @property
    def GroupResult(self) -> GroupResults:
        """Make a GroupResult of this app, or restore one: ``app.GroupResult.restore(id)``."""
        from qworker.results.group_result import GroupResults

        return GroupResults(self)

    def ResultSet(self, results: Iterable[Any]) -> ResultSet[Any]:
        """Return one handle for several results, to wait for all of them."""
        from qworker.results.group_result import ResultSet

        return ResultSet(results, self)

    def add_periodic_task(
        self,
        schedule: Any,
        sig: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> str:
        """Call *sig* on a *schedule*; return the name of the entry.

        - schedule: a crontab or other schedule of ``qworker.beat``, seconds, a timedelta, or text.
        - sig: a signature, a task, or the name of one.
        - args, kwargs: put before the arguments of a signature, and override its keywords.
        - name (text): of the entry; by default the text of *sig*, as in Celery.
        - options: fields of an entry, such as ``jitter=5``; any other option is passed to the call. So is
          ``expires``, which counts from the call, not from the due time.

        An invalid entry is reported by ``qworker beat list`` and in the log; the other entries still run.
        """
        return shared.add_periodic_task(self, schedule, sig, args, kwargs, name, options)

    # -- middleware --

    def add_middleware(self, middleware: Middleware | type[Middleware]) -> None:
        """Add a middleware inside the existing ones. Call it before the first task is sent or run."""
        with self.lock:
            self._added.append(make_middleware(middleware))
            self._middleware = (None, ())
            self._publisher.forget()

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """The middlewares, outermost first: those of the setting, then those added."""
        named = self.conf.middleware
        made = self._middleware  # read once: another thread may replace it
        if made[0] is not named:
            made = self._middleware = (named, (*map(make_middleware, named), *self._added))
        return made[1]

    def middleware_options(self) -> frozenset[str]:
        """The task options declared by the middlewares."""
        return frozenset(option for middleware in self.middleware for option in middleware.options)

    # -- connections --

    @property
    def publisher(self) -> Publisher:
        """The publisher, which sends calls to the broker."""
        if not self.finalized:
            self.finalize()
        return self._publisher

    def publishing_in(self, connection: Any) -> AbstractContextManager[None]:
        """Publish the calls of a ``with`` block through *connection*, within its transaction.

        They are sent if and only if that transaction is committed. *connection* is a SQLAlchemy Session or
        Connection, Django's connection, or the driver's, to the broker's database. It is neither committed
        nor closed here.

        Raises ConfigurationError if the broker is not a SQL database.
        """
        return publishing_in(self, connection)

    @property
    def broker(self) -> Broker:
        """The broker; opened on first use."""
        return self.stores.broker

    @property
    def backend(self) -> Backend:
        """The result store; opened on first use."""
        return self.stores.backend

    @property
    def schedules(self) -> Schedules:
        """The scheduler's entries, to list and change them."""
        if self._schedules is None:
            from qworker.beat.api import Schedules

            self._schedules = Schedules(self)
        return self._schedules

    @property
    def failed(self) -> Failed:
        """The failed tasks, to list them and send them again."""
        from qworker.control.failed import Failed

        return Failed(self)

    @property
    def results_with_broker(self) -> bool:
        """Whether results are stored in the broker."""
        return self.stores.results_with_broker

    def close(self) -> None:
        """Close the broker and the result store; the next use opens them again."""
        self.stores.close()
        if self._schedules is not None:
            self._schedules.close()

    @property
    def signer(self) -> Signer | None:
        """Signs and verifies messages; None without a security_key."""
        keys = self.conf.security_key
        if keys is None:
            return None
        if (made := self._signer)[0] is not keys:  # read once: another thread may replace it
            from qworker.message.signing import Signer  # loads OpenSSL, 1 MB

            made = self._signer = (keys, Signer(keys, self.clock, self.conf.security_max_age or None))
        return made[1]

    @property
    def accept(self) -> frozenset[str]:
        """The content types accepted in messages."""
        return content_types(self.conf.accept_content)

    # -- connections, for code written for kombu --

    def connection(self, url: str | None = None) -> Connection:
        """Return an object like kombu's connection, for ``with`` blocks and to test if the broker answers.

        Raises NotAvailable if *url* is not the app's broker.
        """
        if url is not None and url != self.broker.url:
            raise NotAvailable(
                "app.connection(url): an app has one broker; create another app for another broker"
            )
        return Connection(self)

    connection_for_read = connection_for_write = broker_connection = connection

    def connection_or_acquire(self, given: Connection | None = None, pool: bool = True) -> Connection:
        """Return *given*, or a connection for a ``with`` block."""
        return given or Connection(self)

    default_connection = connection_or_acquire

    def producer_or_acquire(self, producer: Producer | None = None) -> Producer:
        """Return *producer*, or one for a ``with`` block."""
        return producer or Producer(self)

    default_producer = producer_or_acquire

    @property
    def pool(self) -> Pool:
        """For ``with app.pool.acquire() as connection``, around ``apply_async(connection=connection)``."""
        return Pool(lambda: Connection(self))

    @property
    def producer_pool(self) -> Pool:
        """For ``with app.producer_pool.acquire() as producer``, around ``apply_async(producer=producer)``."""
        return Pool(lambda: Producer(self))

    # -- inspection --

    def workers(self) -> list[Presence]:
        """Return the last reports of the live workers, sorted by name; [] if the broker cannot list them.

        Raises BrokerUnavailable.
        """
        return looking.workers(self)

    def queues(self, names: str | Iterable[str] | None = None) -> list[QueueInfo]:
        """Return the depth of each queue in *names* (one or several), or of all queues that hold messages.

        Raises BrokerUnavailable.
        """
        return looking.queues(self, names)

    def peek(
        self,
        names: str | Iterable[str] | None = None,
        *,
        states: Collection[looking.State] = looking.STATES,
        limit: int = 100,
    ) -> list[looking.TaskSeen]:
        """Return the tasks that have not ended: running, then reserved, waiting and delayed ones.

        - names: of queues, or one name; None for all queues that hold messages.
        - states: the states to return.
        - limit: maximum number of tasks per state and queue; the first ones are returned.

        No message is taken or changed. Bodies are not read, so fields that are missing in the headers, as in
        messages of protocol 1, are empty. Running tasks are reported with up to a second's delay.

        Raises BrokerUnavailable, NotSupported if the broker shows neither messages nor workers, and
        ValueError for an unknown state.
        """
        return looking.peek(self, names, states, limit)

    # -- running a worker --

    def start(self, argv: Sequence[str] | None = None) -> NoReturn:
        """Run the command ``qworker`` for this app, and exit with its exit code.

        argv: the arguments after ``qworker``; None for this program's own arguments.
        """
        command_line = import_object("qworker.cli.main:main")
        command_line.main(sys.argv[1:] if argv is None else list(argv), obj=self)
        raise AssertionError("unreachable: the command line ends the program")

    def worker_main(self, argv: Sequence[str] | None = None) -> NoReturn:
        """Run a worker for this app, and exit: ``app.worker_main(["worker", "--loglevel=INFO"])``.

        Raises ValueError if *argv* contains neither ``worker`` nor ``start``.
        """
        arguments = sys.argv[1:] if argv is None else list(argv)
        if not {"worker", "start"} & set(arguments):
            raise ValueError(
                f'worker_main() takes the command too, as in ["worker", "--loglevel=INFO"], not {arguments}'
            )
        self.start(arguments)

    def Worker(
        self,
        *,
        hostname: str | None = None,
        queues: Sequence[str] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> EmbeddedWorker:
        """Make a worker that runs inside this program::

            with app.Worker(concurrency=2, queues=["mail"]):
                ...

        Tasks run in threads of this program unless *pool* is given. hostname: ``name@host``. options: those
        of ``qworker start``. Raises NotAvailable for options that only Celery supports.
        """
        from qworker.control.embedded import EmbeddedWorker

        return EmbeddedWorker(self, hostname=hostname, queues=queues, **options)

    # -- the current app and task --

    def set_current(self) -> None:
        """Make this the ``current_app`` outside of tasks, in all threads."""
        set_default_app(self)

    set_default = set_current

    @property
    def current_task(self) -> TaskBase[..., Any] | None:
        """The running task; None outside of one."""
        return cast("TaskBase[..., Any] | None", get_current_task())

    @property
    def current_worker_task(self) -> TaskBase[..., Any] | None:
        """The running task, also while it calls another as a function; None outside of one."""
        context = calling_context()
        return None if context is None else cast("TaskBase[..., Any] | None", task_of(context))

    def on_init(self) -> None:
        """Called after the app has been created; for subclasses to override."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unsupported.unsupported("app", name, unsupported.APP)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse(f"class {cls.__name__}", vars(cls), unsupported.APP_OVERRIDES)

    def __enter__(self) -> QWorker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<QWorker {self.main or '__main__'}>"


def _after_fork() -> None:
    for app in all_apps():
        app.lock = threading.RLock()  # the old one may be held by a thread that the child does not have
        app.on_after_fork.send(app)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
