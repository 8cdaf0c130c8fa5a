"""Contracts: the types of an app and of a task, for modules that ``app`` and ``tasks.task`` import.

Comes from:  ``app.QWorker`` and ``tasks.task.Task``, which have these members and more.
Goes to:     the annotations of those modules.
Thread:      as the members say.

App and task use each other, and both are passed to the modules that they import. Those modules cannot import
the classes without an import cycle, so they use these protocols. A member is Any where its own class depends
on an app; its docstring names the class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import datetime
    from threading import RLock

    from qworker.backends.base import Backend
    from qworker.backends.stores import Stores
    from qworker.clock import Clock
    from qworker.conf import Settings
    from qworker.message.context import Context
    from qworker.message.signing import Signer
    from qworker.middleware import Middleware
    from qworker.transports.lease import Broker


class Task(Protocol):
    """A task; ``tasks.task.Task`` documents the members, ``TaskOptions`` the options."""

    name: str

    @property
    def app(self) -> App: ...
    @property
    def request(self) -> Context: ...
    @property
    def run(self) -> Callable[..., Any]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    bind: bool
    is_async: bool
    typing: bool
    expires: float | datetime | None
    time_limit: float | None
    soft_time_limit: float | None
    ignore_result: bool | None
    acks_late: bool | None
    store_errors_even_if_ignored: bool | None
    throws: tuple[type[BaseException], ...]
    resultrepr_maxsize: int
    trail: bool
    max_retries: int | None
    default_retry_delay: float
    autoretry_for: tuple[type[BaseException], ...]
    dont_autoretry_for: tuple[type[BaseException], ...]
    retry_kwargs: Mapping[str, Any]

    renames: bool
    own_call: bool
    own_apply_async: bool
    has_on_terminated: bool
    sees_its_end: bool
    model_options: Any
    """The ``tasks.codecs.ModelOptions``, or None."""

    @property
    def check_arguments(self) -> Callable[..., None] | None: ...
    @property
    def dumps_arguments(self) -> bool: ...
    @property
    def typed_calls(self) -> Any:
        """The ``tasks.typed_calls.TypedCalls``; None if the task has no usable annotations."""

    def dump_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any], partial: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def taking_plain(self, function: Callable[..., Any]) -> Callable[..., Any]: ...

    def apply(self, *args: Any, **kwargs: Any) -> Any: ...
    def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...
    def retry(self, *args: Any, **kwargs: Any) -> Any: ...
    def shadow_name(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
    ) -> str | None: ...
    def autoretry_countdown(self, context: Context) -> float: ...

    def before_start(self, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def on_success(
        self, retval: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...
    def on_retry(
        self, exc: BaseException, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any], einfo: Any
    ) -> None: ...
    def on_failure(
        self, exc: BaseException, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any], einfo: Any
    ) -> None: ...
    def on_terminated(self, context: Context, state: str, error: dict[str, Any]) -> None: ...
    def after_return(
        self,
        status: str,
        retval: Any,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: Any,
    ) -> None: ...


AnyTask = Task
"""An alias, because App has a member named Task."""


class App(Protocol):
    """An application, documented by ``app.QWorker``. Includes what tasks may use through ``self.app``."""

    main: str | None
    conf: Settings
    clock: Clock
    lock: RLock
    stores: Stores
    finalized: bool
    periodic_tasks: dict[str, dict[str, Any]]

    @property
    def broker(self) -> Broker: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def results_with_broker(self) -> bool: ...
    @property
    def signer(self) -> Signer | None: ...
    @property
    def accept(self) -> frozenset[str]: ...
    @property
    def middleware(self) -> tuple[Middleware, ...]: ...
    def middleware_options(self) -> frozenset[str]: ...

    on_configure: Any
    on_after_configure: Any
    on_after_finalize: Any
    on_after_fork: Any
    """These four are of ``signals.Signal``."""

    @property
    def Task(self) -> type[Any]: ...
    @property
    def tasks(self) -> Mapping[str, AnyTask]: ...
    def finalize(self) -> None: ...
    def add_task(self, task: Any) -> Any: ...
    def gen_task_name(self, name: str, module: str) -> str: ...

    @property
    def publisher(self) -> Any:
        """The ``publishing.publisher.Publisher``."""

    @property
    def control(self) -> Any:
        """The ``control.client.Control``."""

    @property
    def shared_canvas(self) -> bool: ...
    def signature(self, *args: Any, **kwargs: Any) -> Any: ...
    def send_task(self, *args: Any, **kwargs: Any) -> Any: ...
    def send_many(self, *args: Any, **kwargs: Any) -> list[Any]: ...
    def send_workflow(self, *args: Any, **kwargs: Any) -> Any: ...
    def AsyncResult(self, id: str) -> Any: ...

    @property
    def GroupResult(self) -> Any:
        """The ``results.group_result.GroupResults``."""
