"""Bodies: the call that follows a join, written and read.

Comes from:  ``workflows``, which opens joins; the worker's joiner, with one whose members have all ended.
Goes to:     the result store; ``body_messages``.
Thread:      any.

With a security_key the body is signed when its join is opened, for whoever sends it signs it as his own; and
with it the ids of the members. Their parts are not signed: they only count when they are of these ids, whose
results are signed. A member that is added later has its id signed beside the results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qworker.backends.joins import Finished
from qworker.canvas.join_body import JoinBody, read
from qworker.errors import DamagedResult, InvalidTaskMessage, PublishError, SecurityError
from qworker.message.marks import PUBLICATION, RUN, mark, run_in

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.canvas.plan import PlannedJoin


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, DamagedResult, PublishError)
"""What reading a body raises that we have not written."""


def written(app: QWorker, join: PlannedJoin, tentative: bool = False) -> bytes:
    """The body of *join* as it is kept. tentative: as JoinBody has it."""
    body = join.body._replace(tentative=tentative)
    if app.signer is not None:
        signature = app.signer.signature(_text_of(join.members), "members", join.id)
        body = body._replace(members=f"{len(join.members)}:{signature}")
    return app.backend.encode_value(body.fields(), about=("join", join.id))


def doubt(app: QWorker, join: Finished, body: JoinBody) -> str | None:
    """Why the parts of *join* are not believed; None: they are those of its members, or nothing says who
    these are, as without a security_key."""
    if app.signer is None or body.members is None:
        return None
    size, _, signature = body.members.partition(":")
    named, added = join.parts[: int(size)], join.parts[int(size) :]
    if len(named) < int(size):
        return "not all dependencies have ended in time"
    try:
        app.signer.check(_text_of([part.task_id for part in named]), signature.encode(), "members", join.id)
        for part in added:
            if app.backend.get_group(_added_key(join.id, part.number)) != {"task_id": part.task_id}:
                raise SecurityError(f"nobody has added the member {part.number}")
        if [part.number for part in join.parts] != list(range(len(join.parts))):
            raise SecurityError("they are not in order")
    except (SecurityError, DamagedResult) as error:
        return f"the parts in the result store are not those of the members: {error}"
    return None


def _text_of(members: Iterable[str]) -> bytes:
    return "\0".join(members).encode("utf-8", "surrogatepass")


def note_added(app: QWorker, join: str, number: int, task_id: str, kept: float) -> None:
    """Write down that the call *task_id* was added to *join* as its member *number*, for *kept* seconds
    longer than results are kept. Raises BackendError."""
    if app.signer is not None:
        app.backend.save_group(_added_key(join, number), {"task_id": task_id}, kept)


def forget_added(app: QWorker, join: Finished, body: JoinBody) -> None:
    """Delete what note_added() has written of *join*, which is done. Raises BackendError."""
    if app.signer is not None and body.members is not None:
        for part in join.parts[int(body.members.partition(":")[0]) :]:
            app.backend.delete_group(_added_key(join.id, part.number))


def keep_rest(app: QWorker, join: str, body: JoinBody) -> None:
    """Keep *body*, the next part of a long chain that has failed before, for as long as failed tasks are: one
    of them may be sent again. Raises BackendError."""
    if app.broker.failed is not None:
        longer = app.conf.failed_task_expires - (app.backend.expires or 0.0)
        app.backend.save_group(_rest_key(join), body.fields(), max(0.0, longer))


def kept_rest(app: QWorker, join: str) -> JoinBody | None:
    """What keep_rest() has kept for *join*; None for nothing, and for what cannot be read."""
    try:
        found = app.backend.get_group(_rest_key(join))
        return None if found is None else read(found, app)
    except UNREADABLE:
        return None


def _rest_key(join: str) -> str:
    return f"qworker-rest-{join}"


def _added_key(join: str, number: int) -> str:
    return f"qworker-added-{number}-{join}"


def read_body(app: QWorker, join: Finished) -> tuple[JoinBody, str | None]:
    """The body of *join* as it was written, and what doubt() says.

    Where it may be published twice, it has the header that numbers what is published under this claim
    (``tasks/copies.py``). Its parent is a member, as in Celery. Raises InvalidTaskMessage.
    """
    try:
        body = read(app.backend.decode_value(join.body, ("join", join.id)), app)
    except UNREADABLE as error:
        raise InvalidTaskMessage(f"the body of join {join.id} is damaged: {error}") from error
    doubts = doubt(app, join, body)
    if doubts is None and join.parts and join.parts[-1].task_id:
        body.call.options.setdefault("parent_id", join.parts[-1].task_id)
    if join.run and not run_in(body.call.options.get("headers")):
        mark(body.call.options, {RUN: join.run})
    if not app.results_with_broker:
        mark(body.call.options, {PUBLICATION: int(join.token, 16) >> 1})
    return body, doubts
