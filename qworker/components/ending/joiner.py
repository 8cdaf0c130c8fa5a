"""Joiner: sends the body of a join when its last member has ended.

Comes from:  the listener and the result writer, which wake it after recording parts; the result store, which
             has the joins.
Goes to:     the broker, with the body; the result store, with the failure of a body that does not run.
Thread:      joiner; record() is called by the result writer, wake() by any.

The first worker that claims a join sends its body. A claim expires: if that worker dies, another worker takes
over. A worker that cannot send a body tries again until then, and claims nothing new while it has lost its
lease: others may still reach the broker. Members that run block no slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker import states
from qworker.backends.joins import PUSH_SECONDS, Finished, Joins
from qworker.canvas.join_body import JoinBody
from qworker.canvas.membership import MOST_MEMBERS_TEXT, calls_in
from qworker.components.component import ThreadComponent
from qworker.components.ending.result_writer import store_why_not
from qworker.errors import (
    BackendError,
    BrokerUnavailable,
    ChordError,
    DamagedResult,
    EncodeError,
    PublishError,
    QWorkerError,
    ResultNotFound,
)
from qworker.message.exceptions import exception_of, exception_to_dict
from qworker.process.crash_points import crash_point
from qworker.publishing import bodies
from qworker.safe_repr import safe_repr
from qworker.tasks import followup
from qworker.tasks.outcome import Followed
from qworker.tasks.unsent import is_away
from qworker.transports.lease import Envelope, Part, ResultRow
from qworker.transports.portions import portions

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.backends.base import Meta

logger = logging.getLogger(__name__)

BATCH = 16
"""Maximum joins per claim, and beyond which only one more is claimed at a time while others are unsent."""
RETRY_SECONDS = 1.0
_AWAY = (BackendError, BrokerUnavailable)
PORTION = 1000
"""Maximum results per read."""


@dataclass
class Claimed:
    """A claimed join. until: the monotonic time at which the claim expires."""

    join: Finished
    until: float


class Joiner(ThreadComponent):
    """joins: returns the joins of the app's result store. may_have_due: whether that store may have joins due
    at an epoch second. A broker in the same store answers this through its own connection, because opening
    the result store would delay the start and take tens of MB, even without workflows. has_lease: whether
    the worker's lease holds, so that it probably reaches the broker."""

    name = "joiner"

    def __init__(
        self,
        app: QWorker,
        on_crash: Callable[[str, BaseException], None],
        joins: Callable[[], Joins],
        may_have_due: Callable[[float], bool] = lambda now: True,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(app.clock, on_crash)
        self._app = app
        self._open_joins = joins
        self._may_have_due = may_have_due
        self._has_lease = has_lease
        self._seconds: float = app.conf.worker_lease_seconds
        """Duration of a claim, and interval between checks for overdue joins and those of dead workers."""
        self._unsent: dict[str, Claimed] = {}  # joiner only
        """Claimed joins that are not finished yet, by id; those that have failed last come last."""
        self._failures = 0  # joiner only
        """The number of steps in a row that have failed."""

    @property
    def _joins(self) -> Joins:
        return self._open_joins()

    def record(self, parts: Sequence[Part]) -> None:
        """Record *parts*, and check whether they are the last. Raises BackendError if the store is
        unavailable."""
        self._joins.add(parts)
        self.wake()

    def opened(self) -> None:
        """Wait until the broker has registered this worker, but no longer than a claim lasts: an outage often
        affects the joins too, and is reported only once."""
        self.wait(self._seconds)

    def step(self, now: float) -> float | None:
        for id in [id for id, claimed in self._unsent.items() if claimed.until <= now]:
            del self._unsent[id]  # another claim may finish it
        errors = [error for work in (self._send_unsent, self._send_new) if (error := _error_of(work))]
        if not errors:
            self._failures = 0
            return self._seconds
        self._failures += 1
        if not self._failures & (self._failures - 1):  # the 1st, 2nd, 4th, 8th ...
            known = isinstance(errors[0], QWorkerError)
            logger.log(
                logging.WARNING if known else logging.ERROR,
                "the call after a group cannot be sent: %s; trying again in %g s",
                _text_of(errors[0]),
                RETRY_SECONDS,
                extra={"event": "joins-wait"},
                exc_info=None if known else errors[0],
            )
        return RETRY_SECONDS

    def _send_unsent(self) -> None:
        for id in list(self._unsent):
            self._send(id)

    def _send_new(self) -> None:
        """Claim joins and send their bodies. Some are always claimed, although others cannot be sent: the
        store returns first those that were not claimed before."""
        if not (self._has_lease() and self._may_have_due(self._app.clock.now())):
            return
        while True:
            until = self.clock.monotonic() + self._seconds
            claimed = self._joins.claim(max(1, BATCH - len(self._unsent)), self._seconds)
            if not claimed:
                return
            self._unsent |= {join.id: Claimed(join, until) for join in claimed}
            for join in claimed:
                self._send(join.id)

    def _send(self, id: str) -> None:
        """Send the body of the claimed join *id*; if that fails, it comes after the others next time."""
        claimed = self._unsent.pop(id)
        try:
            self._end_join(claimed)
        except Exception:
            self._unsent[id] = claimed
            raise

    def closed(self) -> None:
        """Try once more to send what was claimed: otherwise, others have to wait until the claims expire."""
        _error_of(self._send_unsent)

    def _finish(self, claimed: Claimed, envelopes: Sequence[Envelope]) -> bool:
        """Publish *envelopes*, and finish the join; return whether its claim has not expired."""
        join = claimed.join
        claimed.join = join._replace(attempt=join.attempt + 1)
        if not (join.attempt or self._app.results_with_broker):  # extends the claim
            claimed.until = self.clock.monotonic() + PUSH_SECONDS
        return self._joins.finish(join, envelopes, self._app.broker.sender)

    def _end_join(self, claimed: Claimed) -> None:
        """Send the body of a join. If it cannot be sent, report its failure as far as possible."""
        join = claimed.join
        crash_point("join-claimed")
        try:
            body, doubt = bodies.read_body(self._app, join)
            error: Part | str | Exception | None = doubt or self._error(join, body)
        except _AWAY:
            raise
        except Exception as damaged:  # noqa: BLE001 - other clients may store anything
            self._give_up(claimed, _text_of(damaged))
            return
        if body.tentative and join.overdue and not join.parts:
            logger.info("join %s ends without its members: they were not committed", join.id)
            self._finish(claimed, ())
            return
        fail = partial(self._fail, believed=doubt is None)
        for way in (*(() if error else (self._call,)), fail, self._end, self._store):
            try:
                envelopes = way(join, body, error)
            except Exception as raised:
                if is_away(raised):
                    raise
                error = error or raised  # missing values, or a call that cannot be sent
                continue
            crash_point("body-made")
            try:
                finished = self._finish(claimed, envelopes)
                break
            except (EncodeError, PublishError) as raised:  # the broker refuses them
                error = error or raised
        else:
            finished = self._give_up(claimed, self._why(error) if error else "")
        if finished:  # otherwise another worker has claimed the join, and reads the records
            bodies.forget_added(self._app, join, body)

    def _give_up(self, claimed: Claimed, error: Any) -> bool:
        text = "join %s ends without its body: %s"
        logger.error(text, claimed.join.id, error, extra={"event": "join-failed"})
        return self._finish(claimed, ())

    def _call(self, join: Finished, body: JoinBody, error: Any) -> list[Envelope]:
        """Return the messages that call *body*."""
        from qworker.publishing.body_messages import messages_of

        return messages_of(self._app, body, self._values(join, body))

    def _fail(self, join: Finished, body: JoinBody, error: Any, believed: bool) -> list[Envelope]:
        """Return the messages that make *body* fail, in a worker if the join is in qworker's format. What is
        not the body of a chord fails along with a member, without messages, as the rest of a chain.

        believed: the parts belong to the members.
        """
        why = self._why(error)
        if not body.of_chord and not isinstance(error, Exception):
            logger.info("the call after join %s fails with it: %s", join.id, why)
            if body.one and believed:
                bodies.keep_rest(self._app, join.id, body)
            self._fail_along(body, error, why)
            return []
        logger.error("join %s fails: %s", join.id, why, extra={"event": "join-failed"})
        if join.parts and join.parts[0].body:
            return self._end(join, body, error)
        from qworker.publishing.body_messages import failed_messages_of

        members = () if join.overdue or not believed else [part.task_id for part in join.parts]
        return failed_messages_of(self._app, body, why, members, self._cause(error, body))

    def _end(self, join: Finished, body: JoinBody, error: Any) -> list[Envelope]:
        """Let *body* fail here, because no message can carry it; return the messages to its errbacks."""
        envelopes, ended = followup.chord_failed(
            self._app, body.call, self._why(error), self._cause(error, body)
        )
        self._keep(ended)
        return envelopes

    def _store(self, join: Finished, body: JoinBody, error: Any) -> list[Envelope]:
        """Store the failure of *body*; return no messages, because even its errbacks cannot be sent."""
        logger.error("the failure of join %s cannot be reported: %s", join.id, self._why(error))
        self._fail_along(body, self._why(error), self._why(error))
        return []

    def _cause(self, error: str | Part | Exception, body: JoinBody) -> Any:
        """Return the stored error with which the calls of *body* fail: for a group, as in Celery, the error
        of the member. None: ChordError."""
        if isinstance(error, Exception) and not body.of_chord:
            return exception_to_dict(error)
        if not isinstance(error, Part) or body.call["subtask_type"] != "group":
            return None
        try:
            meta = self._meta_of(error)
            cause = self._joins.read_chord_part(error) if error.value else meta and meta["result"]
        except DamagedResult:
            return None
        return cause if isinstance(cause, Mapping) and len(repr(cause)) <= MOST_MEMBERS_TEXT else None

    def _why(self, error: str | Part | Exception) -> str:
        if isinstance(error, Part):
            return f"Dependency {error.task_id} {self._end_of(error)}"
        return error if isinstance(error, str) else _text_of(error)

    def _fail_along(self, body: JoinBody, error: str | Part | Exception, why: str) -> None:
        """Store that the calls of *body* fail, as in the rest of a chain: with the error of the failed member
        if there is one."""
        meta = self._meta_of(error) if isinstance(error, Part) else None
        if meta is None:
            stored, traceback = exception_to_dict(ChordError(why)), ""
        else:
            stored, traceback = meta["result"], meta.get("traceback") or ""
        ended = followup.ended(self._app, calls_in([body.call], following=True), stored, traceback)
        self._keep(ended)

    def _keep(self, ended: Sequence[Followed]) -> None:
        """Store the rows in *ended*, or another failure in place of one that the store refuses. Record the
        parts, for which other joins wait."""
        rows = [row for row, _ in ended]
        try:
            self._app.backend.store_rows(rows)
        except Exception as error:
            if is_away(error):
                raise
            for row in rows:
                self._keep_one(row)
        parts = [Part(*part) for _, fields in ended for part in fields]
        if parts:
            self._joins.add(parts)

    def _keep_one(self, row: ResultRow) -> None:
        try:
            self._app.backend.store_rows([row])
        except Exception as error:
            if is_away(error):
                raise
            store_why_not(self._app.backend, row, error, Exception)

    def _error(self, join: Finished, body: JoinBody) -> Part | str | None:
        """Return why the body does not run: a member that has not succeeded, or a text. None if it runs."""
        failed = (part for part in join.parts if part.status != states.SUCCESS)
        if not body.always and (part := next(failed, None)) is not None:
            return part
        return "not all dependencies have ended in time" if join.overdue else None

    def _end_of(self, part: Part) -> str:
        """Describe the end of a member that has not succeeded, in Celery's words."""
        if part.value:
            try:
                stored = {"status": states.FAILURE, "result": self._joins.read_chord_part(part)}
            except DamagedResult as damaged:
                return f"raised {damaged}"
            return f"raised {safe_repr(exception_of(stored))}"
        meta = self._meta_of(part)
        if meta is None:
            return f"ended as {part.status}"
        return f"raised {safe_repr(exception_of(meta))}"

    def _meta_of(self, part: Part) -> Meta | None:
        """Return the stored metadata of a failed member; None if missing or unreadable."""
        meta = self._app.backend.read_many([part.task_id]).get(part.task_id)
        known = isinstance(meta, dict) and meta["status"] in states.PROPAGATE_STATES
        return meta if known else None  # type: ignore[return-value]

    def _values(self, join: Finished, body: JoinBody) -> list[Any]:
        """Return the values of the members in order; None for one that failed or is not needed."""
        if join.parts and join.parts[0].value:
            return self._values_of_chord(join)
        # A body that always runs gets no other information about a failed member.
        looked_at = body.always and body.members is not None
        wanted = [
            (part.status == states.SUCCESS or looked_at) and body.wants(part.number) for part in join.parts
        ]
        ids = [part.task_id for part, is_wanted in zip(join.parts, wanted, strict=True) if is_wanted]
        found: dict[str, Any] = {}
        for some in portions(ids, PORTION):
            found.update(self._app.backend.read_many(some))
        values: list[Any] = []
        for part, is_wanted in zip(join.parts, wanted, strict=True):
            meta = found.get(part.task_id)
            failed = part.status != states.SUCCESS and not _has_succeeded(meta)
            values.append(_value(part, meta) if is_wanted and not failed else None)
        return values

    def _values_of_chord(self, join: Finished) -> list[Any]:
        """Return the values of a chord in Celery's format. If the header contains groups, a Celery client
        counts each of their members and stores the structure of the header, which the values must have."""
        from qworker.results.group_result import GroupResult

        header = GroupResult.restore(join.id, app=self._app)
        values = [self._joins.read_chord_part(part) for part in join.parts]
        if not isinstance(header, GroupResult):
            return values
        known = {part.task_id: value for part, value in zip(join.parts, values, strict=True)}
        return [_shaped(result, known) for result in header.results]


def _shaped(result: Any, known: Mapping[str, Any]) -> Any:
    """Return the value of *result*, a list for a group, from the *known* values by id."""
    if not result._is_single:
        return [_shaped(each, known) for each in result.results]
    if result.id not in known:
        raise ResultNotFound(f"{result.id} is in the saved header, but is not a member that has ended")
    return known[result.id]


def _value(part: Part, meta: Any) -> Any:
    if not _has_succeeded(meta):
        how = "is missing" if meta is None else "cannot be read, or is not a return value"
        raise ResultNotFound(f"the result of member {part.task_id} {how}")
    return meta["result"]


def _has_succeeded(meta: Any) -> bool:
    return isinstance(meta, dict) and meta["status"] == states.SUCCESS


def _error_of(work: Callable[[], None]) -> Exception | None:
    """Return the error that *work* raises: one of a third-party store must not stop the worker."""
    try:
        work()
    except Exception as error:
        logger.debug("traceback of this error", exc_info=True)
        return error
    return None


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, QWorkerError) else safe_repr(error)
