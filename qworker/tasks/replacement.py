"""Replacement: the calls that a running task sends instead of itself, or adds to its chord.

Comes from:  ``task.replace()``, ``task.add_to_chord()``.
Goes to:     publishing; an eager run makes the calls itself.
Thread:      the one that runs the task.

All new ids derive from the id of the run, so a run that is delivered again sends the same calls, and joins
count each of them once.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, NoReturn

from qworker.backends.joins import Joins
from qworker.canvas.chains import chain
from qworker.canvas.checking import check
from qworker.canvas.groups import with_callback
from qworker.canvas.mapping import chunks
from qworker.canvas.membership import parts_of
from qworker.canvas.plan import last_call
from qworker.canvas.signatures import Signature, listed, maybe_signature
from qworker.canvas.stamping import hand_on
from qworker.contracts import Task
from qworker.errors import BackendError, ConfigurationError, NotInChord, QWorkerError, Replaced
from qworker.interrupts import conclude, deferred
from qworker.message.context import message_headers, pop, push
from qworker.message.exceptions import exception_to_dict
from qworker.message.marks import JOINS, KEPT, RUN, kept_in, mark, run_in
from qworker.naming import ids_of, task_id
from qworker.process.crash_points import crash_point
from qworker.publishing.bodies import note_added
from qworker.publishing.workflows import check_later, planned, refuse_ignored, start
from qworker.states import FAILURE
from qworker.tasks import followup
from qworker.tasks.unsent import put_back_if_unsent

if TYPE_CHECKING:
    from qworker.message.context import Context


def replacement(task: Task, sig: Any) -> Signature:
    """Return the workflow that replaces the run of *task*. See ``Task.replace``."""
    request, app = task.request, task.app
    check(sig)
    work = maybe_signature(sig, app, clone=True)
    if isinstance(work, chain) and not work.tasks:
        raise ConfigurationError(
            f"Cannot replace with an empty chain: give {task.name}.replace() a step to run"
        )
    if "chord" in work.options:
        raise ConfigurationError("the replacement of a task must not have the option chord: leave it out")
    if isinstance(work, chunks):
        work = work.group().clone(**work["options"])
    nesting = request.replaced_task_nesting + 1
    # A task's replacement must end in one call, so a group becomes a chord whose body returns the list.
    step: Any = work.frozen(request.id, True, _ids_of(request, nesting)).step
    for callback in listed(request.callbacks):
        with_callback(step, maybe_signature(callback, app))
    for errback in listed(request.errbacks):
        step.link_error(maybe_signature(errback, app))
    if request.stamps:
        hand_on(step, request.stamped_headers or list(request.stamps), request.stamps)
    last = _placed(step, request, nesting)
    if request.chord or JOINS in (last["options"].get("headers") or {}):
        refuse_ignored(app, [last])
    rest = [Signature.from_dict(each, app) for each in reversed(listed(request.chain))]
    if not rest:
        return step  # type: ignore[no-any-return]
    return chain.of_steps([step, *(each.set(replaced_task_nesting=nesting) for each in rest)], app)  # type: ignore[no-any-return]


def _ids_of(request: Context, what: object) -> Callable[[], str]:
    """Return a generator of the ids of new calls, the same at every delivery of *request*. what: their
    purpose."""
    if request.id is None:
        return task_id
    return ids_of(f"{request.id} {request.retries} {what}")


def _placed(step: Any, request: Context, nesting: int) -> Signature:
    """Give the last call of *step* the id of the task and its place in the group; return the call."""
    for each in [step, *(step.tasks if isinstance(step, chain) else ())]:
        each["options"]["replaced_task_nesting"] = nesting
    last = last_call(step)
    assert last is not None
    taken = {
        "task_id": request.id,
        "group_id": request.group,
        "group_index": request.group_index,
        "chord": request.chord,
        "replaced_task_nesting": nesting,
    }
    last["options"].update({name: value for name, value in taken.items() if value is not None})
    headers = message_headers(request)
    mark(last["options"], {name: headers[name] for name in (JOINS, KEPT) if headers.get(name)})
    return last


def replace(task: Task, sig: Signature) -> NoReturn:
    """Send *sig*, made by replacement(), and raise Replaced. See ``Task.on_replace``."""
    request = task.request
    if not request.is_eager:
        # After it is sent, a time limit must not turn this run into a failure.
        with put_back_if_unsent(task, request):
            conclude(_publish, task, request, sig)
    raise Replaced(sig)


def _publish(task: Task, request: Context, sig: Signature) -> None:
    crash_point("replacement-made")
    made = planned(task.app, sig, run=run_in(message_headers(request)))
    check_later(task.app, made)
    for call in made.calls:
        call["options"].setdefault("root_id", request.root_id)
        if request.reply_to is not None:
            call["options"].setdefault("reply_to", request.reply_to)
    caller = copy(request)  # the parent of the calls is that of this task
    caller.id = request.parent_id  # type: ignore[assignment]
    token = push(caller, task)
    try:
        start(task.app, made)
    finally:
        pop(token)
    # A run that dies here is delivered again, and sends the same calls.
    crash_point("replacement-sent")


def add_to_chord(task: Task, sig: Any, lazy: bool) -> Any:
    """Make *sig* a member of the chord of the running *task*. See ``Task.add_to_chord``."""
    request, app = task.request, task.app
    check(sig)
    shared = not request.chord
    # The join of the chord has the name of the group.
    run, group = run_in(message_headers(request)), str(request.group)
    join = f"{group}.{run}" if run and shared else group
    named = [part.join for part in parts_of(message_headers(request), FAILURE)]
    if request.is_eager or (shared and join not in named):
        raise NotInChord(
            f"{task.name}[{request.id}] is not a member of a chord: add_to_chord() is for tasks in the "
            "header of one"
        )
    joins: Joins = app.backend.joins
    request.added += 1
    ids = _ids_of(request, f"added {request.added}")
    work = maybe_signature(sig, app, clone=True).frozen(None, True, ids).step
    last = last_call(work)
    assert last is not None
    refuse_ignored(app, [last])
    return deferred(_add, task, work, last, joins, join, lazy)


def _grown(joins: Joins, join: str, task_id: str) -> int | None:
    """Call Joins.grow(), once more if it fails: if only its answer was lost, repeating changes nothing."""
    try:
        return joins.grow(join, task_id)
    except BackendError:
        return joins.grow(join, task_id)


def _add(task: Task, work: Any, last: Signature, joins: Joins, join: str, lazy: bool) -> Any:
    """Count *work*, whose last call is *last*, as a member of *join*, and send it unless *lazy*."""
    request, app = task.request, task.app
    headers, group, shared = message_headers(request), str(request.group), not request.chord
    run, kept = run_in(headers), kept_in(headers)
    with put_back_if_unsent(task, request):  # or the chord would wait for a call that is never sent
        number = _grown(joins, join, last["options"]["task_id"])
    # A run that dies here is delivered again, and adds the same calls.
    crash_point("chord-grown")
    if number is None:
        raise NotInChord(
            f"the chord of {task.name}[{request.id}] already has all its members, or no longer exists"
        )
    last["options"].update(group_id=group, group_index=number)
    if shared:
        joined = (last["options"].get("headers") or {}).get(JOINS) or ()
        mark(last["options"], {JOINS: [*joined, [join, number]]})
        if kept:
            mark(last["options"], {KEPT: kept})
    else:
        last["options"]["chord"] = request.chord
    mark(work["options"], {RUN: run})
    try:
        if shared:
            note_added(app, join, number, last["options"]["task_id"], kept)
        return work if lazy else work.apply_async()
    except QWorkerError as error:  # the chord counts the call, so end it here
        request.unsent = (*request.unsent, *followup.ended(app, [last], exception_to_dict(error), ""))
        raise
