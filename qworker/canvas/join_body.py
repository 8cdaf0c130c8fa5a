"""Bodies of joins: the call that follows, and how it gets the values of the members.

Comes from:  the plan, which writes them; the result store keeps them, encoded and signed.
Goes to:     the worker's joiner, which makes the call when the last member has ended.
Thread:      any; pure.

The body of a chord gets one list, and is written as the bare signature. Every other is written as
``{"call": signature, "values": "one" or [argument, …], "always": true}``. With a security_key there is
``"members"`` beside it: how many members there are, and a signature of their ids. ``"tentative": true``
stands beside it where the members may never be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.canvas.signatures import Signature

if TYPE_CHECKING:
    from qworker.app import QWorker

ONE = "one"


class JoinBody(NamedTuple):
    """What follows a join.

    - call: a signature.
    - names: for each member, by its number, the keyword argument that its value is; None: it is not given.
      None for all: the values are the first argument.
    - one: there is one member, and the first argument is its bare value. Else it is the list of all.
    - always: it is called although a member has failed, whose argument is None then.
    - members: who they are, as ``publishing/bodies.py`` writes it; None: nothing says so.
    - tentative: the members were published in a transaction that may have been rolled back, after which
      nobody is to hear of this.
    """

    call: Signature
    names: Sequence[str | None] | None = None
    one: bool = False
    always: bool = False
    members: str | None = None
    tentative: bool = False

    @property
    def of_chord(self) -> bool:
        """It is the body of a chord: when a member fails, it is told so. Any other fails along."""
        return self.names is None and not self.one

    def fields(self) -> dict[str, Any]:
        """It as plain data, for the result store."""
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
        """Whether the call gets the value of the member *number*."""
        return self.names is None or self.names[number] is not None

    def arguments(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What *values*, one for each member, are as the arguments ``(args, kwargs)`` of the call. Raises
        ValueError when there are more or fewer than it was written for."""
        if self.names is not None:
            pairs = zip(self.names, values, strict=True)
            return (), {name: value for name, value in pairs if name is not None}
        if not self.one:
            return (list(values),), {}
        (value,) = values
        return (value,), {}


def read(fields: Any, app: QWorker) -> JoinBody:
    """Undo fields(). Raises TypeError, LookupError or PublishError for what it has not written."""
    members = fields.get("members")
    if not isinstance(members, str | None):
        raise TypeError("it does not say who the members are")
    tentative = fields.get("tentative") is True
    if "task" in fields:
        call = {name: value for name, value in fields.items() if name not in ("members", "tentative")}
        return JoinBody(Signature.from_dict(call, app), None, False, False, members, tentative)
    call, values = Signature.from_dict(fields["call"], app), fields["values"]
    always = fields.get("always") is True
    if values == ONE:
        return JoinBody(call, None, True, always, members, tentative)
    if not isinstance(values, list | tuple) or not all(isinstance(name, str | None) for name in values):
        raise TypeError("it does not say which arguments the values are")
    return JoinBody(call, values, False, always, members, tentative)
