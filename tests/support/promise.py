"""What wrappers of a broker do with each member of the promise: pass it on, or withhold it by name.

Comes from:  ``qworker.transports.lease``.
Goes to:     the tests of those that stand between a worker and a broker.
Thread:      the test's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qworker.transports.lease import Ack, Admin, Broker, Claim, Consumer, Sender

SIDES = ("sender", "consumer", "admin")
MEMBERS: dict[type, tuple[str, ...]] = {
    side: tuple(
        name
        for name in dict.fromkeys((*side.__annotations__, *vars(side)))
        if not name.startswith("_")
        and name not in SIDES
        and not getattr(getattr(side, name, None), "__final__", False)
    )
    for side in (Sender, Consumer, Admin, Broker)
}
"""The names that each side of the promise has."""

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "push": ([],),
    "revoke": (["a"],),
    "join": (object(),),
    "register": ("w", ["q"], 1),
    "present": ("text",),
    "lease": (["q"], 1),
    "look": ("q",),
    "unbind": ("q",),
    "settle": (0, [Ack(1)]),
    "settled_before": ([1],),
    "wait": (0.0,),
    "revoked_since": (0,),
    "sweep": ("dead", 1.0, 1),
    "depths": (["q"],),
    "next_due": (["q"],),
    "may_have_due_joins": (1.0,),
    "peek": ("q", "ready", 1),
    "purge": ("q",),
    "flush_delayed": ("q",),
}
_ANSWERS: dict[str, Any] = {
    "register": 1,
    "lease": Claim([]),
    "look": Claim([]),
    "settle": set(),
    "settled_before": (),
    "revoked_since": (0, []),
    "wait": False,
    "depths": [],
    "sweep": 0,
    "reclaim": [],
}
_VALUES: dict[str, Any] = {
    "url": "inner://",
    "lacks": frozenset(),
    "lowest_first": False,
    "silent_seconds": 1.0,
    "prefetched": False,
    "purges_leased": False,
    "letters": {},
    "registry": None,
    "missing": None,
}


class Noting:
    """A broker that does nothing and notes what is asked of it, in ``asked``."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    @property
    def sender(self) -> Noting:
        return self

    consumer = admin = sender

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        if name in _VALUES:
            return _VALUES[name]
        return lambda *args, **more: _ANSWERS.get(name)


def forgotten(wrapper: Any, inner: Noting, withheld: Iterable[str]) -> list[str]:
    """The members that *wrapper* neither asks *inner* for, whenever they are used, nor withholds."""
    found = []
    withheld = set(withheld)
    made_with = set(inner.asked)
    for side, members in MEMBERS.items():
        part = wrapper if side is Broker else getattr(wrapper, side.__name__.lower())
        for name in sorted(members, key=lambda name: name in ("close", "deregister")):
            inner.asked.clear()
            value = getattr(part, name)
            if callable(value):
                value(*_ARGUMENTS.get(name, ()))
            passed = name in inner.asked or (side is Broker and name in made_with)
            if passed == (name in withheld):
                found.append(f"{name} is {'withheld by name, and passed on' if passed else 'forgotten'}")
    return found


def not_defined(wrapper: type, sides: Iterable[type], withheld: Iterable[str]) -> list[str]:
    """The members of *sides* that the class *wrapper* leaves as they are there, and does not withhold."""
    own = {name for each in wrapper.__mro__ if each.__module__ == wrapper.__module__ for name in vars(each)}
    wanted = {name for side in sides for name in MEMBERS[side]} - {"url"}
    return sorted(wanted - own - set(withheld)) + sorted(own & set(withheld))
