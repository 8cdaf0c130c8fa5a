"""Reading: checks and decodes received messages.

Comes from:  transports (three columns: headers text, properties text, body bytes).
Goes to:     the listener (headers only) and the child (body).
Thread:      any; pure.

For any input, the only errors are InvalidTaskMessage and SecurityError, with the reason of the dead letter.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from qworker.clock import to_epoch
from qworker.errors import InvalidTaskMessage
from qworker.message.kombu_json import MAX_DEPTH, loads, too_deep
from qworker.message.serialization import JSON, MAX_BYTES, check_accepted, decode, decompress
from qworker.safe_repr import printable, safe_repr

MAX_HEADERS = 256 * 1024  #: characters of the headers text
MAX_ID = 255  #: characters of task names and ids
_MAX_TEXT = 1024
_MAX_REPR = 4096
_MAX_COUNT = 2**31


class EncodedMessage(NamedTuple):
    """A message as a broker stores it. headers: JSON text. properties: JSON text, or None for the
    defaults."""

    headers: str
    properties: str | None
    body: bytes


class Body(NamedTuple):
    """A decoded body. embed: callbacks, errbacks, chain and chord; None for absent ones."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    embed: dict[str, Any]


class Verifier(Protocol):
    """The part of `qworker.message.signing.Signer` used here."""

    def verify(
        self, headers: Mapping[str, Any], body: bytes, properties: Mapping[str, Any] | None = None
    ) -> None:
        """Raise SecurityError unless the message is signed with a known key."""


# -- headers --


def valid_id(value: object) -> bool:
    """Return whether `value` can be a task name or id: printable text of 1 to 255 characters."""
    return type(value) is str and 0 < len(value) <= MAX_ID and value.isprintable()


def _text(value: Any) -> bool:
    return type(value) is str and len(value) <= _MAX_TEXT and value.isprintable()


def _any_text(value: Any) -> bool:
    return type(value) is str


def _time(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        to_epoch(value)
    except (ValueError, OverflowError):
        return False
    return True


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT


def _limits(value: Any) -> bool:
    return type(value) in (list, tuple) and len(value) == 2 and all(map(_limit, value))


def _limit(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < _MAX_COUNT)


def _flag(value: Any) -> bool:
    return type(value) is bool


def _names(value: Any) -> bool:
    return type(value) in (list, tuple) and all(type(name) is str for name in value)


def _table(value: Any) -> bool:
    return type(value) is dict


_Check = Callable[[Any], bool]
_WORDS: dict[_Check, str] = {
    valid_id: f"printable text of 1 to {MAX_ID} characters",
    _text: f"printable text of at most {_MAX_TEXT} characters",
    _any_text: "text",
    _time: "a time in ISO 8601",
    _count: f"a whole number below {_MAX_COUNT}",
    _limits: "two numbers of seconds, [hard, soft]",
    _flag: "true or false",
    _names: "a list of names",
    _table: "an object",
}

#: the headers of protocol 2 in Celery's order: name → (check of a value that is not null, default if absent
#: or null)
HEADERS: dict[str, tuple[_Check, Any]] = {
    "lang": (_text, "py"),
    "task": (valid_id, None),
    "id": (valid_id, None),
    "shadow": (_text, None),
    "eta": (_time, None),
    "expires": (_time, None),
    "group": (_text, None),
    "group_index": (_count, None),
    "retries": (_count, 0),
    "timelimit": (_limits, [None, None]),
    "root_id": (_text, None),
    "parent_id": (_text, None),
    "argsrepr": (_any_text, None),
    "kwargsrepr": (_any_text, None),
    "origin": (_text, None),
    "ignore_result": (_flag, None),
    "replaced_task_nesting": (_count, 0),
    "stamped_headers": (_names, None),
    "stamps": (_table, {}),
}
_ABSENT = {name: None if type(default) in (list, dict) else default for name, (_, default) in HEADERS.items()}
_NEEDED = tuple(name for name, (_, default) in HEADERS.items() if default is not None)
_REPRS = ("argsrepr", "kwargsrepr")


def parse_headers(text: str) -> dict[str, Any]:
    """Return the headers of a protocol 2 message: Celery's 19, checked and complete, and others unchanged.

    Raises InvalidTaskMessage if `text` is not a JSON object, has no `task` or `id`, or has a header of the
    wrong type. A message without `task` may be of protocol 1; see `protocol.receive`.
    """
    return check_headers(read_object(text, "headers"))


def check_headers(headers: dict[str, Any]) -> dict[str, Any]:
    """Return `headers` with absent ones added. Raises InvalidTaskMessage for missing or invalid ones."""
    for name, value in headers.items():
        if value is not None and name in HEADERS and not HEADERS[name][0](value):
            words = _WORDS[HEADERS[name][0]]
            raise InvalidTaskMessage(f"header {name!r} is {safe_repr(value, 100)}, not {words}")
    headers = {**_ABSENT, **headers}
    for name in _NEEDED:
        if headers[name] is None:
            default = HEADERS[name][1]
            headers[name] = default.copy() if isinstance(default, list | dict) else default
    if headers["task"] is None or headers["id"] is None:
        missing = "task" if headers["task"] is None else "id"
        raise InvalidTaskMessage(f"header {missing!r} is missing")
    for name in _REPRS:  # corrected instead of refused, because they are only for display
        value = headers[name]
        if value is not None and (len(value) > _MAX_REPR or not value.isprintable()):
            headers[name] = printable(value[:_MAX_REPR])
    return headers


def without_empty(headers: dict[str, Any]) -> dict[str, Any]:
    """Return `headers` without the empty ones, which Celery's protocol allows to omit.

    They would be more than a third of the text and, on RabbitMQ, a fifth of the server's work.
    """
    return {
        name: value
        for name, value in headers.items()
        if name not in _MAY_BE_LEFT_OUT or value != HEADERS[name][1]
    }


_MAY_BE_LEFT_OUT = frozenset(
    {"shadow", "eta", "expires", "group", "group_index", "parent_id", "replaced_task_nesting",
    "stamped_headers",
     "stamps"}
)  # fmt: skip


# -- properties --

_PROPERTIES: tuple[tuple[str, _Check], ...] = (
    ("content_type", _text),
    ("content_encoding", _text),
    ("correlation_id", _text),
    ("reply_to", _text),
    ("priority", _count),
    ("delivery_info", _table),
)


def parse_properties(text: str | None) -> dict[str, Any]:
    """Return the properties in `text` (None: the defaults), always with `content_type` and
    `content_encoding`.

    Raises InvalidTaskMessage if `text` is not a JSON object, or a property has the wrong type.
    """
    if text is None:
        return {"content_type": JSON, "content_encoding": "utf-8"}
    properties = read_object(text, "properties")
    for name, check in _PROPERTIES:
        value = properties.get(name)
        if value is not None and not check(value):
            raise InvalidTaskMessage(f"property {name!r} is {safe_repr(value, 100)}, not {_WORDS[check]}")
    properties["content_type"] = properties.get("content_type") or JSON
    properties["content_encoding"] = properties.get("content_encoding") or "utf-8"
    return properties


def read_object(text: Any, what: str) -> dict[str, Any]:
    """Return the JSON object in `text`. Raises InvalidTaskMessage, which names `what`, for anything else."""
    if type(text) is not str:
        text = _as_text(text, what)
    if len(text) > MAX_HEADERS:
        raise InvalidTaskMessage(f"{what} of {len(text)} characters are over the limit of {MAX_HEADERS}")
    if text.count("[") + text.count("{") > MAX_DEPTH and too_deep(text.encode("utf-8", "replace")):
        raise InvalidTaskMessage(
            f"{what} nest deeper than {MAX_DEPTH} levels, or their brackets do not match"
        )
    try:
        value = loads(text)
    except Exception as error:  # decoders of registered types are user code
        raise InvalidTaskMessage(f"{what} are not valid JSON: {type(error).__name__}") from error
    if type(value) is not dict:
        raise InvalidTaskMessage(f"{what} are {safe_repr(value, 100)}, not an object")
    return value


def _as_text(value: Any, what: str) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise InvalidTaskMessage(f"{what} are not UTF-8") from None
    raise InvalidTaskMessage(f"{what} are {safe_repr(value, 100)}, not text")


# -- body --

NO_EMBED: dict[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


_EMPTY_EMBEDS = (
    b'{"callbacks": null, "errbacks": null, "chain": null, "chord": null}]',  # Celery's spelling
    b'{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]',
)


def may_embed(body: bytes) -> bool:
    """Return whether the encoded *body* may contain calls; False if it certainly does not."""
    return type(body) is not bytes or not body.endswith(_EMPTY_EMBEDS)


def decode_body(
    body: bytes,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    accept: frozenset[str],
    signer: Verifier | None = None,
    limit: int = MAX_BYTES,
) -> Body:
    """Return the arguments and embedded calls of a protocol 2 message with parsed headers and properties.

    - accept: serializer names or content types allowed for the body.
    - signer: verifies the signature first; None if messages are not signed.
    - limit: maximum bytes of the decompressed body.

    Raises SecurityError or InvalidTaskMessage with the reason.
    """
    if signer is not None:
        signer.verify(headers, body, properties)
    value = decode_payload(body, headers.get("compression"), properties, accept, limit)
    if isinstance(value, dict) and "args" in value:
        return body_of(value.get("args"), value.get("kwargs"), value)
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise InvalidTaskMessage(f"body is {safe_repr(value, 100)}, not [args, kwargs, embed]")
    return body_of(*value)


def decode_payload(
    body: bytes, compression: Any, properties: Mapping[str, Any], accept: frozenset[str], limit: int
) -> Any:
    """Return the value in a body of protocol 1 or 2, decompressed if `compression` names a method."""
    content_type = properties.get("content_type") or JSON
    check_accepted(content_type, accept)
    if type(body) is not bytes:
        body = _as_bytes(body)
    if compression is not None:
        if type(compression) is not str:
            raise InvalidTaskMessage(f"header 'compression' is {safe_repr(compression, 100)}, not text")
        if len(body) > limit:
            raise InvalidTaskMessage(f"body of {len(body)} bytes is over the limit of {limit}")
        body = decompress(body, compression, limit)
    return decode(body, content_type, properties.get("content_encoding") or "utf-8", accept, limit)


def _as_bytes(body: Any) -> bytes:
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise InvalidTaskMessage(f"body is {safe_repr(body, 100)}, not bytes")


def body_of(args: Any, kwargs: Any, embed: Any) -> Body:
    """Make a Body of decoded parts; None means empty. Raises InvalidTaskMessage for an invalid part."""
    if args is None:
        args = ()
    elif not isinstance(args, list | tuple):
        raise InvalidTaskMessage(f"args are {safe_repr(args, 100)}, not a list")
    if kwargs is None:
        kwargs = {}
    elif not isinstance(kwargs, dict) or not all(type(name) is str for name in kwargs):
        raise InvalidTaskMessage(f"kwargs are {safe_repr(kwargs, 100)}, not an object with names as keys")
    if embed == NO_EMBED:
        return Body(tuple(args), kwargs, embed)
    return Body(tuple(args), kwargs, _embed(embed))


def _embed(embed: Any) -> dict[str, Any]:
    if embed is None:
        return dict(NO_EMBED)
    if not isinstance(embed, dict):
        raise InvalidTaskMessage(f"embed is {safe_repr(embed, 100)}, not an object")
    checked: dict[str, Any] = {}
    for name in NO_EMBED:
        value = embed.get(name)
        calls = [value] if name == "chord" and value is not None else value
        if calls is not None and not (isinstance(calls, list | tuple) and all(map(_is_signature, calls))):
            raise InvalidTaskMessage(f"embedded {name} is {safe_repr(value, 100)}, not made of signatures")
        checked[name] = value
    return checked


def _is_signature(value: Any) -> bool:
    return isinstance(value, dict) and valid_id(value.get("task"))


__all__ = [
    "HEADERS",
    "MAX_HEADERS",
    "MAX_ID",
    "NO_EMBED",
    "Body",
    "EncodedMessage",
    "Verifier",
    "body_of",
    "check_headers",
    "decode_body",
    "decode_payload",
    "parse_headers",
    "parse_properties",
    "read_object",
    "valid_id",
    "without_empty",
]  # fmt: skip
