"""Signals: notifications about events in this process, under Celery's names.

Comes from:  publishing, execution, the worker: ``if task_success.receivers: task_success.send(...)``.
Goes to:     functions connected by the user.
Thread:      the sender's. An exception of a receiver is logged and does not affect the sender.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.conf.unsupported import SIGNALS
from qworker.contracts import App
from qworker.errors import ConfigurationError, NotAvailable
from qworker.interrupts import reraise_interrupt

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_VARKEYWORDS = 0x08  # CO_VARKEYWORDS, without importing inspect


class _Receiver(NamedTuple):
    key: Any
    sender: Any
    resolve: Callable[[], Callable[..., Any] | None]


class Signal:
    """An event. ``receivers`` is empty when nothing is connected: check before building arguments."""

    __slots__ = ("name", "receivers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.receivers: list[_Receiver] = []

    def __repr__(self) -> str:
        return f"<Signal {self.name}>"

    def connect(
        self,
        receiver: Callable[..., Any] | None = None,
        sender: Any = None,
        weak: bool = False,
        dispatch_uid: Any = None,
    ) -> Any:
        """Call `receiver` (which must take ``**kwargs``) at each send. Also a decorator, with or without
        options.

        - sender: an object, or the name of a task; only its signals are received.
        - weak (bool): hold the receiver by a weak reference.
        - dispatch_uid: identifies the receiver instead of its identity.

        Connecting the same receiver for the same sender again replaces it. Returns the receiver.
        """
        if receiver is None:
            return lambda function: self.connect(function, sender, weak, dispatch_uid)
        _check_signature(self, receiver)
        entry = _Receiver(_key(receiver, sender, dispatch_uid), sender, _reference(receiver, weak))
        with _lock:  # replaced, never changed, so that send() needs no lock
            self.receivers = [*(other for other in self.receivers if other.key != entry.key), entry]
        return receiver

    def disconnect(
        self, receiver: Callable[..., Any] | None = None, sender: Any = None, dispatch_uid: Any = None
    ) -> bool:
        """Undo `connect` with the same arguments. Return False if it was not connected."""
        key = _key(receiver, sender, dispatch_uid)
        with _lock:
            remaining = [other for other in self.receivers if other.key != key]
            was_connected = len(remaining) != len(self.receivers)
            self.receivers = remaining
        return was_connected

    def has_listeners(self, sender: Any = None) -> bool:
        """Return whether ``send(sender)`` would call anything."""
        return any(_wants(entry.sender, sender) for entry in self.receivers)

    def send(self, sender: Any = None, **arguments: Any) -> list[tuple[Callable[..., Any], Any]]:
        """Call every receiver; return (receiver, its return value or exception) in order."""
        answers: list[tuple[Callable[..., Any], Any]] = []
        for entry in self.receivers:
            if not _wants(entry.sender, sender):
                continue
            receiver = entry.resolve()
            if receiver is None:  # the weakly referenced receiver is gone
                with _lock:
                    self.receivers = [other for other in self.receivers if other is not entry]
                continue
            answer: Any
            try:
                answer = receiver(signal=self, sender=sender, **arguments)
            except Exception as error:  # a receiver must not affect the sender
                reraise_interrupt(error)
                logger.exception("a receiver of signal %s raised: %r", self.name, receiver)
                answer = error
            answers.append((receiver, answer))
        return answers


def announce(app: App, signal: Signal) -> None:
    """Send *signal*, one of the signals of *app*.

    A receiver that uses something missing in qworker raises NotAvailable here, because a log line would be
    overlooked. Any other error is logged, as with every signal.
    """
    for _, answer in signal.send(app, source=app.conf):
        if isinstance(answer, NotAvailable):
            raise answer


def _wants(wanted: Any, sender: Any) -> bool:
    if wanted is None or wanted is sender:
        return True
    if isinstance(wanted, str):
        return bool(wanted == (sender if isinstance(sender, str) else getattr(sender, "name", None)))
    return False


def _identity(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    function = getattr(value, "__func__", None)  # a bound method is a new object at each access
    return id(value) if function is None else (id(function), id(value.__self__))


def _key(receiver: Any, sender: Any, dispatch_uid: Any) -> Any:
    return (_identity(receiver) if dispatch_uid is None else ("uid", dispatch_uid), _identity(sender))


def _reference(receiver: Callable[..., Any], weak: bool) -> Callable[[], Callable[..., Any] | None]:
    if not weak:
        return lambda: receiver
    return weakref.WeakMethod(receiver) if hasattr(receiver, "__func__") else weakref.ref(receiver)


def _check_signature(signal: Signal, receiver: Any) -> None:
    if not callable(receiver):
        raise ConfigurationError(f"signal {signal.name}: {receiver!r} is not callable")
    code = getattr(getattr(receiver, "__func__", receiver), "__code__", None)
    if code is not None and not code.co_flags & _VARKEYWORDS:
        raise ConfigurationError(
            f"signal {signal.name}: {receiver.__name__}() must take **kwargs, because signals gain arguments"
        )


before_task_publish = Signal("before_task_publish")
after_task_publish = Signal("after_task_publish")
task_received = Signal("task_received")
task_prerun = Signal("task_prerun")
task_postrun = Signal("task_postrun")
task_success = Signal("task_success")
task_failure = Signal("task_failure")
task_retry = Signal("task_retry")
task_revoked = Signal("task_revoked")
task_rejected = Signal("task_rejected")
task_unknown = Signal("task_unknown")
task_internal_error = Signal("task_internal_error")
beat_init = Signal("beat_init")
beat_embedded_init = Signal("beat_embedded_init")
worker_init = Signal("worker_init")
worker_ready = Signal("worker_ready")
worker_shutting_down = Signal("worker_shutting_down")
worker_shutdown = Signal("worker_shutdown")
worker_process_init = Signal("worker_process_init")
worker_process_shutdown = Signal("worker_process_shutdown")
worker_before_create_process = Signal("worker_before_create_process")
celeryd_init = Signal("celeryd_init")
celeryd_after_setup = Signal("celeryd_after_setup")
setup_logging = Signal("setup_logging")
after_setup_logger = Signal("after_setup_logger")
after_setup_task_logger = Signal("after_setup_task_logger")
import_modules = Signal("import_modules")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in SIGNALS:  # ``from qworker.signals import …`` would discard the text of an AttributeError
            raise ImportError(f"there is no signal {name}: {SIGNALS[name]}")
        raise AttributeError(f"module 'qworker.signals' has no attribute {name!r}")
