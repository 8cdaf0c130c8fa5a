"""Backend: the interface of a result store. One contract suite tests all stores.

Comes from:  execution, which stores states; the worker, which sweeps.
Goes to:     ``results/result.py``, which reads them.
Thread:      any thread may call any method. In a forked child, stores open new connections.

The data stored for a task is its *metadata*, a dict in Celery's format: task_id, status, result (a value, or
an exception as dict), traceback, children, date_done; group_id and parent_id if there are any; and with
``result_extended`` name, args, kwargs, worker, retries, queue.

A final state is never replaced: ``store`` checks ``states.may_replace`` and writes atomically.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from qworker import states
from qworker.backends.codec import ResultCodec
from qworker.backends.joins import Joins
from qworker.backends.result_watcher import ResultWatcher, final, readable
from qworker.backends.waiters import POLL_SECONDS, NotificationSource
from qworker.backends.waiters import Found as Found  # exported for stores
from qworker.backends.waiters import Meta as Meta
from qworker.clock import Clock, isoformat
from qworker.errors import DamagedResult, NotAvailable, NotSupported, TaskRevoked
from qworker.message.exceptions import exception_from_dict, exception_to_dict
from qworker.transports.lease import ResultRow

if TYPE_CHECKING:
    from qworker.message.context import Context

LOCK_STORES = "use sqlite:/// or db+postgresql:// for them"
JOIN_STORES = (
    "set result_backend to sqlite:///, redis://, db+postgresql:// or db+mysql:// (file:/// and "
    "cache+memory:// have them, too)"
)


class Backend(ABC):
    """A result store at *url*, with the settings *conf*."""

    persistent: ClassVar[bool] = True
    """Whether other processes see stored results."""
    why_none = ""
    """Why results are not available here, and what to set; "" if they are."""
    listens = False
    """Whether its source must be read even if there is no waiter."""
    supports_locks: ClassVar[bool] = True
    """Whether add(), incr() and delete() work."""
    keeps_parents: ClassVar[bool] = True  # whether metadata includes the calling task and the group

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        self.url = url
        self.clock = clock
        self.expires: float | None = conf.result_expires or None
        self.codec = ResultCodec(conf, clock, lambda: self.safe_url)
        self._extended: bool = conf.result_extended

    # -- metadata --

    def meta(
        self,
        task_id: str,
        status: str,
        result: Any = None,
        traceback: str | None = None,
        context: Context | None = None,
        properties: Mapping[str, Any] | None = None,
        **extra: Any,
    ) -> Meta:
        """Make the metadata of a task in state *status*; *result* is a value, or an exception as dict.

        properties: the message's, if there is no context; for stores that send results back.
        """
        final = status in states.READY_STATES
        meta = {
            "status": status,
            "result": result,
            "traceback": traceback,
            "children": [],
            "date_done": isoformat(self.clock.now()) if final else None,
            "task_id": task_id,
        }
        if context is not None:
            if "children" in context.__dict__:
                meta["children"] = [child.as_tuple() for child in context.children]
            if context.group is not None:
                meta["group_id"] = context.group
            if context.parent_id is not None:
                meta["parent_id"] = context.parent_id
            if self._extended:
                call = {name: self.codec.shown(value) for name, value in _extended(context).items()}
                meta = {**call, **meta}
        if extra:
            meta.update(extra)
        return meta

    def expiry(self, terms: int = 1, delay: float = 0.0) -> float | None:
        """Return the epoch second when data stored now expires; None: never. terms: number of result
        lifetimes. delay: seconds until the first of them begins."""
        return None if self.expires is None else self.clock.now() + delay + self.expires * terms

    def row(self, task_id: str, meta: Meta, kept: float = 0.0) -> ResultRow | None:
        """Make a row for store_rows() from *meta*, without accessing the store; None if it is not to be
        stored. kept: how many seconds longer than usual. Raises EncodeError when it cannot be serialised.
        """
        return task_id, meta["status"], self.codec.encode(meta), self.expiry(delay=kept)

    def row_why_not(self, row: ResultRow, status: str, error: BaseException) -> ResultRow | None:
        """Make a row to store instead of *row*, which the store refuses: the state *status* with the *error*
        as reason. None and errors as for row()."""
        return self.row(row[0], self.meta(row[0], status, exception_to_dict(error)))

    def reply_to(self) -> str | None:
        """Return the queue to which results for this process are sent; None: results are not sent."""
        return None

    def same_store(self, store_url: str) -> bool:
        """Return whether the broker at *store_url* keeps its messages in this store."""
        return False

    @property
    def safe_url(self) -> str:
        """The URL with its password masked, for messages and logs."""
        scheme, separator, rest = self.url.partition("://")
        user, at, host = rest.rpartition("@")
        name, colon, _ = user.partition(":")
        return f"{scheme}{separator}{name}{colon and ':********'}{at}{host}"

    # -- tasks --

    @abstractmethod
    def store(self, task_id: str, meta: Meta) -> bool:
        """Store *meta*; return False, without storing it, if it may not replace the stored state.

        Raises EncodeError when it cannot be serialised, BackendError when the store is unavailable.
        """

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        """Store rows made by row(), oldest first, each like store(); in one step if the store supports it.

        Raises BackendError when the store is unavailable, and EncodeError when one of the rows can never be
        stored. In both cases others may have been stored; after a BackendError the call may be repeated.
        """
        for task_id, _, payload, _ in rows:
            self.store(task_id, self.codec.decode(payload))

    @abstractmethod
    def get(self, task_id: str) -> Meta | None:
        """Return the metadata of *task_id*; None when nothing is stored, or it has expired.

        Raises DamagedResult for unreadable data, and BackendError when the store is unavailable, like all
        reading methods.
        """

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        """Return the metadata of those *ids* that are stored, or a DamagedResult for unreadable data."""
        found: dict[str, Found] = {}
        for task_id in ids:
            try:
                meta = self.get(task_id)
            except DamagedResult as error:
                error.task_id = task_id  # a custom store may not have set it
                found[task_id] = error
            else:
                if meta is not None:
                    found[task_id] = meta
        return found

    @abstractmethod
    def forget(self, task_id: str) -> None:
        """Delete the stored result of *task_id*, if there is one."""

    def forget_many(self, ids: Iterable[str]) -> None:
        """Delete the stored results of *ids*, with few commands if the store supports it."""
        for task_id in ids:
            self.forget(task_id)

    def wait(
        self,
        ids: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None = None,
        interval: float = POLL_SECONDS,
    ) -> dict[str, Meta]:
        """Wait until at least one of *ids* has ended. Return the metadata of all that have; {} after
        *timeout* seconds.

        Raises DamagedResult, with its ``task_id``, if all results found are unreadable. on_interval: called
        before each pause, which lasts at most *interval* seconds.
        """
        if timeout is not None and timeout <= 0:
            return readable(final(self.read_many(ids)))
        return self.watcher.wait(ids, timeout, on_interval, interval)

    def wait_each(
        self,
        ids: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None = None,
        interval: float = POLL_SECONDS,
    ) -> Iterator[dict[str, Found]]:
        """Yield the metadata of *ids* as they end, each once, until all have ended or *timeout* seconds have
        passed.

        on_interval: called every *interval* seconds.
        """
        missing = dict.fromkeys(ids)
        if found := final(self.read_many(missing)):
            yield found
        missing = {task_id: None for task_id in missing if task_id not in found}
        if missing and (timeout is None or timeout > 0):
            yield from self.watcher.wait_each(missing, timeout, on_interval, interval)

    @property
    def watcher(self) -> ResultWatcher:
        """The watcher of this store in this process."""
        made: ResultWatcher | None = self.__dict__.get("_watcher")
        return made or cast(ResultWatcher, self.__dict__.setdefault("_watcher", ResultWatcher(self)))

    def open_source(self) -> NotificationSource | None:
        """Return a source of notifications about results; None: there is none, and the store is polled."""
        return None

    # -- for programs that read or write results themselves, under Celery's names --

    def get_many(self, ids: Collection[str]) -> dict[str, Meta]:
        """Return the metadata of those *ids* that are stored.

        Raises DamagedResult when one of them cannot be read; read_many() returns an error for each.
        """
        readable: dict[str, Meta] = {}
        for task_id, found in self.read_many(ids).items():
            if isinstance(found, DamagedResult):
                raise found
            readable[task_id] = found
        return readable

    def get_task_meta(self, task_id: str, cache: bool = True) -> Meta:
        """Return the stored metadata of a task: its status, result (a value, or an exception), traceback,
        children, … If there is none, return ``{"status": "PENDING", "result": None}``. Nothing is cached.
        """
        meta = self.get(task_id)
        if meta is None:
            return {"status": states.PENDING, "result": None}
        if meta["status"] in states.EXCEPTION_STATES and not isinstance(meta["result"], BaseException | None):
            meta = {**meta, "result": exception_from_dict(meta["result"])}
        return meta

    def get_state(self, task_id: str) -> str:
        """Return the state of a task."""
        return str(self.get_task_meta(task_id)["status"])

    get_status = get_state

    def get_result(self, task_id: str) -> Any:
        """Return the value of a task, its exception, or the ``meta`` of update_state(); None if there is
        none."""
        return self.get_task_meta(task_id)["result"]

    def get_traceback(self, task_id: str) -> str | None:
        """Return the traceback of a task; None if it has not failed."""
        return self.get_task_meta(task_id).get("traceback")

    def get_children(self, task_id: str) -> Any:
        """Return the calls that a task made, in the format of result_from_tuple(); None if unknown."""
        return self.get_task_meta(task_id).get("children")

    def task_result_exists(self, task_id: str) -> bool:
        """Return whether a result of a task is stored."""
        return self.get(task_id) is not None

    def store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: str | None = None,
        request: Any = None,
    ) -> Any:
        """Store a state with its result, a value or an exception, unless a final state is stored. Return
        *result*.

        request: the task's request, for other metadata: children, and with ``result_extended`` name and
        arguments. Raises EncodeError when it cannot be serialised, BackendError when the store is
        unavailable.
        """
        kept = exception_to_dict(result) if isinstance(result, BaseException) else result
        self.store(task_id, self.meta(task_id, state, kept, traceback, request))
        return result

    def mark_as_started(self, task_id: str, **meta: Any) -> None:
        """Store that a task has started, with *meta* as its result."""
        self.store_result(task_id, meta, states.STARTED)

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, state: str = states.SUCCESS
    ) -> None:
        """Store the value of a task, without calling its ``link``. Raises NotAvailable if *request* has
        one."""
        _refuse_to_go_on(request, "callbacks", "link")
        self.store_result(task_id, result, state, request=request)

    def mark_as_failure(
        self,
        task_id: str,
        exc: BaseException,
        traceback: str | None = None,
        request: Any = None,
        state: str = states.FAILURE,
    ) -> None:
        """Store that a task failed, without calling its ``link_error``. Raises NotAvailable if *request* has
        one."""
        _refuse_to_go_on(request, "errbacks", "link_error")
        self.store_result(task_id, exc, state, traceback, request)

    def mark_as_retry(
        self, task_id: str, exc: BaseException, traceback: str | None = None, request: Any = None
    ) -> None:
        """Store that a task will run again because of *exc*."""
        self.store_result(task_id, exc, states.RETRY, traceback, request)

    def mark_as_revoked(self, task_id: str, reason: str = "", request: Any = None) -> None:
        """Store that a task will not run."""
        self.store_result(task_id, TaskRevoked(reason or "revoked"), states.REVOKED, request=request)

    # -- locks and counters --

    def add(self, key: str, ttl: float | None = None) -> bool:
        """Create *key* for *ttl* seconds (None: forever); False if it exists. Of concurrent callers, only one
        gets True."""
        raise self._unsupported("locks")

    def incr(self, key: str, ttl: float | None = None) -> int:
        """Add 1 to the counter *key*, creating it if necessary; return its new value. It expires *ttl*
        seconds from now."""
        raise self._unsupported("counters")

    def delete(self, key: str) -> None:
        """Delete a lock or counter, if it exists."""
        raise self._unsupported("locks")

    @property
    def joins(self) -> Joins:
        """The joins of this store. Raises NotSupported where there are none."""
        raise self._unsupported("joins, which chords and graphs need", JOIN_STORES)

    # -- groups --

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        """Store *result*, the tuple that describes a group, for *kept* seconds longer than results."""
        raise self._unsupported("groups")

    def get_group(self, group_id: str) -> Any:
        """Return the tuple stored by save_group(); None if there is none."""
        raise self._unsupported("groups")

    def delete_group(self, group_id: str) -> None:
        """Delete the tuple stored by save_group(), if there is one."""
        raise self._unsupported("groups")

    # -- maintenance --

    def sweep(self, now: float) -> int:
        """Delete data that expired before epoch second *now*; return the number of entries deleted."""
        return 0

    def close(self) -> None:
        """Close connections; the next use opens new ones."""
        if "_watcher" in self.__dict__:
            self.watcher.close()

    def _unsupported(self, what: str, instead: str = LOCK_STORES) -> NotSupported:
        return NotSupported(f"the result store {self.safe_url} has no {what}: {instead}")


def _extended(context: Context) -> Meta:
    delivery, stamps = context.delivery_info or {}, {}
    if context.stamps:
        stamps = {name: context.stamps.get(name) for name in context.stamped_headers or ()}
        stamps["stamped_headers"] = list(stamps)
    return {
        **stamps,
        "name": context.task,
        "args": list(context.args),
        "kwargs": context.kwargs,
        "worker": context.hostname,
        "retries": context.retries,
        "queue": delivery.get("routing_key"),
    }


def _refuse_to_go_on(request: Any, field: str, option: str) -> None:
    if request is not None and getattr(request, field, None):
        raise NotAvailable(
            f"mark_as_done() and mark_as_failure() do not call the {option} of a request: call it with "
            "apply_async(), and leave out request="
        )
