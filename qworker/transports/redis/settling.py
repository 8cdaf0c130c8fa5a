"""Settlements as the script SETTLE takes them: a letter for each, flattened.

Comes from:  ``consumer.py``.
Goes to:     the arguments of ``scripts.SETTLE``.
Thread:      any; pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qworker.transports.lease import Ack, DeadLetter, Part, Settlement, Store
from qworker.transports.redis.join_rows import JoinKeys, part_arguments
from qworker.transports.redis.result_rows import row_arguments


def operations(
    settlements: Sequence[Settlement], held: Mapping[int, bytes], now: float, keys: JoinKeys
) -> tuple[list[Any], dict[bytes, int], set[int]]:
    """The arguments for *settlements*; the tags of the fields that they name; and the tags that are not held.

    held: tag → field of what we have on lease. now: epoch seconds. keys: of the result store that
    is here too.
    """
    arguments: list[Any] = []
    tags: dict[bytes, int] = {}
    lost: set[int] = set()
    prefix = keys.prefix
    for settlement in settlements:
        if isinstance(settlement, Store):
            if settlement.row is None:
                arguments += ("store nothing",)
            else:
                arguments += ("store", *row_arguments(settlement.row, now, prefix))
            if settlement.parts:
                arguments += _parts(settlement.parts, keys)
            continue
        tag = settlement.tag
        field = held.get(tag)
        if field is None or field in tags:
            lost.add(tag)
            continue
        tags[field] = tag
        if isinstance(settlement, Ack):
            if settlement.row is None:
                arguments += ("ack", field)
            else:
                arguments += ("ack and store", field, *row_arguments(settlement.row, now, prefix))
            if settlement.parts:
                arguments += _parts(settlement.parts, keys)
        elif isinstance(settlement, DeadLetter):
            place = "failed" if settlement.failed else "dead"
            burial = (field, place, tag, settlement.reason, int(settlement.counted))
            if settlement.row is None:
                arguments += ("dead letter", *burial)
            else:
                arguments += ("dead letter and store", *burial, *row_arguments(settlement.row, now, prefix))
            if settlement.parts:
                arguments += _parts(settlement.parts, keys)
        else:
            again = int(settlement.counted or settlement.redelivered)
            due = "" if settlement.due is None else repr(_number(settlement.due))
            arguments += ("release", field, int(settlement.counted), int(settlement.requeued), again, due)
    return arguments, tags, lost


def _parts(parts: Sequence[Part], keys: JoinKeys) -> Sequence[Any]:
    """The operation that records *parts*, if the one before it found its message."""
    arguments = part_arguments(parts, keys)
    return ("parts", len(arguments), keys.prefix, *arguments)


def _number(due: float) -> float:
    """*due*, unless a script would stop at it, halfway through."""
    if math.isnan(due):
        raise ValueError("no time at which a message is due")
    return float(due)
