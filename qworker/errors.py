"""The errors of qworker.

    QWorkerError
    ├── ConfigurationError       a setting, option or name given by the user is wrong
    │   ├── NotAvailable         Celery has it, this version does not
    │   └── InvalidSchedule      when an entry is due; the reason says what is allowed
    ├── PublishError             a message could not be sent
    │   ├── EncodeError          an argument or result cannot be serialised
    │   ├── NotInChord           add_to_chord() was called by a task that is not in one
    │   └── QueueNotFound
    ├── TransportError           the broker
    │   ├── BrokerUnavailable
    │   └── LeaseLost            another worker owns the message now
    ├── MessageError             a message that arrived
    │   ├── NotRegistered        no task of that name here
    │   ├── InvalidTaskMessage   malformed; the reason says how
    │   └── SecurityError        not accepted, unsigned, or signed by an unknown key
    ├── TaskError                how a task ended, if not by its own exception
    │   ├── TaskRevoked ── TaskExpired
    │   ├── InvalidValue         an argument does not fit its annotation
    │   ├── MaxRetriesExceeded, ChordError
    │   └── TimeLimitExceeded, WorkerLost, Terminated
    ├── ResultError ── ResultTimeout, ResultNotFound, IncompleteStream, CycleError, NotSupported
    │   └── BackendError         the result store failed
    │       └── DamagedResult    the stored result of one task cannot be read
    ├── ControlError
    ├── NoSuchEntry              no schedule entry has that name
    └── SpoolError               a spool file
        ├── InvalidPacket        a file or a client sent an invalid packet
        ├── NoSpoolFunction      no imported module defines a function that runs jobs
        ├── NoSpooler            no spool directory is configured
        ├── NotSpooled           uwsgi.spool() could not enqueue it
        └── UnrunnableJob ── UnknownFunction
    TaskDirective ── Retry, Ignore (Replaced), Reject     raised by a task to decide its outcome; not errors
    SoftTimeLimitExceeded                      raised inside a task so that it can clean up
    WorkerShutdown, WorkerTerminate            raised in the worker to stop it (SystemExit)

Comes from:  everywhere.
Goes to:     callers, logs, and the result store (under Celery's names: ``CELERY_NAMES``).
Thread:      any. Every class survives pickling.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

from billiard import exceptions as _billiard

from qworker.safe_repr import safe_repr


class QWorkerError(Exception):
    """Base of all errors of qworker: ``str(error)`` is one message for the user."""


# -- configuration --


class ConfigurationError(QWorkerError):
    """The user's configuration is wrong. ``setting`` names the setting and ``source`` where it was given."""

    def __init__(self, message: str = "", setting: str | None = None, source: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting
        self.source = source


class InvalidSchedule(ConfigurationError, ValueError):
    """An invalid schedule; the message says what is allowed."""


class NoSuchEntry(QWorkerError, LookupError):
    """There is no schedule entry of that name; the message suggests the most similar one."""


class NotAvailable(ConfigurationError, AttributeError):
    """Celery has this and this version does not; the message says what to use instead. ``hasattr()`` is False
    for it."""


# -- sending --


class PublishError(QWorkerError):
    """The message was not sent; calling again is safe."""


def _also_kombus(kind: type[QWorkerError], name: str) -> None:
    """Make *kind* a subclass of kombu's error *name*, which Celery's users catch around ``delay()``.

    Does nothing until kombu is loaded, because loading it is expensive, and its errors cannot be caught
    before.
    """
    if "kombu" in sys.modules:
        theirs = getattr(import_module("kombu.exceptions"), name)
        if not issubclass(kind, theirs):
            kind.__bases__ = (*kind.__bases__, theirs)


class EncodeError(PublishError):
    """A value cannot be serialised. ``path`` names it ("args[0]['user']"), ``type_name`` its type.

    If kombu is in use it is also ``kombu.exceptions.EncodeError``.
    """

    def __new__(cls, *args: Any, **fields: Any) -> EncodeError:
        _also_kombus(EncodeError, "EncodeError")
        return super().__new__(cls, *args, **fields)

    def __init__(self, message: str = "", path: str | None = None, type_name: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.type_name = type_name


class QueueNotFound(PublishError, KeyError):
    """A queue that is not configured was named while ``task_create_missing_queues`` is off."""

    __str__ = Exception.__str__


# -- the broker --


class TransportError(QWorkerError):
    """The broker refused an operation or could not carry it out."""


class BrokerUnavailable(TransportError):
    """The broker is unavailable; the message says why. Try again later.

    If kombu is in use it is also ``kombu.exceptions.OperationalError``.
    """

    def __new__(cls, *args: Any, **fields: Any) -> BrokerUnavailable:
        _also_kombus(BrokerUnavailable, "OperationalError")
        return super().__new__(cls, *args, **fields)


class LeaseLost(TransportError):
    """The lease of a message expired; another worker may have the message now."""


# -- messages that arrived --


class MessageError(QWorkerError):
    """A received message cannot be run."""


class NotRegistered(MessageError, KeyError):
    """No task of that name is registered here. ``name`` is the unknown name, ``near`` the most similar known
    ones."""

    def __init__(self, name: str = "", near: Sequence[str] = ()) -> None:
        super().__init__(name)
        self.name = name
        self.near = tuple(near)

    def __str__(self) -> str:
        text = f"no task named {self.name!r} is registered"
        if self.near:
            return f"{text}; did you mean {_either(self.near)}?"
        return f"{text}; is the module that defines it imported (setting `imports` or `include`)?"


class InvalidTaskMessage(MessageError):
    """The message is malformed; the text is the reason stored with the dead letter."""


class SecurityError(MessageError):
    """The content type of the message is not accepted, or its signature is missing or invalid."""


# -- how a task ended --


class TaskError(QWorkerError):
    """A task did not end by its own return or exception."""


class TaskRevoked(TaskError):
    """The task was revoked before it ran, or terminated while it ran."""


class TaskExpired(TaskRevoked):
    """The task was not started before its ``expires``."""

    def __init__(self, message: str = "expired") -> None:
        super().__init__(message)


class MaxRetriesExceeded(TaskError):
    """The task asked for more retries than ``max_retries``."""

    def __init__(self, *args: Any, task_args: Sequence[Any] = (), task_kwargs: Any = None) -> None:
        super().__init__(*args)
        self.task_args = task_args
        self.task_kwargs = {} if task_kwargs is None else task_kwargs


class InvalidValue(TaskError, TypeError):
    """An argument does not match the annotation of the task's parameter; the message names the argument, the
    place in it, and what was expected. The task fails at once, whatever its retry options are, and can be
    sent again with other arguments (``qworker failed retry``)."""


class NotInChord(PublishError, ValueError):
    """``add_to_chord()`` was called by a task that is not a member of a chord; nothing was sent."""


class ChordError(TaskError):
    """A task in the header of a chord failed, so its body will not run."""


class TimeLimitExceeded(TaskError, _billiard.TimeLimitExceeded):  # type: ignore[misc]
    """The hard time limit passed and the process was killed; the argument is the limit in seconds."""


class WorkerLost(TaskError, _billiard.WorkerLostError):  # type: ignore[misc]
    """The process that ran the task died: killed, out of memory, exited, or crashed."""


class Terminated(TaskError, _billiard.Terminated):  # type: ignore[misc]
    """The process that ran the task was terminated on request."""


class SoftTimeLimitExceeded(_billiard.SoftTimeLimitExceeded):  # type: ignore[misc]
    """The soft time limit passed. Catch it to clean up; the hard limit still applies."""


# -- results --


class ResultError(QWorkerError):
    """The result is not available."""


class ResultTimeout(ResultError, TimeoutError):
    """The result was not available in time; the task may still be running. Also the builtin TimeoutError."""


class ResultNotFound(ResultError):
    """No result is stored under that id; it may have expired, or never have been stored."""


class BackendError(ResultError):
    """The result store failed."""


class DamagedResult(BackendError):
    """The stored result of a task cannot be read: it is damaged, forged, or of a content type that is not
    accepted.

    ``task_id`` names the task (None: no task). The store itself is available, and other results can be read.
    """

    def __init__(self, message: str = "", task_id: str | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id


class IncompleteStream(ResultError):
    """``collect()`` or a similar method found a result that has not ended; wait for it with ``get()``
    first."""


class CycleError(ResultError, ValueError):
    """A dependency graph has a cycle; the message names a node in it."""


class NotSupported(ResultError, NotImplementedError):
    """This result store or transport does not support the operation; the message names one that does."""


class ControlError(QWorkerError):
    """A remote control command failed or was not answered."""


class SpoolError(QWorkerError):
    """A spool file or packet could not be written or read."""


class InvalidPacket(SpoolError):
    """Invalid bytes in a packet; the message says at which byte, and what is wrong."""


class NoSpoolFunction(SpoolError):
    """There is a job, but no function to run it: the module that sets ``uwsgi.spooler`` was not imported."""


class NoSpooler(SpoolError, AttributeError):
    """No spool directory is configured. An AttributeError, so that ``hasattr(uwsgi, "spool")`` works as with
    uWSGI."""


class NotSpooled(SpoolError, ValueError):
    """``uwsgi.spool()`` enqueued nothing; a ValueError, because uWSGI raises one."""


class UnrunnableJob(SpoolError):
    """The arguments of a spool job cannot, or must not, be read. It is set aside at once, with the message as
    the reason, because a retry cannot help."""


class UnknownFunction(UnrunnableJob):
    """A spool job for a decorated function that does not exist."""


# -- directives --


class TaskDirective(Exception):
    """Raised by a task to decide its outcome; not a failure."""


class Retry(TaskDirective):
    """The task will run again; raised by ``task.retry()`` after the next attempt was sent.

    ``exc`` is the exception that caused it (or None), ``when`` the delay in seconds or an aware datetime
    (or None: now), ``is_eager`` whether the task runs inline, ``sig`` the next call in that case.
    """

    def __init__(
        self,
        message: str | None = None,
        exc: BaseException | None = None,
        when: float | datetime | None = None,
        is_eager: bool = False,
        sig: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exc = exc
        self.when = when
        self.is_eager = is_eager
        self.sig = sig

    def __str__(self) -> str:
        if self.message:
            return str(self.message)
        text = f"Retry {self.humanize()}"
        return f"{text}: {safe_repr(self.exc)}" if self.exc is not None else text

    def humanize(self) -> str:
        """Say when: "now", "in 3s" or "at <time>"."""
        if self.when is None:
            return "now"
        if isinstance(self.when, int | float):
            return f"in {self.when:g}s"
        return f"at {self.when}"


class Ignore(TaskDirective):
    """The task ends and its stored state is left unchanged."""


class Replaced(Ignore):
    """Another call has replaced the task; raised by ``task.replace()`` after that call was sent.

    ``sig`` is that call, with the task's id, in its chain or chord.
    """

    def __init__(self, sig: Any = None) -> None:
        super().__init__("replaced by another call")
        self.sig = sig


class Reject(TaskDirective):
    """The message is refused: put back with ``requeue``, otherwise dead-lettered with ``reason``."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue

    def __str__(self) -> str:
        return f"reject requeue={self.requeue}: {self.reason}"


# -- stopping a worker --


class WorkerShutdown(SystemExit):
    """Stops the worker when raised in its own process, not in a task, where it is a failure like SystemExit.

    In the main thread, for example in a receiver of worker_ready, running tasks end first; in any other
    thread it acts like WorkerTerminate. The argument is the exit code, by default 0.
    """


class WorkerTerminate(SystemExit):
    """Stops the worker at once; running tasks return to the queue. Otherwise like WorkerShutdown."""


# -- Celery's names --

AlreadyRegistered = ConfigurationError
BackendGetMetaError = BackendError
BackendStoreError = BackendError
CeleryError = QWorkerError
ImproperlyConfigured = ConfigurationError
InvalidTaskError = InvalidTaskMessage
MaxRetriesExceededError = MaxRetriesExceeded
OperationalError = BrokerUnavailable
TaskPredicate = TaskDirective
TaskRevokedError = TaskRevoked
WorkerLostError = WorkerLost
TimeoutError = ResultTimeout

#: our class → (exc_type, exc_module) in stored results, from which Celery's clients rebuild its own class.
CELERY_NAMES: dict[type[BaseException], tuple[str, str]] = {
    BackendError: ("BackendError", "celery.exceptions"),
    ChordError: ("ChordError", "celery.exceptions"),
    ConfigurationError: ("ImproperlyConfigured", "celery.exceptions"),
    Ignore: ("Ignore", "celery.exceptions"),
    IncompleteStream: ("IncompleteStream", "celery.exceptions"),
    CycleError: ("CycleError", "celery.utils.graph"),
    InvalidTaskMessage: ("InvalidTaskError", "celery.exceptions"),
    MaxRetriesExceeded: ("MaxRetriesExceededError", "celery.exceptions"),
    NotRegistered: ("NotRegistered", "celery.exceptions"),
    QueueNotFound: ("QueueNotFound", "celery.exceptions"),
    Reject: ("Reject", "celery.exceptions"),
    ResultTimeout: ("TimeoutError", "celery.exceptions"),
    Retry: ("Retry", "celery.exceptions"),
    SecurityError: ("SecurityError", "celery.exceptions"),
    SoftTimeLimitExceeded: ("SoftTimeLimitExceeded", "billiard.exceptions"),
    TaskExpired: ("TaskRevokedError", "celery.exceptions"),
    TaskRevoked: ("TaskRevokedError", "celery.exceptions"),
    Terminated: ("Terminated", "billiard.exceptions"),
    TimeLimitExceeded: ("TimeLimitExceeded", "billiard.exceptions"),
    WorkerLost: ("WorkerLostError", "billiard.exceptions"),
}


def _either(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in names)
