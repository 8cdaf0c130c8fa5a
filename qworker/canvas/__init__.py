"""Canvas: calls that are not made yet, and how they are joined.

Modules, in reading order: ``signature`` (one call), ``group`` (calls beside each other), ``chord`` (a
group, and what gets its values), ``chain`` (one call after another), ``mapping`` (one call for many items),
``graph`` (calls of which each may wait for several others), ``stamping`` (headers that calls carry along),
``plan`` (what a workflow publishes now, and which joins it opens), ``join_body`` (what follows a join, and
how it gets the values of the members), ``membership`` (of which joins a call is a part).
"""

from __future__ import annotations

from qworker.canvas.chain import chain
from qworker.canvas.chord import chord
from qworker.canvas.graph import graph
from qworker.canvas.group import group
from qworker.canvas.mapping import chunks, xmap, xstarmap
from qworker.canvas.signature import Signature, maybe_signature, signature
from qworker.canvas.stamping import StampingVisitor

subtask = signature
maybe_subtask = maybe_signature

__all__ = [
    "Signature",
    "StampingVisitor",
    "chain",
    "chord",
    "chunks",
    "graph",
    "group",
    "maybe_signature",
    "signature",
    "subtask",
    "xmap",
    "xstarmap",
]
