"""Canvas: signatures (calls to be made later) and the workflows made of them.

Modules, in reading order: ``options`` (of a call, for type checkers), ``signatures`` (one call), ``checking``
(validating their dicts), ``plain`` (arguments as they are sent), ``groups`` (parallel calls), ``chords`` (a
group, and a body that gets its values), ``chains`` (one call after another), ``mapping`` (one call for many
items), ``graphs`` (calls with dependencies), ``stamping`` (headers passed along), ``plan`` (what a workflow
publishes at once, and which joins it opens), ``join_body`` (the call after a join, and its arguments),
``membership`` (the joins of a call).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.canvas.chains import chain
    from qworker.canvas.chords import chord
    from qworker.canvas.graphs import graph
    from qworker.canvas.groups import group
    from qworker.canvas.mapping import chunks, xmap, xstarmap
    from qworker.canvas.signatures import Signature, maybe_signature, signature
    from qworker.canvas.signatures import maybe_signature as maybe_subtask
    from qworker.canvas.signatures import signature as subtask
    from qworker.canvas.stamping import StampingVisitor

_MODULE_OF = {
    "Signature": "signatures",
    "signature": "signatures",
    "subtask": "signatures",
    "maybe_signature": "signatures",
    "maybe_subtask": "signatures",
    "group": "groups",
    "chord": "chords",
    "chain": "chains",
    "chunks": "mapping",
    "xmap": "mapping",
    "xstarmap": "mapping",
    "graph": "graphs",
    "StampingVisitor": "stamping",
}
"""Loaded lazily: a worker without workflows needs few of them."""
__all__ = [
    "Signature",
    "StampingVisitor",
    "chain",
    "chord",
    "chunks",
    "graph",
    "group",
    "maybe_signature",
    "maybe_subtask",
    "signature",
    "subtask",
    "xmap",
    "xstarmap",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'qworker.canvas' has no attribute {name!r}")
    value = getattr(import_module(f"qworker.canvas.{_MODULE_OF[name]}"), name.replace("subtask", "signature"))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
