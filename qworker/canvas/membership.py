"""Membership: the joins that a call is a member of.

Comes from:  the header ``qworker_joins`` of its message: ``[[join id, number], …]``.
Goes to:     the worker, which records a part in each join when the call has ended for good.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qworker.canvas.signatures import Signature, listed
from qworker.message.marks import JOINS, PUBLICATION, RUN, marks_in
from qworker.transports.lease import Part

MOST_MEMBERS_TEXT = 64 * 1024
"""Maximum characters of the ids in the mark MEMBERS. With more, the mark is left out."""
MOST = 1000
"""Maximum number of joins of one call."""


def parts_of(headers: Mapping[str, Any], status: str) -> tuple[Part, ...]:
    """Return the parts for the call with *headers*, which has ended with the final state *status*.

    A malformed header is ignored: it names no existing join.
    """
    named = headers.get(JOINS)
    if not named or not isinstance(named, list | tuple):
        return ()
    task_id = headers.get("id")
    return tuple(
        Part(entry[0], entry[1], task_id, status)
        for entry in named[:MOST]
        if isinstance(task_id, str)
        and isinstance(entry, list | tuple)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and type(entry[1]) is int
        and 0 <= entry[1] < 2**31
    )


def is_ignored(headers: Mapping[str, Any], by_task: bool | None) -> bool:
    """Return whether the result of the call with *headers* is discarded.

    by_task: the option of its task, for calls that do not set it. It does not apply to members of a join:
    the client has checked that their results may be kept.
    """
    ignored = headers.get("ignore_result")
    return bool(by_task) and JOINS not in headers if ignored is None else bool(ignored)


def publication(call: Signature) -> dict[str, Any]:
    """Return the marks of *call* that distinguish its messages from those of another publication or run."""
    marks = marks_in(call.options.get("headers") or {})
    return {name: marks[name] for name in (PUBLICATION, RUN) if name in marks}


def calls_in(calls: Iterable[Any], following: bool = False) -> Iterator[Signature]:
    """Yield all task calls in *calls*, signatures or nested workflows in message format. Anything else is
    skipped. following: include the rest of the chain of each."""
    waiting = list(calls)
    while waiting:
        call = waiting.pop()
        if not isinstance(call, Mapping) or not isinstance(call.get("task"), str):
            continue
        members = _members(call)
        options = call.get("options")
        if following and isinstance(options, Mapping) and isinstance(options.get("chain"), list | tuple):
            waiting.extend(options["chain"])
        if members is None:
            yield _signature_of(call)
        else:
            waiting.extend(members)


def _signature_of(call: Mapping[str, Any]) -> Signature:
    """Return the signature in message format *call*; with only its task and id if the rest is invalid, as
    another program may have written it: it can fail, and does not hide other calls."""
    try:
        return Signature(call)
    except (TypeError, ValueError):
        options = call.get("options")
        id = options.get("task_id") if isinstance(options, Mapping) else None
        return Signature({"task": call["task"], "options": {"task_id": id}})


def first_calls(call: Any) -> Iterator[tuple[Signature, list[Any]]]:
    """Yield the calls in *call*, a signature or workflow in message format, that fail when it cannot begin,
    each with the rest of its chain, last call first. The body of a chord is one of them, because its header
    fails. As in Celery, each has the errbacks of the enclosing workflows, except calls in a header."""
    waiting: list[tuple[Any, list[Any], list[Any]]] = [(call, [], [])]
    while waiting:
        each, rest, around = waiting.pop()
        if not isinstance(each, Mapping) or not isinstance(each.get("task"), str):
            continue
        options = each.get("options")
        after = [*(listed(options.get("chain")) if isinstance(options, Mapping) else ()), *rest]
        own = listed(options.get("link_error")) if isinstance(options, Mapping) else []
        errbacks = [*own, *(errback for errback in around if errback not in own)]
        members = _members(each)
        if members is None:
            made = _signature_of(each)
            if around:
                made["options"]["link_error"] = errbacks
            yield made, after
        elif each["subtask_type"] == "chain":
            waiting += [(first, [*after, *reversed(members[1:])], errbacks) for first in members[:1]]
        else:
            *others, last = members or [None]
            waiting.append((last, after, errbacks))
            waiting += ((other, [], [] if each["subtask_type"] == "chord" else errbacks) for other in others)


def errbacks_of(call: Any) -> list[Any]:
    """Return the errbacks to call when *call*, a signature or workflow in message format, cannot begin."""
    return [
        errback
        for first, _ in first_calls(call)
        if isinstance(first.options, Mapping)
        for errback in listed(first.options.get("link_error"))
    ]


def _members(call: Mapping[str, Any]) -> list[Any] | None:
    """Return the members of a workflow; None for the call of a task."""
    given = call.get("kwargs")
    kwargs = given if isinstance(given, Mapping) else {}
    if call.get("subtask_type") in ("chain", "group"):
        tasks = kwargs.get("tasks")
        return list(tasks) if isinstance(tasks, list | tuple) else []
    if call.get("subtask_type") == "chord":
        header = kwargs.get("header")
        return [*(header if isinstance(header, list | tuple) else [header]), kwargs.get("body")]
    if call.get("subtask_type") == "graph":
        nodes = kwargs.get("nodes")
        return [*(nodes.values() if isinstance(nodes, Mapping) else ()), kwargs.get("gathered")]
    return None
