"""Marks: headers of ours, by which a message says what it is in a workflow.

Comes from:  the plan of a workflow, replacements, the joiner and beat, which set them.
Goes to:     the message. The worker reads them there: ``canvas/membership.py``, ``tasks/copies.py``.
Thread:      any; pure.

In the dict of a signature, as messages and joins carry it, marks stand among the ``headers`` of its options.
There they outlast the headers that are set later (``over``). When the call is made, each becomes an option of
its own (``apart``), and goes into the message after all code of the user's has seen it: an ``apply_async`` of
a base class, middleware and signals may say of headers what they like. A task does not see them in
``request.headers``, so it hands none of them on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

JOINS = "qworker_joins"
"""Of which joins the call is a part: ``[[join id, number], …]``."""
FAILED = "qworker_failed"
"""Why the call is not to run but to fail: a member of the join before it has failed. Of an errback it is a
mapping: the call that has failed so, and why."""
CAUSE = "qworker_cause"
"""What a call of a group has besides that is the body of a chord, and is to fail: the error of the member, as
it is stored. It fails with that, as in Celery; every other body, and one that is run by an older worker, with
ChordError."""
MEMBERS = "qworker_members"
"""What a body that is to fail has besides: ``{"ids": [of the members, in their order], "given": whether their
values are its argument}``, so that it can run after all (``control/failed.py``)."""
PUBLICATION = "qworker_publication"
"""Tells apart the messages of one body: its joiner may have died, and another published it again."""
RUN = "qworker_run"
"""Of a call in which ids were settled before it was made, its own or those of what follows it, and of all
that comes of it: a text that is another each time. It is in the names of joins, so that each time has joins
of its own. Whoever publishes calls that come of another, as workers and beat do, says of which run they are:
"" for none."""
KEPT = "qworker_kept"
"""Of a call for whose value a join waits, and beside it for calls that are held back: how many seconds its
result is kept longer than others, as the join is."""
MARKS = frozenset([RUN, KEPT, JOINS, FAILED, CAUSE, MEMBERS, PUBLICATION])


def marks_in(names: Mapping[str, Any]) -> dict[str, Any]:
    """The marks among *names*, which are headers, or the options of a call that is being made."""
    return {} if MARKS.isdisjoint(names) else {name: names[name] for name in MARKS & names.keys()}


def unmarked(headers: Any) -> Any:
    """*headers* without marks. What is no mapping is returned as it is."""
    if not isinstance(headers, Mapping) or MARKS.isdisjoint(headers):
        return headers
    return {name: value for name, value in headers.items() if name not in MARKS}


def run_in(headers: Any) -> str:
    """The mark RUN among *headers*; "" for none, and for what is none."""
    run = headers.get(RUN) if isinstance(headers, Mapping) else None
    return run if isinstance(run, str) and run.isalnum() and len(run) <= 32 else ""


def kept_in(headers: Any) -> int:
    """The mark KEPT among *headers*; 0 where it is missing or invalid."""
    kept = headers.get(KEPT) if isinstance(headers, Mapping) else None
    return kept if type(kept) is int and 0 < kept < 2**40 else 0


def new_run() -> str:
    """A mark RUN that no other call has."""
    return os.urandom(6).hex()


def names_ids(options: Mapping[str, Any]) -> bool:
    """Whether an id is settled among the *options* of a call: its own, or in what follows it."""
    if options.get("task_id") is not None:
        return True
    waiting: list[Any] = [options[name] for name in _FOLLOWING if options.get(name) is not None]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, Mapping):
            given = each.get("options")
            if isinstance(given, Mapping):
                if given.get("task_id") is not None:
                    return True
                waiting += (given[name] for name in _FOLLOWING if given.get(name) is not None)
            if each.get("subtask_type") is not None:  # its members are among its arguments
                waiting += (each.get("args"), each.get("kwargs"))
            elif "task" not in each:
                waiting += each.values()
    return False


_FOLLOWING = ("link", "link_error", "chain", "chord")


def apart(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The *options* of a signature as those of the call that it makes."""
    headers = options.get("headers")
    if not isinstance(headers, Mapping) or MARKS.isdisjoint(headers):
        return options
    made = {**options, "headers": unmarked(headers), **marks_in(headers)}
    if not made["headers"]:
        del made["headers"]
    return made


def over(given: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options *given* to a signature as they may replace its *own*: its marks stay."""
    if "headers" not in given or not isinstance(mine := own.get("headers"), Mapping):
        return given
    headers = given["headers"] or {}
    if MARKS.isdisjoint(mine) or not isinstance(headers, Mapping):
        return given
    return {**given, "headers": {**headers, **marks_in(mine)}}


def mark(options: dict[str, Any], marks: Mapping[str, Any]) -> None:
    """Put *marks* into the *options* of a signature."""
    if marks:
        options["headers"] = {**(options.get("headers") or {}), **marks}
