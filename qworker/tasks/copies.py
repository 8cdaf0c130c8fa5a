"""Copies: detects several messages of one body, of which only one must run.

Comes from:  execution, before each run; ``publishing/bodies.py`` writes the header.
Goes to:     the result store, which records the first message.
Thread:      the one that runs the task.

If results and messages are in different stores, publishing a body and recording that are two steps. If a
joiner dies in between, another one publishes the body again, with the same id. Each publication has its own
number, so that a redelivered message runs again as usual, and a copy does not.

A task that replaces itself passes its id on, for example to the body of a chord, which has its own
publication number. That is not a copy: calls with one id are distinguished by the number of replacements, and
those of a workflow that is called again with the same ids by their run.
"""

from __future__ import annotations

from qworker.backends.joins import DONE_SECONDS, DONE_SECONDS_FOR_EVER
from qworker.contracts import App, Task
from qworker.errors import NotSupported
from qworker.interrupts import reraise_interrupt
from qworker.message.context import Context, message_headers
from qworker.message.marks import PUBLICATION, run_in
from qworker.tasks.outcome import COPY, REQUEUED, Outcome
from qworker.transports.join_parts import may_be_id

LONGEST_ID = 200
"""Maximum characters of an id that is looked up; a body with a longer id may run twice."""


def refused(app: App, task: Task, context: Context) -> Outcome | None:
    """Return the outcome of a call if another message of it runs or ran; None if it should run.

    If the result store is unavailable, the outcome puts the message back.
    """
    number = message_headers(context).get(PUBLICATION)
    task_id = context.id
    if number is None or task_id is None or len(task_id) > LONGEST_ID or not may_be_id(task_id):
        return None
    if type(number) is not int or not 0 <= number < 2**63:
        return None
    nesting, run, backend = context.replaced_task_nesting, run_in(message_headers(context)), app.backend
    body = f"{task_id}{f' run {run}' if run else ''}{f' nested {nesting}' if nesting else ''}"
    lasting = DONE_SECONDS_FOR_EVER if backend.expires is None else max(backend.expires, DONE_SECONDS)
    try:
        first = backend.joins.hold(body, number, lasting)
    except NotSupported:
        return None
    except Exception as error:  # noqa: BLE001 - BackendError, or any of a store that others have written
        reraise_interrupt(error)
        if not task.acks_late:  # the message is acked, and cannot go back
            return None
        return Outcome(REQUEUED, 0.0, f"cannot determine whether it is a copy: {error}")
    if first == number:
        return None
    return Outcome(COPY, 0.0, "it was published twice, because its joiner died; this is the second message")
