"""Body messages: the messages that run the body of a join, or make it fail.

Comes from:  the worker's joiner, with a join whose members have all ended.
Goes to:     the joiner, which publishes them in the step that finishes the join.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qworker.canvas.join_body import ONE, JoinBody
from qworker.canvas.membership import MOST_MEMBERS_TEXT, first_calls, publication
from qworker.canvas.signatures import is_workflow
from qworker.contracts import App
from qworker.message.marks import CAUSE, FAILED, MEMBERS, RUN, mark, options_of_call, run_in
from qworker.publishing.call import tidied
from qworker.publishing.transactions import holding_back
from qworker.publishing.workflows import planned, start
from qworker.transports.lease import Envelope


def messages_of(app: App, body: JoinBody, values: Sequence[Any]) -> list[Envelope]:
    """Return the messages that call *body* with the *values* of the members.

    Raises PublishError and EncodeError for a message that cannot be sent, TypeError for a task that does not
    accept the values, ValueError for a wrong number of values.
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
    app: App, body: JoinBody, why: str, members: Sequence[str], cause: Any = None
) -> list[Envelope]:
    """Return the messages that make *body* fail in a worker, which then calls its errbacks and fails the
    calls after it.

    - members: the ids of the members, whose values the call gets if it is sent again; () if not all have
      ended.
    - cause: the stored error of a member, if the body fails with that error.
    """
    marks: dict[str, Any] = {RUN: "", FAILED: why, **publication(body.call)}
    if cause is not None:
        marks[CAUSE] = cause
    calls = list(first_calls(body.call))
    text = sum(map(len, (*members, *filter(None, body.names or ()))))
    if len(calls) == 1 and members and text <= MOST_MEMBERS_TEXT:
        marks[MEMBERS] = {"ids": list(members), "given": not calls[0][0].immutable}
        if not body.of_chord:
            marks[MEMBERS] |= {"values": ONE if body.one else list(body.names or ()), "always": body.always}
    with holding_back(app) as held:
        for call, rest in calls:
            # By name, so that the arguments are not checked; without a countdown, because it does not run.
            options = {
                **options_of_call(call.options),
                **marks,
                "countdown": None,
                "eta": None,
                "chain": rest or None,
            }
            app.send_task(call.task, call.args, call.kwargs, **options)
    return held
