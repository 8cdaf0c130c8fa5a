"""The messages of the body of a join: those that make its call, or by which it fails.

Comes from:  the worker's joiner, with a join whose members have all ended.
Goes to:     back to it: it publishes them in the step in which the join is done.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qworker.canvas.join_body import JoinBody
from qworker.canvas.membership import MOST_MEMBERS_TEXT, first_calls, publication
from qworker.canvas.signatures import is_workflow
from qworker.message.marks import CAUSE, FAILED, MEMBERS, RUN, apart, mark, run_in
from qworker.publishing.call import tidied
from qworker.publishing.transactions import holding_back
from qworker.publishing.workflows import planned, start
from qworker.transports.lease import Envelope

if TYPE_CHECKING:
    from qworker.app import QWorker


def messages_of(app: QWorker, body: JoinBody, values: Sequence[Any]) -> list[Envelope]:
    """The messages that make the call of *body* with the *values* of the members.

    Raises PublishError and EncodeError for one that cannot be sent, TypeError for one that does not take the
    values, ValueError when they are not as many as it was written for.
    """
    args, kwargs = body.arguments(values)
    run = run_in(body.call.options.get("headers"))
    with holding_back(app) as held:
        if is_workflow(body.call):
            made = planned(app, body.call, args, kwargs, run=run)
            for each in made.calls:
                each["options"] = tidied(app, each.options)
            start(app, made)
        else:
            call = body.call.clone()
            call["options"] = tidied(app, call.options)
            mark(call["options"], {RUN: run})
            call.apply_async(args, kwargs)
    return held


def failed_messages_of(
    app: QWorker, body: JoinBody, why: str, members: Sequence[str], cause: Any = None
) -> list[Envelope]:
    """The messages by which the call of *body* fails in a worker: it is not run, its errbacks are called, and
    what would have come after it fails as well.

    - members: their ids; () when not all have ended.
    - cause: the error of one, as it is stored, if the body fails with that.
    """
    marks: dict[str, Any] = {RUN: "", FAILED: why, **publication(body.call)}
    if cause is not None:
        marks[CAUSE] = cause
    calls = list(first_calls(body.call))
    if len(calls) == 1 and 0 < sum(map(len, members)) <= MOST_MEMBERS_TEXT:
        marks[MEMBERS] = {"ids": list(members), "given": not calls[0][0].immutable}
    with holding_back(app) as held:
        for call, rest in calls:
            # By its name: nobody is to ask whether the task takes these arguments.
            # And at once, whatever its countdown: it does not run.
            options = {**apart(call.options), **marks, "countdown": None, "eta": None, "chain": rest or None}
            app.send_task(call.task, call.args, call.kwargs, **options)
    return held
