"""Failed: lists failed tasks that were kept, and sends them again. ``app.failed``.

Comes from:  ``qworker failed``, and programs.
Goes to:     the broker, which stores them (``Broker.letters``), and the result store.
Thread:      the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qworker import states
from qworker.canvas.join_body import ONE
from qworker.canvas.membership import calls_in, parts_of
from qworker.canvas.plan import last_call
from qworker.canvas.signatures import maybe_signature
from qworker.contracts import App
from qworker.control.letters import Retried, Sending, check_queue, chosen, headers_of, id_of, send
from qworker.errors import (
    ChordError,
    ConfigurationError,
    DamagedResult,
    MessageError,
    NotSupported,
    PublishError,
    SecurityError,
)
from qworker.message.failures import error_and_traceback
from qworker.message.marks import CAUSE, FAILED, JOINS, MEMBERS
from qworker.message.protocol import check_size, encode_parts, rewrite_body
from qworker.message.reading import decode_body, may_embed, parse_headers, parse_properties
from qworker.publishing import bodies
from qworker.transports.lease import Again, Dead, Letters

if TYPE_CHECKING:
    from qworker.message.signing import Signer

MOST_SEGMENTS = 10_000
"""Maximum number of segments of a long chain that are joined."""


@dataclass(frozen=True)
class FailedTask:
    """A failed call that will not be retried.

    - tag (int): its number in the list of failed tasks.
    - id, task, queue (text): of the call; "" if the message does not contain it.
    - error, traceback (text): of the exception; the error is its ``repr()``.
    - attempts (int): the number of runs.
    - failed_at: epoch seconds.
    - args, kwargs (text): as in logs, without the parts that the caller hides (``argsrepr``).
    """

    tag: int
    id: str
    task: str
    queue: str
    error: str
    traceback: str
    attempts: int
    failed_at: float
    args: str
    kwargs: str


class Failed:
    """The failed tasks of *app*, newest first.

    Methods that select tasks take the same keywords: tags (numbers), task (its full name), error (a part of
    the error's text), queue. Without any of them, all are selected, also by retry() and discard(). Raises
    TypeError for invalid tags, NotSupported if the broker does not keep failed tasks.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def _place(self) -> Letters:
        place = self._app.broker.letters.get("failed")
        if place is None:
            raise NotSupported(
                "this broker does not keep failed tasks; SQLite, Redis, RabbitMQ, PostgreSQL, MySQL, "
                "MariaDB, MongoDB and NATS do. Set task_acks_on_failure_or_timeout = False to make them dead "
                "letters, and use `qworker dead` instead of `qworker failed`"
            )
        return place

    def list(
        self,
        tags: Iterable[int] | None = None,
        *,
        task: str | None = None,
        error: str | None = None,
        queue: str | None = None,
        limit: int = 100,
    ) -> list[FailedTask]:
        """Return the selected tasks, newest first, *limit* at most. Raises ValueError for a limit below 1."""
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit={limit!r:.80} is not valid: use a number of 1 or more")
        return [_read(letter) for letter in self._chosen(tags, task, error, queue, limit)]

    def _chosen(
        self,
        tags: Iterable[int] | None,
        task: str | None,
        error: str | None,
        queue: str | None,
        limit: int | None = None,
    ) -> Iterator[Dead]:
        wanted = None if tags is None else _numbers(tags)
        return chosen(self._place, wanted, queue, limit, _is_meant(task, error))

    def get(self, tag: int) -> FailedTask:
        """Return the failed task *tag*. Raises ConfigurationError if it does not exist."""
        for each in self.list([tag]):
            return each
        raise ConfigurationError(f"there is no failed task {tag}; see `qworker failed list`")

    def retry(
        self,
        tags: Iterable[int] | None = None,
        *,
        task: str | None = None,
        error: str | None = None,
        queue: str | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Retried:
        """Send the selected tasks again, with their ids and all their retries, but without ``eta`` and
        ``expires``; return how many, and which were refused. Those sent by another process meanwhile are left
        out.

        - args, kwargs: replace the arguments. Raises MessageError, without sending any task, if the arguments
          of one cannot be read.

        A chord's body that failed because of a member gets the current values of the members. It is refused
        until all of them have succeeded.

        With a security_key, a task without a valid signature is refused without reading it. The age of the
        signature does not matter, because the task gets a new one.

        If *tags* are given, a refused task raises ChordError, MessageError or PublishError before any is
        sent. A task that only the broker refuses does not raise.
        """
        app, place = self._app, self._place
        sendings: dict[int, Sending] = {}
        refused: dict[int, str] = {}
        for letter in reversed(list(self._chosen(tags, task, error, queue))):
            try:
                check_queue(letter)
                _verify(app.signer, letter)
                again = _again(app, letter, args, kwargs)
            except (MessageError, ChordError, PublishError) as why:
                unread = isinstance(why, MessageError) and not isinstance(why, SecurityError)
                if tags is not None or (unread and (args is not None or kwargs is not None)):
                    raise
                refused[letter.tag] = str(why)
                continue
            sendings[letter.tag] = Sending(again, list(_ids_of(app, again)))
        return send(app, place, sendings, refused)

    def discard(
        self,
        tags: Iterable[int] | None = None,
        *,
        task: str | None = None,
        error: str | None = None,
        queue: str | None = None,
    ) -> int:
        """Delete the selected tasks permanently; return how many."""
        if tags is None and task is None and error is None and queue is None:
            return self._place.discard()
        numbers = [letter.tag for letter in self._chosen(tags, task, error, queue)]
        return self._place.discard(numbers) if numbers else 0

    def __iter__(self) -> Iterator[FailedTask]:
        return map(_read, self._place.newest())


def _is_meant(task: str | None, error: str | None) -> Callable[[Dead], bool] | None:
    if task is None and error is None:
        return None

    def is_meant(letter: Dead) -> bool:
        each = _read(letter)
        return (task is None or each.task == task) and (error is None or error in each.error)

    return is_meant


def _numbers(tags: Iterable[int]) -> set[int]:
    wanted = set(tags) if isinstance(tags, Iterable) else {None}  # perhaps an iterator
    if not all(isinstance(tag, int) for tag in wanted):
        raise TypeError(f"tags={tags!r:.80} is not valid: give a list of numbers, as [1]")
    return wanted


def _read(letter: Dead) -> FailedTask:
    headers = headers_of(letter)
    error, traceback = error_and_traceback(letter.reason)
    retries = headers.get("retries")
    return FailedTask(
        letter.tag,
        str(headers.get("id") or ""),
        str(headers.get("task") or ""),
        letter.queue,
        error,
        traceback,
        (retries if isinstance(retries, int) else 0) + 1,
        letter.died_at,
        str(headers.get("argsrepr") or ""),
        str(headers.get("kwargsrepr") or ""),
    )


def _ids_of(app: App, again: Again) -> Iterator[str]:
    """Yield the ids of the stored failures to delete when *again* is sent: those of the rest of its chain,
    and its own unless the broker deletes that itself."""
    headers = headers_of(again)
    own = None if headers and app.results_with_broker else id_of(app, again)  # no headers: protocol 1
    if own is not None:
        yield own
    for call in calls_in(_chain_of(app, again, headers), following=True):
        task_id = call.options.get("task_id")
        if isinstance(task_id, str):
            yield task_id


def _chain_of(app: App, message: Dead | Again, headers: Mapping[str, Any]) -> Sequence[Any]:
    """Return the rest of the chain in *message*, last call first; () if there is none, or it is
    unreadable."""
    if not headers or not may_embed(message.body):
        return ()
    properties, limit = parse_properties(message.properties), app.conf.message_max_bytes
    try:
        chain = decode_body(message.body, headers, properties, app.accept, None, limit).embed["chain"]
    except MessageError:
        return ()  # the worker will refuse it
    return chain if isinstance(chain, list | tuple) else ()


def _whole_chain(app: App, headers: dict[str, Any], chain: Sequence[Any]) -> list[Any] | None:
    """Return *chain*, the rest of the chain of a call with *headers*, extended by the stored segments that
    failed with it, without the marks of the joins between them; None if there are none."""
    whole: list[Any] = list(chain)
    for _ in range(MOST_SEGMENTS):
        options: dict[str, Any] = {"headers": headers}
        if whole:
            whole[0] = maybe_signature(whole[0], app, clone=True)
            ending = last_call(whole[0])
            options = {} if ending is None else ending["options"]
        marks = options.get("headers") or {}
        joins = [part.join for part in parts_of({**marks, "id": ""}, states.FAILURE)]
        rest = bodies.kept_rest(app, joins[0]) if len(joins) == 1 else None
        if rest is None:
            break
        options["headers"] = {name: value for name, value in marks.items() if name != JOINS}
        if marks is headers:
            del headers[JOINS]
        whole = [*reversed(rest.call.steps()), *whole]
    return whole if len(whole) > len(chain) else None


def _values_of_members(
    app: App, letter: Dead, headers: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that *letter*, a call that follows a join, gets from its members. Raises
    ChordError if some of their values are missing."""
    what = f"failed task {letter.tag} gets the values of its members"
    known = headers.get(MEMBERS)
    if not isinstance(known, Mapping) or not isinstance(known.get("ids"), list | tuple):
        raise ChordError(f"{what}, which are no longer known: pass --args, or call the workflow again")
    how = known.get("values")
    names = how if isinstance(how, list | tuple) else None
    found = app.backend.read_many(known["ids"])
    values = []
    for number, task_id in enumerate(known["ids"]):
        meta = found.get(task_id)
        status = "unknown" if isinstance(meta, DamagedResult) or meta is None else meta["status"]
        if status == states.SUCCESS:
            values.append(meta["result"])  # type: ignore[index]
        elif known.get("always") or (names is not None and not any(names[number : number + 1])):
            values.append(None)
        else:
            raise ChordError(
                f"{what}, but its member {task_id} has not succeeded (state: {status}): retry the member "
                "first, and this task once the member has succeeded"
            )
    if not known.get("given"):
        return [], {}
    if names is not None:
        return [], {str(name): value for name, value in zip(names, values, strict=False) if name}
    return (values if how == ONE else [values]), {}


def _again(app: App, letter: Dead, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Again:
    """Return the message to send *letter* again."""
    headers = headers_of(letter)
    if not headers:  # of protocol 1, which is sent unchanged
        if args is not None or kwargs is not None:
            raise MessageError(
                f"the arguments of failed task {letter.tag} cannot be changed: {letter.reason}"
            )
        _check_size(app, letter.body)
        return Again(letter.tag, letter.headers, letter.properties, letter.body)
    properties, body = parse_properties(letter.properties), letter.body
    headers.pop("signature", None)
    if isinstance(headers.get(FAILED), str):
        if args is None:
            limit = app.conf.message_max_bytes
            old = decode_body(body, headers, properties, app.accept, None, limit)
            first, named = _values_of_members(app, letter, headers)
            args, kwargs = [*first, *old.args], {**old.kwargs, **named} if kwargs is None else kwargs
        del headers[FAILED]
        for name in (CAUSE, MEMBERS):
            headers.pop(name, None)
    headers |= {"retries": 0, "eta": None, "expires": None}
    if args is not None or kwargs is not None:
        if (task := app.tasks.get(headers.get("task", ""))) is not None:
            positional, named = task.dump_arguments(tuple(args or ()), dict(kwargs or {}), {})
            args = None if args is None else positional
            kwargs = None if kwargs is None else named
        body, changed = rewrite_body(
            body, headers, properties, app.accept, args, kwargs, app.conf.message_max_bytes
        )
        headers |= changed
    if (chain := _with_rest(app, letter, headers)) is not None:
        limit = app.conf.message_max_bytes
        body, _ = rewrite_body(body, headers, properties, app.accept, None, None, limit, chain)
    _check_size(app, body)
    encoded = encode_parts(headers, properties, body, app.signer)
    return Again(letter.tag, encoded.headers, encoded.properties, encoded.body)


def _check_size(app: App, body: bytes) -> None:
    check_size("the message", len(body), app.conf.message_max_bytes, "no worker would run it")


def _with_rest(app: App, letter: Dead, headers: dict[str, Any]) -> list[Any] | None:
    """Return the complete rest of the chain of *letter* if parts of it were stored separately; otherwise
    None."""
    if app.backend.why_none or app.stores.sends_results:
        return None
    try:
        return _whole_chain(app, headers, _chain_of(app, letter, headers))
    except (*bodies.UNREADABLE, RecursionError):  # invalid data of another client; the worker will refuse it
        return None


def _verify(signer: Signer | None, letter: Dead) -> None:
    """Raise SecurityError unless *letter* is signed with one of our keys, of any age, or is unsigned and
    there is no key. Called before the body is read."""
    if signer is None:
        if "signature" in headers_of(letter):
            raise SecurityError(
                f"failed task {letter.tag} is signed, but this process has no security_key to sign it again, "
                "so no worker with a key would run it. Set the security_key of the workers here"
            )
        return
    try:
        signer.age(parse_headers(letter.headers), letter.body, parse_properties(letter.properties))
    except MessageError as error:
        raise SecurityError(
            f"failed task {letter.tag} is refused, and its body is not read: {error}. No worker with this "
            f"security_key would run it: `qworker failed discard {letter.tag}` deletes it"
        ) from error
