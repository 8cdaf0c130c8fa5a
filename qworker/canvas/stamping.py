"""Stamping: headers for all calls of a workflow, to find its tasks later.

Comes from:  ``Signature.stamp()``, with names and values, or a visitor that returns them for each call; the
             stamps of a task, for the calls that follow it.
Goes to:     options of the signatures in Celery's format: each stamp by name, and ``stamped_headers``, the
             list of names.
Thread:      any; signatures are changed, but members of a workflow are copied first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

NAMES = "stamped_headers"
"""The option that lists the names of the stamps. A call with this option has been stamped, possibly without
stamps."""


class StampingVisitor(ABC):
    """Chooses stamps for the parts of a workflow: see ``Signature.stamp``.

    Each method gets the part and, by name, the stamps inherited from the enclosing part. It returns a dict of
    additional stamps: all its keys, or only those listed in its ``stamped_headers``.
    """

    __module__ = "qworker.canvas"

    @abstractmethod
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        """Return stamps for a call."""

    def on_group_start(self, group: Any, **headers: Any) -> dict[str, Any]:
        """Return stamps for all calls in a group."""
        return {}

    def on_group_end(self, group: Any, **headers: Any) -> None:  # noqa: B027 - optional for visitors
        """Called when all calls in the group have been stamped."""

    def on_chain_start(self, chain: Any, **headers: Any) -> dict[str, Any]:
        """Return stamps for all calls in a chain."""
        return {}

    def on_chain_end(self, chain: Any, **headers: Any) -> None:  # noqa: B027 - optional for visitors
        """Called when all calls in the chain have been stamped."""

    def on_chord_header_start(self, sig: Any, **header: Any) -> dict[str, Any]:
        """Return stamps for all calls in a chord; by default those of on_group_start() for its header."""
        return self.on_group_start(sig.header, **header)

    def on_chord_header_end(self, sig: Any, **header: Any) -> None:
        """Called when all calls in the header of a chord have been stamped."""
        self.on_group_end(sig.header, **header)

    def on_chord_body(self, sig: Any, **header: Any) -> dict[str, Any]:
        """Return additional stamps for the body of a chord."""
        return {}

    def on_callback(self, callback: Any, **header: Any) -> dict[str, Any]:
        """Return additional stamps for a callback (``link``)."""
        return {}

    def on_errback(self, errback: Any, **header: Any) -> dict[str, Any]:
        """Return additional stamps for an errback (``link_error``)."""
        return {}


class Nothing(StampingVisitor):
    """A visitor that adds no stamps."""

    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {}


def stamp(sig: Any, visitor: StampingVisitor, append: bool, given: Mapping[str, Any]) -> Any:
    """Stamp *sig* and everything in it; return it. See ``Signature.stamp``."""
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
    elif kind == "graph":  # not in Celery; nodes are stamped like members of a group
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


def stamp_links(sig: Any, visitor: StampingVisitor, append: bool, given: Mapping[str, Any]) -> None:
    """Stamp the callbacks and errbacks of *sig*."""
    for option in ("link", "link_error"):
        linked = sig["options"].get(option)
        if not linked:
            continue
        links = [_copy(sig, each) for each in (linked if isinstance(linked, list | tuple) else [linked])]
        for each in links:
            visit = visitor.on_callback if option == "link" else visitor.on_errback
            stamp(each, visitor, append, _stamps(given, visit(each, **given), append, {}))
        sig["options"][option] = links


def hand_on(sig: Any, names: list[str], stamps: Mapping[str, Any]) -> None:
    """Add the *stamps* with these *names* to *sig* and everything in it, except calls stamped themselves."""
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
    """Return the *options* without those that conflict with the stamps in a call's *own* options."""
    if NAMES not in own:
        return options
    names = own[NAMES] if isinstance(own[NAMES], list | tuple) else ()
    return {
        name: value
        for name, value in options.items()
        if name not in own or (name != NAMES and name not in names)
    }


def _handed_on(sig: Any, tasks: Any, names: list[str], stamps: Mapping[str, Any]) -> list[Any]:
    copies = [_copy(sig, each) for each in tasks]
    for each in copies:
        hand_on(each, names, stamps)
    return copies


def _stamped(
    sig: Any, tasks: Any, visitor: StampingVisitor, append: bool, given: Mapping[str, Any]
) -> list[Any]:
    copies = [_copy(sig, each) for each in tasks]
    for each in copies:
        stamp(each, visitor, append, given)
    return copies


def _copy(sig: Any, part: Any) -> Any:
    """Return a copy of *part*, which is in *sig*."""
    return part.clone() if hasattr(part, "clone") else sig.from_dict(part, sig._app)


def _stamps(
    given: Mapping[str, Any], further: Mapping[str, Any] | None, append: bool, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the *given* stamps, with *further* ones and those in the options *own*, and their names. Of two
    with the same name, the first is kept; append: they are combined in a list."""
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
    """Combine two stamps of the same name."""
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
