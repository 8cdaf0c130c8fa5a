"""Protocol: writes messages of Celery's protocol 2, and reads those of protocols 2 and 1.

Comes from:  publishing, which encodes a TaskMessage; transports, with stored messages.
Goes to:     transports; the listener and the child.
Thread:      any; pure.

Messages of protocol 1, of Celery 3 or code written for it, have their headers in the body; they are never
written. Re-exports ``reading`` and ``kombu_envelope``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from json.encoder import encode_basestring_ascii as quote
from typing import Any, Protocol

from qworker.clock import isoformat
from qworker.errors import InvalidTaskMessage, PublishError, QWorkerError, SecurityError
from qworker.interrupts import reraise_interrupt
from qworker.message.kombu_envelope import from_kombu, to_kombu
from qworker.message.kombu_json import MAX_DEPTH, dumps, too_deep
from qworker.message.reading import (
    HEADERS,
    MAX_HEADERS,
    MAX_ID,
    NO_EMBED,
    Body,
    EncodedMessage,
    Verifier,
    body_of,
    check_headers,
    decode_body,
    decode_payload,
    parse_headers,
    parse_properties,
    read_object,
    without_empty,
)
from qworker.message.serialization import (
    JSON,
    MAX_BYTES,
    compress,
    encode_json,
    explain,
    plain_calls,
    serializer_of,
)
from qworker.message.serialization import encode as encode_value
from qworker.naming import hostname, task_id
from qworker.safe_repr import repr_args, repr_kwargs, safe_repr


def from_v1(
    properties: Mapping[str, Any],
    body: bytes,
    accept: frozenset[str],
    signer: Verifier | None = None,
    limit: int = MAX_BYTES,
    compression: str | None = None,
) -> tuple[dict[str, Any], Body]:
    """Return the headers, in the form of protocol 2, and the Body of a protocol 1 message.

    - accept: content types allowed for the body.
    - limit: maximum size of the decompressed body, in bytes.
    - compression: the ``compression`` header of kombu.

    Raises InvalidTaskMessage or SecurityError as `decode_body` does. With a `signer` it always raises
    SecurityError, because protocol 1 has no room for a signature.
    """
    if signer is not None:
        raise SecurityError("messages of protocol 1 cannot be signed, and this app has a security_key")
    value = decode_payload(body, compression, properties, accept, limit)
    if not isinstance(value, dict) or "task" not in value:
        raise InvalidTaskMessage(f"no 'task' in the headers, and the body is {safe_repr(value, 100)}")
    embed = {name: value.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    decoded = body_of(value.get("args"), value.get("kwargs"), embed)
    headers = {name: value.get(name) for name in HEADERS}
    headers["group"] = headers["group"] or value.get("taskset")
    headers["root_id"] = headers["root_id"] or headers["id"]
    headers["argsrepr"] = repr_args(decoded.args)
    headers["kwargsrepr"] = repr_kwargs(decoded.kwargs)
    if value.get("utc") is False:
        for name in ("eta", "expires"):
            headers[name] = _from_local(headers[name])
    return check_headers(headers), decoded


def _from_local(text: Any) -> Any:
    """Return ISO text with an offset. A naive time, from a sender without UTC, is in the local time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return text  # check_headers() will report the error
    return text if moment.tzinfo is not None else moment.astimezone().isoformat()


__all__ = [
    "NO_EMBED_JSON",
    "Body",
    "EncodedMessage",
    "HeaderTemplate",
    "TaskMessage",
    "decode_body",
    "encode",
    "encode_parts",
    "from_kombu",
    "from_v1",
    "origin",
    "parse_headers",
    "parse_properties",
    "receive",
    "retry_headers",
    "to_kombu",
    "upgrade",
]  # fmt: skip


class SupportsSigning(Protocol):
    """The part of `qworker.message.signing.Signer` used here."""

    def sign(
        self, headers: Mapping[str, Any], body: bytes, properties: Mapping[str, Any] | None = None
    ) -> str:
        """Return the header ``signature``."""


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A call, ready to be sent.

    - eta, expires: ISO 8601 text, or None.
    - timelimit: (hard, soft) in seconds, None for no limit.
    - callbacks, errbacks, chain, chord: signatures as dicts.
    - headers: the caller's, in addition to those of the protocol.
    - root_id, origin, argsrepr, kwargsrepr: None for the id, this process, and the repr of the arguments.
    - priority: for the transport; not encoded.
    """

    task: str
    id: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Sequence[Any] | None = None
    errbacks: Sequence[Any] | None = None
    chain: Sequence[Any] | None = None
    chord: Any = None
    eta: str | None = None
    expires: str | None = None
    shadow: str | None = None
    group: str | None = None
    group_index: int | None = None
    retries: int = 0
    timelimit: tuple[float | None, float | None] = (None, None)
    root_id: str | None = None
    parent_id: str | None = None
    ignore_result: bool | None = None
    replaced_task_nesting: int = 0
    stamped_headers: Sequence[str] | None = None
    stamps: Mapping[str, Any] = field(default_factory=dict)
    origin: str | None = None
    argsrepr: str | None = None
    kwargsrepr: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    reply_to: str | None = None
    priority: int = 0
    serializer: str = "json"
    compression: str | None = None


# -- writing --


def origin() -> str:
    """Return the sender name of this process, "gen<pid>@<host>"."""
    return _origin


def _after_fork() -> None:
    global _origin, _origin_json
    _origin = f"gen{os.getpid()}@{hostname()}"
    _origin_json = quote(_origin)


_origin = _origin_json = ""
_after_fork()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def encode(
    message: TaskMessage, signer: SupportsSigning | None = None, limit: int | None = None
) -> EncodedMessage:
    """Encode `message`, and sign it if there is a `signer`.

    - limit: maximum bytes of a body before compression, which receivers refuse to exceed.

    Raises EncodeError, which names the argument that cannot be serialized, and PublishError for any other
    problem.
    """
    headers = _headers(message)
    body, properties = _body(message)
    if message.compression is not None:
        if limit is not None:
            check_size(f"a call of {message.task}", len(body), limit, when=" before compression")
        headers["compression"], body = compress(body, message.compression)
    return encode_parts(headers, properties, body, signer)


def check_size(
    what: str,
    size: int,
    limit: int,
    advice: str = "store the data somewhere and pass its key",
    when: str = "",
) -> None:
    """Raise PublishError if *size*, in bytes, is over *limit*, the setting ``message_max_bytes``."""
    if size > limit:
        raise PublishError(
            f"{what} takes {size:,} bytes{when}, over the limit of {limit:,} (message_max_bytes): {advice}"
        )


def encode_parts(
    headers: dict[str, Any], properties: Mapping[str, Any], body: bytes, signer: SupportsSigning | None = None
) -> EncodedMessage:
    """Encode a message from parsed headers, properties and a serialized body; sign it if there is a `signer`.

    Raises PublishError if a receiver would refuse a header.
    """
    headers = _checked(headers)
    if signer is not None:
        # Sign the headers as they will be read, after conversion to JSON.
        as_read = check_headers(read_object(encode_json(headers, {"headers": headers}).decode(), "headers"))
        headers["signature"] = signer.sign(as_read, body, properties)
    text = encode_json(without_empty(headers), {"headers": headers}).decode()
    if len(text) > MAX_HEADERS:
        raise PublishError(
            f"headers of task {headers['task']} take {len(text):,} bytes, over the limit of {MAX_HEADERS:,}: "
            "pass large values as arguments"
        )
    return EncodedMessage(text, _properties_text(properties, headers["id"]), body)


def _checked(headers: dict[str, Any]) -> dict[str, Any]:
    try:
        return check_headers(headers)
    except InvalidTaskMessage as error:
        raise PublishError(f"task {headers.get('task')!r:.80} cannot be sent: {error}") from None


def _headers(message: TaskMessage) -> dict[str, Any]:
    headers: dict[str, Any] = {
        "lang": "py",
        "task": message.task,
        "id": message.id,
        "shadow": message.shadow,
        "eta": message.eta,
        "expires": message.expires,
        "group": message.group,
        "group_index": message.group_index,
        "retries": message.retries,
        "timelimit": message.timelimit,
        "root_id": message.root_id or message.id,
        "parent_id": message.parent_id,
        "argsrepr": repr_args(message.args) if message.argsrepr is None else message.argsrepr,
        "kwargsrepr": repr_kwargs(dict(message.kwargs)) if message.kwargsrepr is None else message.kwargsrepr,
        "origin": message.origin or _origin,
        "ignore_result": message.ignore_result,
        "replaced_task_nesting": message.replaced_task_nesting,
        "stamped_headers": message.stamped_headers,
        "stamps": dict(message.stamps),
    }
    extra = dict(message.headers)
    extra.update((name, message.stamps.get(name)) for name in message.stamped_headers or ())
    if not extra:
        return headers
    reserved = headers.keys() & extra.keys()
    if reserved:
        raise PublishError(
            f"headers= of task {message.task} cannot hold {sorted(reserved)[0]!r}: the protocol uses "
            "that name; "
            "choose another, or the option of apply_async() that sets it"
        )
    return headers | extra


def _body(message: TaskMessage) -> tuple[bytes, dict[str, Any]]:
    """Return the serialized body and the properties that describe it."""
    embed = {
        "callbacks": message.callbacks,
        "errbacks": message.errbacks,
        "chain": message.chain,
        "chord": message.chord,
    }
    args, kwargs = message.args, dict(message.kwargs)
    value = (args, kwargs, plain_calls(embed) if message.serializer == "pickle" else embed)
    if message.serializer == "json":
        content_type, content_encoding = JSON, "utf-8"
        body = encode_json(value, {"args": args, "kwargs": kwargs, **embed})
    else:
        content_type, content_encoding, body = encode_value(
            value, message.serializer, f"body of {message.task}"
        )
    properties = {
        "content_type": content_type,
        "content_encoding": content_encoding,
        "correlation_id": message.id,
    }
    if message.reply_to is not None:
        properties["reply_to"] = message.reply_to
    return body, properties


def _properties_text(properties: Mapping[str, Any], id: str) -> str | None:
    for name, value in properties.items():
        if value != _DEFAULTS.get(name, id if name == "correlation_id" else None):
            return dumps(dict(properties))
    return None


_DEFAULTS = {"content_type": JSON, "content_encoding": "utf-8"}
_REPLY = f'{dumps(_DEFAULTS)[:-1]},"correlation_id":%s,"reply_to":%s}}'
"""A format of the properties of a call whose result is sent as a message; for its id and the queue."""
_MARK = task_id()  # a placeholder for the varying parts of a template; random, so that it is unique
_MARKED = quote(_MARK)
NO_EMBED_JSON = dumps(NO_EMBED)
"""The third part of the body of a call that no other call follows."""


class HeaderTemplate:
    """A template of the headers of one task's calls, so that encoding a call takes microseconds.

    - prototype: a message with the common parts of these calls (task, shadow, timelimit, headers…).
    - limit: as for the function ``encode()``, which has the same result.

    is_plain: bodies are JSON, neither signed nor compressed.
    """

    __slots__ = ("_limit", "_pieces", "is_plain", "prototype")

    def __init__(self, prototype: TaskMessage, limit: int | None = None) -> None:
        self.prototype = prototype
        self._limit = limit
        marked = _headers(
            replace(
                prototype,
                id=_MARK,
                root_id=_MARK,
                parent_id=_MARK,
                argsrepr=_MARK,
                kwargsrepr=_MARK,
                origin=_MARK,
            )
        )
        _checked(marked)
        text = encode_json(without_empty(marked), {"headers": prototype.headers}).decode()
        text = text.replace(f',"parent_id":{_MARKED}', _MARKED, 1)  # with its name, because it may be absent
        *self._pieces, tail = text.split(_MARKED)
        self._pieces.append(tail[:-1])
        self.is_plain = (
            prototype.serializer == "json"
            and prototype.compression is None
            and prototype.reply_to is None
            and prototype.origin is None
            and all(getattr(prototype, name) is None for name in NO_EMBED)
        )

    def encode(
        self,
        id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        root_id: str | None = None,
        parent_id: str | None = None,
        more: str = "",
        embed: str = NO_EMBED_JSON,
        reply_to: str | None = None,
    ) -> EncodedMessage:
        """Encode one call. Raises EncodeError and PublishError like the function ``encode()``.

        - reply_to: queue for its result; None for the prototype's.
        - more: text of additional headers, each after a comma.
        - embed: text of the third part of the body, nested less than MAX_DEPTH deep. Only for plain
          templates.
        """
        if not self.is_plain:
            message = replace(
                self.prototype,
                id=id,
                args=args,
                kwargs=kwargs,
                root_id=root_id,
                parent_id=parent_id,
                reply_to=reply_to or self.prototype.reply_to,
            )
            encoded = encode(message, None, self._limit)
            return encoded._replace(headers=f"{encoded.headers[:-1]}{more}}}") if more else encoded
        if type(id) is not str or not 0 < len(id) <= MAX_ID or not id.isprintable():
            raise PublishError(f"task_id must be printable text of 1 to {MAX_ID} characters, not {id!r:.80}")
        try:
            arguments = dumps((args, kwargs))
        except Exception as error:  # __json__ and registered encoders are user code
            reraise_interrupt(error)
            raise explain({"args": args, "kwargs": kwargs}, error) from error
        if len(arguments) > MAX_DEPTH and too_deep(arguments.encode()):
            raise explain({"args": args, "kwargs": kwargs}, RecursionError())
        body = f"{arguments[:-1]},{embed}]".encode()
        quoted = quote(id)
        parent = "" if parent_id is None else f',"parent_id":{quote(parent_id)}'
        head, p1, p2, p3, p4, p5, tail = self._pieces
        headers = (
            f"{head}{quoted}{p1}{quote(root_id) if root_id else quoted}{p2}{parent}"
            f"{p3}{quote(repr_args(args))}{p4}{quote(repr_kwargs(kwargs))}{p5}{_origin_json}{tail}{more}}}"
        )
        if reply_to is None:
            return EncodedMessage(headers, None, body)
        return EncodedMessage(headers, _REPLY % (quoted, quote(reply_to)), body)


# -- the next attempt --

_DROPPED = frozenset({"signature", "redelivered", "x-death", "x-first-death-exchange", "x-first-death-queue",
                      "x-first-death-reason", "x-last-death-exchange", "x-last-death-queue",
                      "x-last-death-reason", "x-delivery-count"})  # fmt: skip


def retry_headers(
    headers: Mapping[str, Any], eta: str | float | None, retries: int, parent_id: str | None
) -> dict[str, Any]:
    """Return the headers of the next attempt, with the same id, root, group, stamps, limits, `expires` and
    custom headers.

    - headers: of the previous attempt. Headers added by a broker, and the signature, which is no longer
      valid, are dropped. ``compression`` is kept, because the body may be sent again unchanged.
    - eta: epoch seconds, ISO 8601 text, or None to run at once.
    - retries: number of retries, including this one.
    - parent_id: id of the call that makes the attempt, which becomes the parent if there is none, as in
      Celery.
    """
    kept = {name: value for name, value in headers.items() if name not in _DROPPED}
    kept["eta"] = isoformat(eta) if isinstance(eta, int | float) else eta
    kept["retries"] = retries
    kept["parent_id"] = headers.get("parent_id") or parent_id
    return kept


def rewrite_body(
    body: bytes,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    accept: frozenset[str],
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    limit: int,
    chain: Sequence[Any] | None = None,
) -> tuple[bytes, dict[str, Any]]:
    """Return *body* with other arguments (None: unchanged), and the headers that describe them.

    - headers, properties, accept, limit: as for ``decode_body()``.
    - chain: the new rest of the chain, last call first; None: unchanged.

    Raises InvalidTaskMessage, SecurityError, EncodeError, and PublishError for a body over *limit* before
    compression.
    """
    old = decode_body(body, headers, properties, accept, None, limit)
    new_args = tuple(old.args if args is None else args)
    new_kwargs = dict(old.kwargs if kwargs is None else kwargs)
    embed = old.embed if chain is None else {**old.embed, "chain": list(chain)}
    value = (new_args, new_kwargs, embed)
    content_type = properties.get("content_type") or JSON
    if content_type == JSON:
        written = encode_json(value, {"args": new_args, "kwargs": new_kwargs})
    else:
        _, _, written = encode_value(value, serializer_of(content_type), "the body")
    if headers.get("compression"):
        check_size(f"a call of {headers['task']}", len(written), limit, when=" before compression")
        _, written = compress(written, headers["compression"])
    if args is None and kwargs is None:
        return written, {}
    return written, {"argsrepr": repr_args(new_args), "kwargsrepr": repr_kwargs(new_kwargs)}


# -- reading either protocol --


def receive(
    headers: str,
    properties: str | None,
    body: bytes,
    accept: frozenset[str],
    signer: Verifier | None = None,
    limit: int = MAX_BYTES,
) -> tuple[dict[str, Any], dict[str, Any], Body | None]:
    """Return (headers, properties, None) of a protocol 2 message, without decoding its body.

    For a protocol 1 message, which has its headers in the body, the third item is the decoded Body.

    - headers, properties, body: as the broker stores them.
    - accept: content types allowed for a body.
    - limit: maximum bytes of a decompressed body.

    Raises InvalidTaskMessage or SecurityError with the reason.
    """
    parsed = parse_properties(properties)
    parsed_headers = read_object(headers, "headers")
    if "task" in parsed_headers:
        checked = check_headers(parsed_headers)
        if signer is not None:
            signer.verify(checked, body, parsed)
        return checked, parsed, None
    compression = parsed_headers.get("compression")
    upgraded, decoded = from_v1(parsed, body, accept, signer, limit, compression)
    return upgraded, parsed, decoded


def upgrade(headers: dict[str, Any], properties: Mapping[str, Any], body: Body) -> EncodedMessage:
    """Encode a received protocol 1 message in protocol 2, with the same serializer.

    Raises InvalidTaskMessage if that serializer cannot write the values that it read.
    """
    serializer = serializer_of(properties.get("content_type") or JSON)
    try:
        content_type, content_encoding, data = encode_value(tuple(body), serializer, "body")
        content = {"content_type": content_type, "content_encoding": content_encoding}
        return encode_parts(headers, {**properties, **content}, data)
    except QWorkerError as error:
        raise InvalidTaskMessage(f"protocol 1 message cannot be converted to protocol 2: {error}") from error
