"""Bodies of joins: the call that follows a join, and the arguments it gets from the members.

Comes from:  the plan, which writes them; the result store keeps them encoded and signed.
Goes to:     the worker's joiner, which makes the call when the last member ends.
Thread:      any; pure.

The body of a chord gets one list, and is written as a plain signature. Any other body is written as
``{"call": signature, "values": "one" or [argument, …], "always": true}``. With a security_key, ``"members"``
holds the number of members and a signature of their ids. ``"tentative": true`` means that the members may
never be sent. A body whose arguments results cannot contain, or would change, is written by another
serializer, as ``{"content_type": …, "content_encoding": …, "data": bytes}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from qworker.canvas.signatures import Signature
from qworker.contracts import App
from qworker.errors import ConfigurationError, EncodeError, InvalidTaskMessage
from qworker.message.serialization import content_types, decode, encode, plain_calls, serializer_of

ONE = "one"


class JoinBody(NamedTuple):
    """The call that follows a join.

    - call: a signature.
    - names: the keyword argument for the value of each member, by number; None for a value that is not
      passed. None instead of a list: the values are the first argument.
    - one: there is one member, and its value is the first argument, instead of a list.
    - always: the body is called even if a member has failed; that member's argument is None.
    - members: their ids, as written by ``publishing/bodies.py``; None if unknown.
    - tentative: the members were published in a transaction that may have been rolled back. In that case
      the body must not be reported.
    """

    call: Signature
    names: Sequence[str | None] | None = None
    one: bool = False
    always: bool = False
    members: str | None = None
    tentative: bool = False

    @property
    def of_chord(self) -> bool:
        """Return whether this is the body of a chord. Any other body fails with the error of its member."""
        return self.names is None and not self.one

    def fields(self) -> dict[str, Any]:
        """Return it as plain data for the result store."""
        written: dict[str, Any] = {"call": self.call, "values": ONE if self.one else self.names}
        if self.of_chord:
            written = dict(self.call)
        elif self.always:
            written["always"] = True
        if self.members is not None:
            written["members"] = self.members
        if self.tentative:
            written["tentative"] = True
        return written

    def wants(self, number: int) -> bool:
        """Return whether the call gets the value of the member *number*."""
        return self.names is None or self.names[number] is not None

    def arguments(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments ``(args, kwargs)`` of the call for *values*, one for each member. Raises
        ValueError for a wrong number of values."""
        if self.names is not None:
            pairs = zip(self.names, values, strict=True)
            return (), {name: value for name, value in pairs if name is not None}
        if not self.one:
            return (list(values),), {}
        (value,) = values
        return (value,), {}


def storable(fields: Any, app: App) -> Any:
    """Return the *fields* of a body in a form that results can contain.

    They stay unchanged if the serializer of results keeps the arguments as they are. Otherwise they are
    encoded by a serializer in ``accept_content`` that does so. JSON, for example, makes a list of a tuple. If
    all of them change the arguments, the first form that can be read is used. Raises EncodeError if there is
    none.
    """
    of_results = app.conf.result_serializer
    if app.accept <= content_types([of_results]):
        return fields  # which encode_value() may refuse
    plain = plain_calls(fields, arguments=True)
    refused: Exception | None = None
    readable: list[Any] = []
    for name in dict.fromkeys([of_results, *map(serializer_of, sorted(app.accept))]):
        try:
            if name == of_results:
                app.backend.codec.check_encodable(fields)
            content_type, content_encoding, data = encode(plain_calls(fields), name, "the call")
            form = {"content_type": content_type, "content_encoding": content_encoding, "data": data}
            kept = name == "pickle" or _equal(
                decode(data, content_type, content_encoding, frozenset([content_type])), plain
            )
        except (EncodeError, InvalidTaskMessage) as error:  # the latter: it cannot read what it has written
            refused = refused or error
            continue
        readable.append(fields if name == of_results else form)
        if kept:
            return readable[-1]
    if not readable:
        raise refused if isinstance(refused, EncodeError) else EncodeError(str(refused), "the call", "dict")
    return readable[0]


def _equal(one: Any, other: Any) -> bool:
    """Return whether both are equal, with equal types. A signature's arguments may be a list or a tuple."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        if one.keys() != other.keys() or set(map(type, one)) != set(map(type, other)):
            return False
        if "subtask_type" in one and isinstance(one.get("args"), list | tuple):
            one, other = ({**each, "args": list(each["args"] or ())} for each in (one, other))
        return all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def check_message(body: JoinBody, app: App) -> None:
    """Raise EncodeError if the message of *body* cannot be written, which then fails at the call instead of
    after its members. Only looks at single calls whose serializer no route chooses."""
    call = body.call
    if call["subtask_type"] is not None or app.conf.task_routes:
        return
    chosen = call.options.get("serializer") or getattr(app.tasks.get(call.task), "serializer", None)
    with suppress(ConfigurationError):  # for an unknown serializer
        encode(plain_calls([call.args, call.kwargs]), str(chosen or app.conf.task_serializer), "the call")


def read(fields: Any, app: App) -> JoinBody:
    """Undo fields() and storable(). Raises TypeError, LookupError, PublishError, SecurityError or
    InvalidTaskMessage for invalid data."""
    if "data" in fields and "task" not in fields:
        kind, encoding = fields["content_type"], fields["content_encoding"]
        fields = decode(fields["data"], kind, encoding, app.accept)
    members = fields.get("members")
    if not isinstance(members, str | None):
        raise TypeError("it does not name its members")
    tentative = fields.get("tentative") is True
    if "task" in fields:
        call = {name: value for name, value in fields.items() if name not in ("members", "tentative")}
        return JoinBody(Signature.from_dict(call, app), None, False, False, members, tentative)
    call, values = Signature.from_dict(fields["call"], app), fields["values"]
    always = fields.get("always") is True
    if values == ONE:
        return JoinBody(call, None, True, always, members, tentative)
    if not isinstance(values, list | tuple) or not all(isinstance(name, str | None) for name in values):
        raise TypeError("it does not say which of its arguments are the values")
    return JoinBody(call, values, False, always, members, tentative)
