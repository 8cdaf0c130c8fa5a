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
from qworker.backends.joins import Joins
from qworker.backends.result_watcher import ResultWatcher, final, readable
from qworker.backends.waiters import POLL_SECONDS, NotificationSource
from qworker.backends.waiters import Found as Found  # exported for stores
from qworker.backends.waiters import Meta as Meta
from qworker.clock import Clock, isoformat
from qworker.errors import (
    DamagedResult,
    EncodeError,
    InvalidTaskMessage,
    NotAvailable,
    NotSupported,
    SecurityError,
    TaskRevoked,
)
from qworker.message.exceptions import exception_from_dict, exception_to_dict
from qworker.message.serialization import compress, content_types, decode, decompress, encode, encode_json
from qworker.safe_repr import safe_repr
from qworker.transports.lease import ResultRow

if TYPE_CHECKING:
    from qworker.message.context import Context
    from qworker.message.signing import Signer

About = tuple[str, ...]

COMPRESSED = b"\x00celery-compressed\x00"
"""Prefix of a compressed payload, followed by the MIME name and a NUL."""

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
        self._serializer: str = conf.result_serializer
        self._compression: str | None = conf.result_compression
        self._extended: bool = conf.result_extended
        self.max_bytes: int = conf.message_max_bytes
        self._signer: Signer | None = None
        if (keys := conf.security_key) is not None:
            from qworker.message.signing import Signer  # loads OpenSSL

            self._signer = Signer(keys, clock)
        accept = conf.result_accept_content or conf.accept_content
        self._accept = content_types([*accept, self._serializer], "result_accept_content")
        (self._content_type,) = content_types([self._serializer], "result_serializer")

    @property
    def signs(self) -> bool:
        """Whether values are signed, and only signed values are read."""
        return self._signer is not None

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
                call = {name: self._shown(value) for name, value in _extended(context).items()}
                meta = {**call, **meta}
        if extra:
            meta.update(extra)
        return meta

    def _shown(self, value: Any) -> Any:
        """Return *value*, of a call, or its repr if the metadata cannot contain it, one level deeper: it must
        not be the reason why the state is not stored."""
        try:
            self._serialised([value], None)
        except EncodeError:
            return safe_repr(value)
        return value

    def encode(self, meta: Meta) -> bytes:
        """Serialise metadata. Raises EncodeError, which names the part that cannot be serialised, or says
        that the result is too large."""
        data = self.encode_value(meta, {"the result": meta.get("result"), "the metadata": meta}, ("result",))
        # Only the result counts, because the ids of a hundred thousand children may be larger.
        if len(data) > self.max_bytes:
            refuse_too_large(self.encode_value(meta.get("result")), self.max_bytes)
        return data

    def encode_value(self, value: Any, parts: Mapping[str, Any] | None = None, about: About = ()) -> bytes:
        """Serialise any value. EncodeError names one of its *parts* (name → value). about: its kind and
        owner, which a security_key signs too."""
        data = self._serialised(value, parts)
        if self._compression:
            mime, body = compress(data, self._compression)
            data = b"%s%s\x00%s" % (COMPRESSED, mime.encode(), body)
        return data if self._signer is None else self._signer.seal(data, *about)

    def _serialised(self, value: Any, parts: Mapping[str, Any] | None) -> bytes:
        if self._serializer == "json":
            return encode_json(value, parts or {"the result": value})
        return encode(value, self._serializer, "the result")[2]

    def decode(self, data: bytes | str, task_id: str | None = None) -> Meta:
        """Undo encode(). Raises DamagedResult for damaged data, a content type that is not accepted, a
        missing signature with a security_key, or a signature for another task than *task_id*."""
        meta = self.decode_value(data, ("result",), task_id)
        if not isinstance(meta, dict) or not isinstance(meta.get("status"), str) or "result" not in meta:
            raise self.damaged(task_id, f"is damaged: {data[:80]!r} is not metadata")
        if self._signer is not None and task_id is not None and meta.get("task_id") != task_id:
            raise self.damaged(task_id, "is another task's")
        return meta

    def found(self, data: bytes | str, task_id: str) -> Found:
        """Return decode(), or the DamagedResult that it raises."""
        try:
            return self.decode(data, task_id)
        except DamagedResult as error:
            return error

    def status_of(self, data: bytes | str) -> str:
        """Return the state in the output of encode(). Unreadable data counts as PENDING, which any state
        replaces."""
        try:
            return str(self.decode(data)["status"])
        except DamagedResult:
            return states.PENDING

    def called(self, task_id: str | None) -> str:
        """Return the name of the stored result of *task_id* (None if unknown) in errors."""
        whose = "a stored result" if task_id is None else f"the stored result of task {task_id}"
        return f"{self.safe_url}: {whose}"

    def damaged(self, task_id: str | None, why: str) -> DamagedResult:
        """Return the error that says *why* the stored result of *task_id* cannot be read."""
        return DamagedResult(f"{self.called(task_id)} {why}", task_id)

    def decode_value(self, data: bytes | str, about: About = (), task_id: str | None = None) -> Any:
        """Return the value serialised in *data*, compressed or not; raises DamagedResult for *task_id*."""
        payload = data.encode() if isinstance(data, str) else bytes(data)
        try:
            if self._signer is not None:  # check the signature before parsing
                payload = self._signer.unseal(payload, *about)
        except SecurityError as error:
            raise self.damaged(task_id, f"is refused: {error}") from error
        try:
            if payload.startswith(COMPRESSED):
                mime, _, payload = payload[len(COMPRESSED) :].partition(b"\x00")
                payload = decompress(payload, mime.decode("ascii", "replace"))
            encoding = "utf-8" if self._serializer in ("json", "yaml") else "binary"
            return decode(payload, self._content_type, encoding, self._accept)
        except (InvalidTaskMessage, SecurityError) as error:
            from qworker.message.signing import SEAL

            if self._signer is None and SEAL in payload:
                why = "is signed, and this process has no security_key: set it here, too"
                raise self.damaged(task_id, why) from error
            why = (
                f"cannot be read as {self._serializer}: {error}. Was it written with another "
                "result_serializer?"
            )
            raise self.damaged(task_id, why) from error

    def check_encodable(self, result: Any) -> None:
        """Raise EncodeError if *result* could not be stored."""
        self._serialised(result, None)

    def expiry(self, terms: int = 1, delay: float = 0.0) -> float | None:
        """Return the epoch second when data stored now expires; None: never. terms: number of result
        lifetimes. delay: seconds until the first of them begins."""
        return None if self.expires is None else self.clock.now() + delay + self.expires * terms

    def row(self, task_id: str, meta: Meta, kept: float = 0.0) -> ResultRow | None:
        """Make a row for store_rows() from *meta*, without accessing the store; None if it is not to be
        stored. kept: how many seconds longer than usual. Raises EncodeError when it cannot be serialised.
        """
        return task_id, meta["status"], self.encode(meta), self.expiry(delay=kept)

    def row_why_not(self, row: ResultRow, status: str, error: BaseException) -> ResultRow | None:
        """Make a row to store instead of *row*, which the store refuses: the state *status* with the *error*
        as reason. None and errors as for row()."""
        return self.row(row[0], self.meta(row[0], status, exception_to_dict(error)))

    def reply_to(self) -> str | None:
        """Return the queue to which results for this process are sent; None: results are not sent."""
        return None

    def same_store(self, store_url: str) -> bool:
        """Tell whether the broker at *store_url* keeps its messages in this store."""
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
            self.store(task_id, self.decode(payload))

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
            return self.ended(ids)
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

    def ended(self, ids: Collection[str]) -> dict[str, Meta]:
        """Return the metadata of those *ids* that have ended. Raises like wait()."""
        return readable(final(self.read_many(ids)))

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
        """Tell whether a result of a task is stored."""
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


def refuse_too_large(result: bytes, limit: int) -> None:
    """Raise EncodeError when *result*, a serialised value, has more bytes than *limit*."""
    if len(result) > limit:
        raise EncodeError(
            f"the result is {len(result)} bytes long, and message_max_bytes is {limit}: "
            "store it elsewhere and return where it is"
        )


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
            f"the request has a {option}, which is not called by hand: call it with apply_async(), and leave "
            "request out"
        )
