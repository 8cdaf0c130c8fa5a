"""Letters: common code for listing and resending dead letters and failed tasks.

Comes from:  ``failed.py`` and ``dead_letters.py``; the command line.
Goes to:     the broker, which stores each kind (``Broker.letters``), and the result store.
Thread:      the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import states
from qworker.contracts import App
from qworker.errors import DamagedResult, MessageError, PublishError
from qworker.message.exceptions import exception_to_dict
from qworker.message.protocol import receive
from qworker.message.reading import parse_headers
from qworker.transports.lease import Again, Dead, Letters

if TYPE_CHECKING:
    from qworker.backends.base import Meta


class Retried(NamedTuple):
    """number: the number of letters sent again. refused: the reasons of the others, by tag."""

    number: int
    refused: dict[int, str]


def chosen(
    letters: Letters | None,
    tags: Collection[int] | None = None,
    queue: str | None = None,
    limit: int | None = None,
    is_meant: Callable[[Dead], bool] | None = None,
) -> Iterator[Dead]:
    """Yield the newest *limit* (None: all) selected letters, newest first. No more are read than needed to
    find *tags*."""
    if letters is None:
        return
    left = None if tags is None else set(tags)
    if left is None and is_meant is None:
        yield from letters.newest(queue, limit)
    elif left is None or left:
        yield from islice(_selected(letters.newest(queue), left, is_meant), limit)


def _selected(
    letters: Iterable[Dead], left: set[int] | None, is_meant: Callable[[Dead], bool] | None
) -> Iterator[Dead]:
    for letter in letters:
        if left is not None and letter.tag not in left:
            continue
        if is_meant is None or is_meant(letter):
            yield letter
        if left is not None:
            left.discard(letter.tag)
            if not left:
                return


class Sending(NamedTuple):
    """A letter to send again. again: the changed message, None if unchanged. ids: of the calls whose stored
    failures are deleted, so that waiting clients get the new outcome."""

    again: Again | None
    ids: Sequence[str]


def send(app: App, letters: Letters, sendings: Mapping[int, Sending], refused: dict[int, str]) -> Retried:
    """Send *sendings*, by tag. Stored failures of unsent letters are restored.

    refused: reasons of letters that are already refused; those that the broker refuses are added.
    """
    failures = _take_failures(app, {each for one in sendings.values() for each in one.ids})
    number, unsent, waiting = 0, set(sendings), [list(sendings)] if sendings else []
    try:
        while waiting:
            tags = waiting.pop()
            try:
                sent = _send(letters, {tag: sendings[tag].again for tag in tags})
            except PublishError as error:
                if len(tags) == 1:
                    refused[tags[0]] = str(error)
                    continue
                sent = None  # some of them may have been sent
            there = set() if sent == len(tags) else {letter.tag for letter in chosen(letters, tags)}
            left = [tag for tag in tags if tag in there]
            unsent.difference_update(set(tags) - there)
            if sent is None:
                number += len(tags) - len(left)
                half = len(left) // 2
                waiting += [part for part in (left[half:], left[:half]) if part]
            else:
                number += sent
                refused |= dict.fromkeys(left, "the broker did not move it; the log says why")
    finally:
        for task_id in failures.keys() & {each for tag in unsent for each in sendings[tag].ids}:
            app.backend.store(task_id, failures[task_id])
    return Retried(number, refused)


def _send(letters: Letters, calls: Mapping[int, Again | None]) -> int:
    changed = [call for call in calls.values() if call is not None]
    sent = letters.send_again(changed) if changed else 0
    kept = [tag for tag, call in calls.items() if call is None]
    return sent + (letters.retry(kept) if kept else 0)


def _take_failures(app: App, ids: Collection[str]) -> dict[str, Meta]:
    """Delete the stored failures of *ids*, and return those that can be stored again."""
    backend, taken = app.backend, {}
    if not ids or backend.why_none or app.stores.sends_results:
        return {}
    for task_id, meta in backend.read_many(ids).items():
        if isinstance(meta, DamagedResult):
            meta = backend.meta(task_id, states.FAILURE, exception_to_dict(meta))
        if meta["status"] == states.FAILURE:
            taken[task_id] = meta
            backend.forget(task_id)
    return taken


def check_queue(letter: Dead) -> None:
    """Raise MessageError if *letter*, which another program has stored, does not name its queue."""
    if not letter.queue:
        raise MessageError("the message does not say to which queue it belongs")


def id_of(app: App, message: Dead | Again) -> str | None:
    """Return the id of the call of *message*; None if the message is unreadable."""
    headers, properties, body = message.headers, message.properties, message.body
    try:
        return str(receive(headers, properties, body, app.accept, None, app.conf.message_max_bytes)[0]["id"])
    except MessageError:
        return None


def headers_of(letter: Dead | Again) -> dict[str, Any]:
    """Return the headers of *letter*; {} if they are invalid."""
    try:
        return parse_headers(letter.headers)
    except MessageError:
        return {}
