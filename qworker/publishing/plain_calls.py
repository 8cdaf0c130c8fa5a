"""Plain calls: a fast way to write calls that are alike, from a template.

Comes from:  the publisher, at the first call of a task without options after a change of the settings, and at
             the second call with the same options.
Goes to:     the envelope of each such call.
Thread:      any; a PlainCalls is never changed, and MemberCalls belong to one publisher.

Calls in workflows, which have a few options, are written in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quote
from types import MappingProxyType
from typing import Any

from qworker.canvas.signatures import Signature
from qworker.clock import isoformat
from qworker.contracts import App, Task
from qworker.message.chain_text import WrittenCalls, embedded
from qworker.message.kombu_json import MAX_DEPTH, dumps
from qworker.message.marks import JOINS
from qworker.message.protocol import NO_EMBED_JSON, HeaderTemplate
from qworker.message.reading import MAX_HEADERS, NO_EMBED, valid_id
from qworker.message.serialization import encode_json
from qworker.middleware import overrides
from qworker.publishing.call import MAPPINGS, Call, Invocation, make_call
from qworker.publishing.routing import Router
from qworker.transports.lease import Envelope

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class PlainCalls:
    """Writes the plain calls of one task. ignored: their results are not stored."""

    __slots__ = (
        "_check",
        "_dump",
        "_encode",
        "_priority",
        "_replies",
        "_reply_to",
        "embeds",
        "ignored",
        "queue",
    )

    def __init__(
        self,
        prototype: Call,
        task: Task,
        limit: int,
        reply_to: Callable[[], str | None] | None = None,
    ) -> None:
        """prototype: a call without arguments. limit: maximum bytes of a decompressed body. reply_to: returns
        the queue for results; None if they are not sent."""
        message = prototype.message
        self._reply_to = reply_to
        self.queue = prototype.destination.queue
        self.ignored = bool(message.ignore_result)
        follow = message.callbacks or message.errbacks
        self._replies = not self.ignored or bool(follow) or task.store_errors_even_if_ignored
        """Whether a call has results also if no other call follows it."""
        self._priority = prototype.destination.priority
        template = HeaderTemplate(message, limit)
        self._encode, self.embeds = template.encode, template.is_plain
        self._check = task.check_arguments if task.typing else None
        self._dump = task.dump_arguments if task.dumps_arguments else None

    def envelope(
        self,
        id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        root_id: str | None = None,
        parent_id: str | None = None,
        more: str = "",
        embed: str = NO_EMBED_JSON,
        due: float | None = None,
        expires: float | None = None,
    ) -> Envelope:
        """Return the envelope of the call *id*.

        - more, embed: text of additional headers, and of the embedded part of the body, which only templates
          with *embeds* support.
        - due, expires: epoch seconds.

        Raises TypeError for arguments that the task does not accept, and EncodeError and PublishError like
        ``encode()``.
        """
        if self._check is not None:
            self._check(*args, **kwargs)
        if self._dump is not None:
            args, kwargs = self._dump(args, kwargs, _NO_OPTIONS)
        reply_to = None
        if self._reply_to is not None and (self._replies or embed is not NO_EMBED_JSON):
            reply_to = self._reply_to()
        if due is not None:
            more = f'{more},"eta":"{isoformat(due)}"'
        if expires is not None:
            more = f'{more},"expires":"{isoformat(expires)}"'
        headers, properties, body = self._encode(id, args, kwargs, root_id, parent_id, more, embed, reply_to)
        return Envelope(self.queue, headers, properties, body, self._priority, due, expires)


class MemberCalls:
    """Writes calls of workflows that are published together. Common parts, such as the chord body, are
    written once."""

    def __init__(
        self, plain: Callable[[str], PlainCalls | None], root_id: str | None, parent_id: str | None
    ) -> None:
        """plain: returns the PlainCalls of a task, by name. root_id, parent_id: of the calls."""
        self._plain = plain
        self._root_id = root_id
        self._parent_id = parent_id
        self._group: Any = None
        self._placed = ""
        """Text of the headers for _group, up to the number of a member."""
        self._chord: Any = None
        self._embed = ""
        """Text of the embedded part of a body, for calls in _chord."""

    def envelope(self, call: Signature) -> tuple[Envelope, PlainCalls] | None:
        """Return the envelope of *call*, whose id is set, and the PlainCalls that wrote it; None if it cannot
        be written in this way, because of other options or of its task.

        Raises like PlainCalls.envelope().
        """
        options = call["options"]
        plain = self._plain(call["task"])
        if plain is None or not options.keys() <= PLANNED:
            return None
        more, embed = "", NO_EMBED_JSON
        group, number, headers = options.get("group_id"), options.get("group_index"), options.get("headers")
        if group is not None:
            if group is not self._group:
                if not valid_id(group):
                    return None
                self._group, self._placed = group, f',"group":{quote(group)},"group_index":'
            if type(number) is not int:
                return None
            more = f"{self._placed}{number}"
        elif number is not None:
            return None
        if headers:
            if headers.keys() != _OF_JOINS:
                return None
            more = f'{more},"{JOINS}":{dumps(headers[JOINS])}'
            if len(more) > MAX_HEADERS // 2:
                return None
        chain, chord = options.get("chain"), options.get("chord")
        if chain or chord:
            if not plain.embeds or (chord and type(chain) is WrittenCalls):
                return None
            embed = self._embedded(chain, chord)
        args, kwargs, root_id = call["args"], call["kwargs"], options.get("root_id") or self._root_id
        sent = plain.envelope(options["task_id"], args, kwargs, root_id, self._parent_id, more, embed)
        return sent, plain

    def _embedded(self, chain: Any, chord: Any) -> str:
        if chain:
            return _embed(chain, chord)
        if chord is not self._chord:
            self._embed, self._chord = _embed(chain, chord), chord
        return self._embed


def _embed(chain: Any, chord: Any) -> str:
    if chord is None and type(chain) is WrittenCalls:
        return embedded(chain)
    parts = {"chain": chain, "chord": chord}
    return encode_json({**NO_EMBED, **parts}, parts, MAX_DEPTH - 1).decode()


PLANNED = frozenset(["task_id", "root_id", "group_id", "group_index", "headers", "chain", "chord"])
_OF_JOINS = frozenset([JOINS])


_FIXED = frozenset(
    [
        "queue",
        "exchange",
        "routing_key",
        "priority",
        "ignore_result",
        "time_limit",
        "soft_time_limit",
        "shadow",
    ]
)
"""Options whose values a template may contain."""
_VARYING = frozenset(["countdown", "eta", "expires", "add_to_parent"])
"""Options that are not part of a template."""
_HASHED = frozenset({str, int, float, bool, type(None)})

FixedOptions = tuple[tuple[str, type, Any], ...]


def fixed_options(options: Mapping[str, Any]) -> FixedOptions | None:
    """Return the part of *options* by which calls are alike, as (name, type, value); None if they have to be
    made one by one."""
    fixed: list[tuple[str, type, Any]] = []
    for name, value in options.items():
        if name in _VARYING:
            continue
        kind = type(value)
        if name not in _FIXED or kind not in _HASHED:
            return None
        fixed.append((name, kind, value))
    return tuple(fixed)


def plain_calls(app: App, router: Router, task: Task, fixed: FixedOptions = ()) -> PlainCalls | None:
    """Return the PlainCalls of *task* with the options *fixed*; None if the calls have to be made one by
    one. Raises PublishError for invalid options."""
    alike = (
        router.constant
        and not app.conf.task_always_eager
        and not app.conf.task_inherit_parent_priority
        and app.signer is None
        and task.expires is None
        and not task.renames
        and task.name not in MAPPINGS
        and not any(overrides(middleware, "publish") for middleware in app.middleware)
    )
    if not alike:
        return None
    # The queue for results depends on the process, so it is determined for each call.
    options = {"reply_to": "", **{name: value for name, _, value in fixed}}
    prototype = make_call(app, router, Invocation(task, task.name, (), {}, options))
    if prototype.expires is not None:  # by its route
        return None
    reply_to = (lambda: app.stores.reply_to) if app.stores.sends_results else None
    return PlainCalls(prototype, task, app.conf.message_max_bytes, reply_to)
