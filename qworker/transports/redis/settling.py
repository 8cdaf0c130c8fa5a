"""Settlements as the script SETTLE takes them: a letter for each, flattened.

Comes from:  ``consumer.py``.
Goes to:     the arguments of ``scripts.SETTLE``.
Thread:      any; pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qworker.transports.lease import Ack, DeadLetter, Settlement, Store
from qworker.transports.redis.result_rows import row_arguments


def operations(
    settlements: Sequence[Settlement], held: Mapping[int, bytes], now: float, prefix: str
) -> tuple[list[Any], dict[bytes, int], set[int]]:
    """The arguments for *settlements*; the tags of the fields that they name; and the tags that are not held.

    held: tag → field of what we have on lease. now: epoch seconds. prefix: of the keys of results.
    """
    arguments: list[Any] = []
    tags: dict[bytes, int] = {}
    lost: set[int] = set()
    for settlement in settlements:
        if isinstance(settlement, Store):
            arguments += ("store", *row_arguments(settlement.row, now, prefix))
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
        elif isinstance(settlement, DeadLetter):
            burial = (field, tag, settlement.reason, int(settlement.counted))
            if settlement.row is None:
                arguments += ("dead letter", *burial)
            else:
                arguments += ("dead letter and store", *burial, *row_arguments(settlement.row, now, prefix))
        else:
            again = int(settlement.counted or settlement.redelivered)
            due = "" if settlement.due is None else repr(_number(settlement.due))
            arguments += ("release", field, int(settlement.counted), int(settlement.parked), again, due)
    return arguments, tags, lost


def _number(due: float) -> float:
    """*due*, unless a script would stop at it, halfway through."""
    if math.isnan(due):
        raise ValueError("no time at which a message is due")
    return float(due)
