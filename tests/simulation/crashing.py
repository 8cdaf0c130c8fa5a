"""crashing: the crash points of qworker that nodes of a world can reach.

Comes from:  the source of qworker; ``run``, for cases with a fault "die".
Goes to:     ``drawing``, by the names of points; the process that reaches one.
Thread:      any.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from unittest import mock

from qworker.backends.keyvalue import joins as keyvalue_joins
from qworker.backends.sql import joins as sql_joins
from qworker.beat import store, store_sql
from qworker.components.ending import joiner
from qworker.components.receiving import ack_buffer, listener
from qworker.components.waiting import early_acks, inventory, mediator
from qworker.publishing import workflows
from qworker.tasks import replacement
from qworker.transports.sql.embedded import consumer, join_rows, sender
from tests.simulation.stores import STORES

CALL = re.compile(r"""\bcrash_point\("([^"]+)"\)""")
MODULES = (
    listener, ack_buffer, early_acks, inventory, mediator, joiner, replacement, workflows, consumer, sender,
    join_rows, sql_joins, keyvalue_joins, store_sql, store,
)  # fmt: skip


@cache
def points(stores: str, role: str) -> tuple[str, ...]:
    """Return the names of the points that a "worker", "caller" or "beat" of a world with *stores* reaches."""
    messages, results = STORES[stores]
    embedded = messages == "sqlite"
    if role == "beat":
        return _names(store_sql, store, *([sender] if embedded else []))
    if role == "caller":
        return _names(workflows, *([sender] if embedded else []))
    if stores == "django":
        return ("schedules-sent", *_names(listener, ack_buffer, inventory, mediator, consumer))
    return _names(
        *(listener, ack_buffer, early_acks, inventory, mediator, joiner, replacement, workflows),
        *([consumer, sender] if embedded else []),
        *({"sqlite": [sql_joins], "other": [sql_joins], "disabled": []}.get(results, [keyvalue_joins])),
    )


@cache
def _names(*modules: ModuleType) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in modules for name in CALL.findall(inspect.getsource(each))))


@contextmanager
def reaching(reached: Callable[[str], None]) -> Iterator[None]:
    """Within the block, call *reached* with the name of each crash point that is reached."""
    with ExitStack() as stack:
        project = sys.modules.get("qworker.django.clusters.scheduling")  # needs Django
        for module in (*MODULES, *([project] if project else [])):
            stack.enter_context(mock.patch.object(module, "crash_point", reached))
            if hasattr(module, "CRASHING"):
                stack.enter_context(mock.patch.object(module, "CRASHING", True))
        yield
