"""Checks that wrappers of a broker pass on each member of its interface, or withhold it by name.

Comes from:  ``qworker.transports.lease``: the *promise* is the interface in ``Broker.__init__``.
Goes to:     the tests of wrappers between a worker and a broker.
Thread:      the test's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from qworker.transports.lease import Ack, Admin, Broker, Claim, Consumer, Kind, Sender

KINDS: tuple[str, ...] = get_args(Kind)


def _parts(hint: Any) -> dict[str, type]:
    """The objects of a field of Broker with the type *hint*, by their places in it ("": itself); {} for a
    value."""
    (kind,) = [one for one in get_args(hint) if one is not type(None)] if _is_union(hint) else [hint]
    if get_origin(kind) is Mapping:  # of kind and letters; for lacks it is a set
        return dict.fromkeys(KINDS, get_args(kind)[1])
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {each.name: hints[each.name] for each in fields(kind)}
    return {"": kind} if getattr(kind, "__abstractmethods__", None) else {}


def _is_union(hint: Any) -> bool:
    return get_origin(hint) is UnionType


FIELDS: dict[str, dict[str, type]] = {
    name: _parts(hint) for name, hint in get_type_hints(Broker.__init__).items() if name != "return"
}
"""The fields of a broker, and the objects in each."""
BESIDES = tuple(
    name
    for name, what in vars(Broker).items()
    if not name.startswith("_") and name not in FIELDS and (callable(what) or isinstance(what, property))
)
"""Other methods of a broker."""


def members(part: type) -> list[str]:
    """The names of *part* of the promise, except those implemented once for all brokers."""
    return [
        name
        for name in dict.fromkeys((*part.__annotations__, *vars(part)))
        if not name.startswith("_") and not getattr(getattr(part, name, None), "__final__", False)
    ]


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
    "in_doubt": ([1],),
    "wait": (0.0,),
    "revoked_since": (0,),
    "sweep": ("dead", 1.0, 1),
    "depths": (["q"],),
    "next_due": (["q"],),
    "may_have_due_joins": (1.0,),
    "peek": ("q", "ready", 1),
    "purge": ("q",),
    "flush_delayed": ("q",),
    "page": (None, 1, None),
    "send_again": ([],),
    "put": ({},),
    "drop": ([],),
}
_ANSWERS: dict[str, Any] = {
    "register": 1,
    "lease": Claim([]),
    "look": Claim([]),
    "settle": set(),
    "settled_before": (),
    "in_doubt": (),
    "revoked_since": (0, []),
    "wait": False,
    "newest": [],
    "depths": [],
    "sweep": 0,
    "reclaim": [],
    "page": [],
    "entries": {},
}
_VALUES: dict[str, Any] = {
    "url": "inner://",
    "lacks": frozenset(),
    "lowest_first": False,
    "silent_seconds": 1.0,
    "prefetched": False,
    "purges_leased": False,
    "missing": None,
    "portion": 1,
}
OF_LETTERS = "newest"
"""Implemented by pages, for all brokers."""


class RecordingBroker:
    """A broker that does nothing but record calls in ``asked``. It is also each of its parts."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        if name in _VALUES:
            return _VALUES[name]
        parts = FIELDS.get(name)
        if parts is None:
            return lambda *args, **more: _ANSWERS.get(name)
        if "" in parts:
            return self
        if set(parts) == set(KINDS):
            return dict.fromkeys(KINDS, self)
        (kind,) = [one for one in get_args(get_type_hints(Broker.__init__)[name]) if is_dataclass(one)]
        return kind(*(self for _ in parts))


def _objects(part: Any, places: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for place in places:
        if not place:
            yield place, part
        elif isinstance(part, Mapping):
            yield place, part.get(place)
        else:
            yield place, getattr(part, place)


def missing_members(
    wrapper: Any,
    inner: RecordingBroker,
    withheld: Iterable[str],
    promise: Mapping[str, Mapping[str, type]] = FIELDS,
    besides: Iterable[str] = BESIDES,
) -> list[str]:
    """The members of *promise* that *wrapper* neither asks *inner* for, whenever they are used, nor
    withholds, by the name of the field or of the member. besides: what else a broker does."""
    passed: dict[str, bool] = {}
    made_with = set(inner.asked)

    def use(thing: Any, name: str) -> bool:
        inner.asked.clear()
        value = getattr(thing, name, None)
        if callable(value):
            value(*_ARGUMENTS.get(name, ()))
        # Pages may be implemented with newest().
        asked = name in inner.asked or (name == "page" and "newest" in inner.asked)
        return asked or (not callable(value) and name in made_with)

    last = ("close", "deregister")
    for field, places in promise.items():
        part = getattr(wrapper, field)
        if not places:
            passed[field] = field in made_with or use(wrapper, field)
        elif part is None:
            passed[field] = False
        else:
            for place, thing in _objects(part, places):
                if thing is None:
                    passed[place] = False
                    continue
                names = [name for name in members(places[place]) if name != OF_LETTERS]
                for name in sorted(names, key=lambda name: name in last):
                    word = field if field in set(withheld) else name
                    passed[word] = passed.get(word, False) or thing is inner or use(thing, name)
    for name in besides:
        passed[name] = use(wrapper, name)
    unknown = set(withheld) - set(passed)
    return [f"{name} is withheld, and is no part of the promise" for name in sorted(unknown)] + [
        f"{name} is {'withheld by name, and passed on' if went else 'forgotten'}"
        for name, went in passed.items()
        if went == (name in set(withheld))
    ]


def not_defined(wrapper: type, sides: Iterable[type], withheld: Iterable[str]) -> list[str]:
    """The members of *sides* that the class *wrapper* neither overrides nor withholds."""
    own = {name for each in wrapper.__mro__ if each.__module__ == wrapper.__module__ for name in vars(each)}
    wanted = {name for side in sides for name in members(side)}
    return sorted(wanted - own - set(withheld)) + sorted(own & set(withheld))


__all__ = [
    "FIELDS",
    "Admin",
    "Consumer",
    "RecordingBroker",
    "Sender",
    "members",
    "missing_members",
    "not_defined",
]
