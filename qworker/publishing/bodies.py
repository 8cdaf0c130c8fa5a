"""Bodies: writes and reads the call that follows a join.

Comes from:  ``workflows``, which opens joins; the worker's joiner, with a join whose members have all ended.
Goes to:     the result store; ``body_messages``.
Thread:      any.

With a security_key, the body and the ids of the members are signed when the join is opened, because the
joiner signs the body's message with its own key. Parts are not signed, and count only if they belong to these
ids, whose results are signed. The id of a member added later is signed and stored with the results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qworker.backends.joins import Finished
from qworker.canvas.join_body import JoinBody, check_message, read, storable
from qworker.contracts import App
from qworker.errors import DamagedResult, InvalidTaskMessage, PublishError, SecurityError
from qworker.message.marks import PUBLICATION, RUN, mark, run_in

if TYPE_CHECKING:
    from qworker.canvas.plan import PlannedJoin


UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    DamagedResult,
    InvalidTaskMessage,
    PublishError,
    SecurityError,
)
"""Errors from reading a body that qworker did not write."""


def written(app: App, join: PlannedJoin, tentative: bool = False) -> bytes:
    """Return the stored form of the body of *join*. tentative: as in JoinBody."""
    body = join.body._replace(tentative=tentative)
    if app.signer is not None:
        signature = app.signer.signature(_text_of(join.members), "members", join.id)
        body = body._replace(members=f"{len(join.members)}:{signature}")
    check_message(body, app)
    fields = storable(body.fields(), app)
    return app.backend.codec.encode_value(
        fields, ("join", join.id), {f"the call of {body.call.task}": fields}
    )


def doubt(app: App, join: Finished, body: JoinBody) -> str | None:
    """Return why the parts of *join* are not trusted; None if they belong to its members, or the members are
    unknown, as without a security_key."""
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
                raise SecurityError(f"there is no record that the member {part.number} was added")
        if [part.number for part in join.parts] != list(range(len(join.parts))):
            raise SecurityError("members are missing or in the wrong order")
    except (SecurityError, DamagedResult) as error:
        return f"the parts in the result store do not match the members: {error}"
    return None


def _text_of(members: Iterable[str]) -> bytes:
    return "\0".join(members).encode("utf-8", "surrogatepass")


def note_added(app: App, join: str, number: int, task_id: str, kept: float) -> None:
    """Record that the call *task_id* was added to *join* as member *number*. kept: seconds for which the
    record is kept longer than results. Raises BackendError."""
    if app.signer is not None:
        app.backend.save_group(_added_key(join, number), {"task_id": task_id}, kept)


def forget_added(app: App, join: Finished, body: JoinBody) -> None:
    """Delete the records of note_added() for the finished *join*. Raises BackendError."""
    if app.signer is not None and body.members is not None:
        for part in join.parts[int(body.members.partition(":")[0]) :]:
            app.backend.delete_group(_added_key(join.id, part.number))


def keep_rest(app: App, join: str, body: JoinBody) -> None:
    """Keep *body*, the next segment of a failed long chain, as long as failed tasks, because the failed task
    may be sent again. Raises BackendError."""
    if "failed" in app.broker.letters:
        longer = app.conf.failed_task_expires - (app.backend.expires or 0.0)
        app.backend.save_group(_rest_key(join), storable(body.fields(), app), max(0.0, longer))


def kept_rest(app: App, join: str) -> JoinBody | None:
    """Return the body kept by keep_rest() for *join*; None if there is none or it is unreadable."""
    try:
        found = app.backend.get_group(_rest_key(join))
        return None if found is None else read(found, app)
    except UNREADABLE:
        return None


def _rest_key(join: str) -> str:
    return f"qworker-rest-{join}"


def _added_key(join: str, number: int) -> str:
    return f"qworker-added-{number}-{join}"


def read_body(app: App, join: Finished) -> tuple[JoinBody, str | None]:
    """Return the body of *join* and the result of doubt().

    A body that may be published twice gets a header with a number for this attempt (``tasks/copies.py``). Its
    parent is a member, as in Celery. Raises InvalidTaskMessage.
    """
    try:
        body = read(app.backend.codec.decode_value(join.body, ("join", join.id)), app)
    except UNREADABLE as error:
        raise InvalidTaskMessage(f"the body of join {join.id} is damaged: {error}") from error
    doubts = doubt(app, join, body)
    if doubts is None and join.parts and join.parts[-1].task_id:
        body.call.options.setdefault("parent_id", join.parts[-1].task_id)
    if join.run and not run_in(body.call.options.get("headers")):
        mark(body.call.options, {RUN: join.run})
    if not app.results_with_broker:
        mark(body.call.options, {PUBLICATION: int(join.token, 16) >> 1 ^ join.attempt})
    return body, doubts
