"""Stamping: headers that a workflow's calls carry with them, for whoever looks at its tasks later.

Comes from:  ``Signature.stamp()``, with names and values, or a visitor that says them for each call; and the
             stamps of a task, for what follows it.
Goes to:     options of the signatures, as Celery has them: each stamp by its name, and ``stamped_headers``,
             which lists the names.
Thread:      any; signatures are changed, the members of a workflow are copied first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.canvas.signatures import Signature

NAMES = "stamped_headers"
"""The option that lists the names of the stamps. A call that has it has been stamped, if only with none."""


class StampingVisitor(ABC):
    """Says which stamps the parts of a workflow get: see ``Signature.stamp``.

    Each method gets the part and, by name, the stamps that it has from what it is in. It returns further
    ones, whose names are all its keys, or those in its ``stamped_headers``.
    """

    __module__ = "qworker.canvas"

    @abstractmethod
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        """The stamps of a call."""

    def on_group_start(self, group: Any, **headers: Any) -> dict[str, Any]:
        """The stamps of all in a group."""
        return {}

    def on_group_end(self, group: Any, **headers: Any) -> None:  # noqa: B027 - visitors may pass over it
        """All in the group have been stamped."""

    def on_chain_start(self, chain: Any, **headers: Any) -> dict[str, Any]:
        """The stamps of all in a chain."""
        return {}

    def on_chain_end(self, chain: Any, **headers: Any) -> None:  # noqa: B027 - the same
        """All in the chain have been stamped."""

    def on_chord_header_start(self, sig: Any, **header: Any) -> dict[str, Any]:
        """The stamps of all in a chord; on_group_start() says them, for its header."""
        return self.on_group_start(sig.header, **header)

    def on_chord_header_end(self, sig: Any, **header: Any) -> None:
        """All in the header of a chord have been stamped."""
        self.on_group_end(sig.header, **header)

    def on_chord_body(self, sig: Any, **header: Any) -> dict[str, Any]:
        """Further stamps of the body of a chord."""
        return {}

    def on_callback(self, callback: Any, **header: Any) -> dict[str, Any]:
        """Further stamps of what is called with a result (``link``)."""
        return {}

    def on_errback(self, errback: Any, **header: Any) -> dict[str, Any]:
        """Further stamps of what is called after a failure (``link_error``)."""
        return {}


class Nothing(StampingVisitor):
    """Says no stamps: all that there are, are given by name."""

    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {}


def stamp(sig: Any, visitor: StampingVisitor, append: bool, given: Mapping[str, Any]) -> Any:
    """Stamp *sig* and all in it; return it. See ``Signature.stamp``."""
    kind, options, kwargs = sig["subtask_type"], sig["options"], sig["kwargs"]
    if kind == "chain":
        given = _stamps(given, visitor.on_chain_start(sig, **given), append, options)
        stamp_links(sig, visitor, append, given)
        kwargs["tasks"] = _stamped(sig, kwargs["tasks"], visitor, append, given)
        visitor.on_chain_end(sig, **given)
    elif kind == "group":
        given = _stamps(given, visitor.on_group_start(sig, **given), append, options)
        stamp_links(sig, visitor, append, given)
        kwargs["tasks"] = _stamped(sig, kwargs["tasks"], visitor, append, given)
        visitor.on_group_end(sig, **given)
    elif kind == "graph":  # Celery has none; its nodes are a group's members
        given = _stamps(given, visitor.on_group_start(sig, **given), append, options)
        stamp_links(sig, visitor, append, given)
        nodes = _stamped(sig, kwargs["nodes"].values(), visitor, append, given)
        kwargs["nodes"] = dict(zip(kwargs["nodes"], nodes, strict=True))
        visitor.on_group_end(sig, **given)
    elif kind == "chord":
        given = _stamps(given, visitor.on_chord_header_start(sig, **given), append, options)
        stamp_links(sig, visitor, append, given)
        kwargs["header"] = header = _copy(sig, sig.header)
        header.tasks = _stamped(sig, header.tasks, visitor, append, given)
        visitor.on_chord_header_end(sig, **given)
        if kwargs["body"] is not None:
            further = visitor.on_chord_body(sig, **given)
            given = _stamps(given, further, append, options)
            (kwargs["body"],) = _stamped(sig, [kwargs["body"]], visitor, append, given)
    else:
        stamp_links(sig, visitor, append, given)
        options.update(_stamps(given, visitor.on_signature(sig, **given), append, options))
    return sig


def stamp_links(sig: Signature, visitor: StampingVisitor, append: bool, given: Mapping[str, Any]) -> None:
    """Stamp the callbacks and errbacks of *sig*."""
    for option in ("link", "link_error"):
        linked = sig["options"].get(option)
        if not linked:
            continue
        links = [_copy(sig, each) for each in (linked if isinstance(linked, list | tuple) else [linked])]
        for each in links:
            tell = visitor.on_callback if option == "link" else visitor.on_errback
            stamp(each, visitor, append, _stamps(given, tell(each, **given), append, {}))
        sig["options"][option] = links


def hand_on(sig: Any, names: list[str], stamps: Mapping[str, Any]) -> None:
    """Give *sig*, and all in it, the *stamps* with these *names*, but for what has been stamped itself."""
    kwargs = sig["kwargs"]
    if sig["subtask_type"] in ("chain", "group"):
        kwargs["tasks"] = _handed_on(sig, kwargs["tasks"], names, stamps)
    elif sig["subtask_type"] == "graph":
        nodes = _handed_on(sig, kwargs["nodes"].values(), names, stamps)
        kwargs["nodes"] = dict(zip(kwargs["nodes"], nodes, strict=True))
    elif sig["subtask_type"] == "chord":
        (kwargs["header"],) = _handed_on(sig, [sig.header], names, stamps)
        if kwargs["body"] is not None:
            (kwargs["body"],) = _handed_on(sig, [kwargs["body"]], names, stamps)
    elif NAMES not in sig["options"]:
        sig["options"].update({NAMES: names, **{name: stamps[name] for name in names if name in stamps}})


def unstamped(options: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of *options* that do not stand in the way of the stamps among a call's *own*."""
    if NAMES not in own:
        return options
    names = own[NAMES] if isinstance(own[NAMES], list | tuple) else ()
    return {
        name: value
        for name, value in options.items()
        if name not in own or (name != NAMES and name not in names)
    }


def _handed_on(sig: Signature, tasks: Any, names: list[str], stamps: Mapping[str, Any]) -> list[Any]:
    copies = [_copy(sig, each) for each in tasks]
    for each in copies:
        hand_on(each, names, stamps)
    return copies


def _stamped(
    sig: Signature, tasks: Any, visitor: StampingVisitor, append: bool, given: Mapping[str, Any]
) -> list[Any]:
    copies = [_copy(sig, each) for each in tasks]
    for each in copies:
        stamp(each, visitor, append, given)
    return copies


def _copy(sig: Signature, part: Any) -> Any:
    """A copy of *part*, which stands in *sig*."""
    return part.clone() if hasattr(part, "clone") else sig.from_dict(part, sig._app)


def _stamps(
    given: Mapping[str, Any], further: Mapping[str, Any] | None, append: bool, own: Mapping[str, Any]
) -> dict[str, Any]:
    """The stamps that are *given*, with *further* ones and those among the options *own*, and their names.

    Of two with one name the first stands; append: it becomes a list of both.
    """
    further = further or {}
    names = [*_names(given), *_names(further), *(own.get(NAMES) or ())]
    stamps = {name: value for name, value in given.items() if name != NAMES}
    for more in (further, {name: own[name] for name in names if name in own}):
        for name, value in more.items():
            if name != NAMES:
                stamps[name] = _both(stamps[name], value, append) if name in stamps else value
    return {**stamps, NAMES: list(dict.fromkeys(names))}


def _names(stamps: Mapping[str, Any]) -> list[str]:
    return list(stamps.get(NAMES, stamps))


def _both(one: Any, other: Any, append: bool) -> Any:
    """What stands for two stamps of one name."""
    if isinstance(one, Mapping):
        if not isinstance(other, Mapping):
            return one
        common = {name: _both(value, other[name], append) for name, value in one.items() if name in other}
        return {**other, **one, **common}
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    if not append:
        return one
    if isinstance(one, int | float | str):
        return [one, *other] if isinstance(other, list) else [one, other]
    return [*(one or ()), other]
