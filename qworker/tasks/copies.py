"""Copies: the messages of one body, of which one is to run.

Comes from:  execution, before each run; the header was written by ``publishing/bodies.py``.
Goes to:     the result store, where the first of them is written down.
Thread:      whichever runs the task.

Where results are kept apart from messages, no step both publishes a body and writes down that it was
published. A joiner that dies in between is followed by one that publishes it once more, with the same id.
Each publication has a number of its own, so that a message which is delivered again runs again, as any, and a
copy of it does not.

A task that replaces itself hands its id on, as to the body of a chord, which is published with a number of
its own. That is no copy: calls of one id are told apart by how many they have taken the place of; and those
of a workflow that is called again with the same ids, by their run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qworker.backends.joins import DONE_SECONDS, DONE_SECONDS_FOR_EVER
from qworker.context import Context, message_headers
from qworker.errors import BackendError, NotSupported
from qworker.message.marks import PUBLICATION, run_in
from qworker.tasks.outcome import COPY, REQUEUED, Outcome
from qworker.transports.join_parts import may_be_id

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.tasks.task import Task

LONGEST_ID = 200
"""Characters of the ids that are looked up; a body with a longer one may run twice."""


def refused(app: QWorker, task: Task[..., Any], context: Context) -> Outcome | None:
    """How a call ends of which another message runs, or ran; None when it is to run.

    While the result store does not answer, the message goes back.
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
    except BackendError as error:
        if not task.acks_late:  # its message is gone
            return None
        return Outcome(REQUEUED, 0.0, f"whether it is a copy cannot be told: {error}")
    if first == number:
        return None
    return Outcome(COPY, 0.0, "its joiner died while it was published, and this is the second message of it")
