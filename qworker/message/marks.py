"""Marks: internal headers that describe the role of a message in a workflow.

Comes from:  workflow plans, replacements, the joiner and beat, which set them.
Goes to:     the message. Workers read them: ``canvas/membership.py``, ``tasks/copies.py``.
Thread:      any; pure.

In the dict of a signature, marks are in the ``headers`` of its options; headers set later do not remove them
(``over``). When the call is made, each mark becomes a separate option (``options_of_call``), added to the
message after all user code, such as middleware and signal receivers, has changed the headers. Marks are not
in ``request.headers``, so tasks do not pass them on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

JOINS = "qworker_joins"
"""The joins that the call is a member of: ``[[join id, number], …]``."""
FAILED = "qworker_failed"
"""Why the call must fail instead of run, when a member of its join has failed. For an errback, a mapping of
the call that failed, with the reason."""
CAUSE = "qworker_cause"
"""For the body of a chord that must fail: the stored error of the member, with which it fails, as in Celery.
Bodies without it, and older workers, fail with ChordError."""
MEMBERS = "qworker_members"
"""For a body that must fail: ``{"ids": [of the members, in order], "given": whether their values are its
argument}``, so that it can be run later (``control/failed.py``)."""
PUBLICATION = "qworker_publication"
"""The number of one publication of a body, because another joiner may publish it again if one dies."""
RUN = "qworker_run"
"""For a call with predefined ids (its own or those of following calls), and all calls that result from it: a
random text for each run. It is part of the names of joins, so that each run has its own joins. Code that
publishes such calls, such as workers and beat, passes the run on; "" if there is none."""
KEPT = "qworker_kept"
"""For a call whose result a join waits for: the seconds for which its result, and the join, are kept longer
than usual."""
MARKS = frozenset([RUN, KEPT, JOINS, FAILED, CAUSE, MEMBERS, PUBLICATION])


def marks_in(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the marks in *names*, a mapping of headers or call options."""
    return {} if MARKS.isdisjoint(names) else {name: names[name] for name in MARKS & names.keys()}


def unmarked(headers: Any) -> Any:
    """Return *headers* without marks; anything but a mapping is returned unchanged."""
    if not isinstance(headers, Mapping) or MARKS.isdisjoint(headers):
        return headers
    return {name: value for name, value in headers.items() if name not in MARKS}


def run_in(headers: Any) -> str:
    """Return the mark RUN in *headers*; "" if it is missing or invalid."""
    run = headers.get(RUN) if isinstance(headers, Mapping) else None
    return run if isinstance(run, str) and run.isalnum() and len(run) <= 32 else ""


def kept_in(headers: Any) -> int:
    """Return the mark KEPT in *headers*; 0 if it is missing or invalid."""
    kept = headers.get(KEPT) if isinstance(headers, Mapping) else None
    return kept if type(kept) is int and 0 < kept < 2**40 else 0


def new_run() -> str:
    """Return a new, unique mark RUN."""
    return os.urandom(6).hex()


def names_ids(options: Mapping[str, Any]) -> bool:
    """Return whether the *options* of a call set an id, its own or that of a following call."""
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
            if each.get("subtask_type") is not None:  # its members are in its arguments
                waiting += (each.get("args"), each.get("kwargs"))
            elif "task" not in each:
                waiting += each.values()
    return False


_FOLLOWING = ("link", "link_error", "chain", "chord")


def options_of_call(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the *options* of a signature as those of a call, with marks as separate options."""
    headers = options.get("headers")
    if not isinstance(headers, Mapping) or MARKS.isdisjoint(headers):
        return options
    made = {**options, "headers": unmarked(headers), **marks_in(headers)}
    if not made["headers"]:
        del made["headers"]
    return made


def over(given: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *given*, options that override the *own* ones of a signature, with its marks. Headers that are
    only marks override no others."""
    if "headers" not in given or not isinstance(mine := own.get("headers"), Mapping):
        return given
    headers = given["headers"] or {}
    if not isinstance(headers, Mapping):
        return given
    if headers and headers.keys() <= MARKS:
        return {**given, "headers": {**headers, **mine}}
    return given if MARKS.isdisjoint(mine) else {**given, "headers": {**headers, **marks_in(mine)}}


def mark(options: dict[str, Any], marks: Mapping[str, Any]) -> None:
    """Add *marks* to the *options* of a signature."""
    if marks:
        options["headers"] = {**(options.get("headers") or {}), **marks}
