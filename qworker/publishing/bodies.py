"""Bodies: the messages of the call that follows a join.

Comes from:  the worker's joiner, with a join whose members have all ended.
Goes to:     back to it: it publishes them in the step in which the join is done.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qworker.backends.joins import Finished
from qworker.canvas.join_body import JoinBody, read
from qworker.canvas.membership import MOST_MEMBERS_TEXT, first_calls, publication
from qworker.canvas.signatures import is_workflow
from qworker.errors import DamagedResult, InvalidTaskMessage, PublishError
from qworker.message.marks import FAILED, MEMBERS, PUBLICATION, apart, mark
from qworker.publishing.transactions import holding_back
from qworker.transports.lease import Envelope

if TYPE_CHECKING:
    from qworker.app import QWorker


def messages_of(app: QWorker, body: JoinBody, values: Sequence[Any]) -> list[Envelope]:
    """The messages that make the call of *body* with the *values* of the members.

    Raises PublishError and EncodeError for one that cannot be sent, TypeError for one that does not take the
    values, ValueError when they are not as many as it was written for.
    """
    args, kwargs = body.arguments(values)
    with holding_back(app) as held:
        if is_workflow(body.call):
            app.send_workflow(body.call, args, kwargs)
        else:
            body.call.apply_async(args, kwargs)
    return held


def failed_messages_of(app: QWorker, body: JoinBody, why: str, members: Sequence[str]) -> list[Envelope]:
    """The messages by which the call of *body* fails in a worker: it is not run, its errbacks are called, and
    what would have come after it fails as well. members: their ids; () when not all have ended."""
    marks: dict[str, Any] = {FAILED: why, **publication(body.call)}
    calls = list(first_calls(body.call))
    if len(calls) == 1 and 0 < sum(map(len, members)) <= MOST_MEMBERS_TEXT:
        marks[MEMBERS] = {"ids": list(members), "given": not calls[0][0].immutable}
    with holding_back(app) as held:
        for call, rest in calls:
            # By its name: nobody is to ask whether the task takes these arguments.
            options = {**apart(call.options), **marks, "chain": rest or None}
            app.send_task(call.task, call.args, call.kwargs, **options)
    return held


def read_body(app: QWorker, join: Finished) -> JoinBody:
    """The body of *join*, as it was written; where it may be published twice, with the header that numbers
    what is published under this claim (``tasks/copies.py``). Its parent is a member, as in Celery. Raises
    InvalidTaskMessage."""
    try:
        body = read(app.backend.decode_value(join.body, ("join", join.id)), app)
    except (ValueError, TypeError, LookupError, AttributeError, DamagedResult, PublishError) as error:
        raise InvalidTaskMessage(f"the body of join {join.id} is damaged: {error}") from error
    if join.parts and join.parts[-1].task_id:
        body.call.options.setdefault("parent_id", join.parts[-1].task_id)
    if not app.results_with_broker:
        mark(body.call.options, {PUBLICATION: int(join.token, 16) >> 1})
    return body
