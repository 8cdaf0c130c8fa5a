"""The page that ``benchmarks.faults`` writes: outcomes as tables, one a broker.

Comes from:  outcomes as dicts.
Goes to:     docs/explanation/faults.md.
"""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

HEAD = """# What faults cost

These figures come from `python -m benchmarks.faults`, run on {date} ({machine}). It needs a clone of the
repository, with `pip install -e ".[test,redis,postgresql]"`, and the servers' programs. Each row is one run
of one worker with two processes, started again a second after it ends, on a server of its own, while a
producer makes eight calls a second of a task that takes 0.2 s.

- **accepted** and **refused**: calls that returned, and calls that raised. A call that had not returned
  45 s after the fault (*the call hangs*) ended its run: how the worker would have behaved is not known.
- **lost**: accepted calls that had not run 45 s after the last of them. Celery with late acks returns the
  messages of a dead worker on Redis, but only after its `visibility_timeout`, which is an hour by default.
- **repeated**: runs beyond the first.
- **back**: seconds from the end of the fault until tasks start one after the other again.

The other systems run with their defaults, on the same servers; *celery late* is Celery with `task_acks_late`
and `task_reject_on_worker_lost`. Several rows were measured at a time on a busy machine of two cores, once
each, so only their order of magnitude is meaningful.

[Delivery guarantees](delivery-guarantees.md) describes qworker's guarantees. The test suite injects the same
faults, and more, into every broker (`tests/acceptance/test_broker_faults.py`), and
`python -m tests.acceptance.nemesis` injects random ones by seed.
"""
NAMES = {"redis": "Redis", "rabbitmq": "RabbitMQ", "postgresql": "PostgreSQL"}


def page(outcomes: Sequence[Mapping[str, Any]], faults: Sequence[str]) -> str:
    """The whole page. Brokers and systems come in the order in which they were measured."""
    parts = [
        HEAD.format(
            date=datetime.now(UTC).date(), machine=f"{platform.machine()}, Python {platform.python_version()}"
        )
    ]
    for broker in dict.fromkeys(outcome["broker"] for outcome in outcomes):
        here = [outcome for outcome in outcomes if outcome["broker"] == broker]
        lines = [
            f"## {NAMES[broker]}",
            "",
            "| fault | system | accepted | refused | lost | repeated | back |",
            "|---|---|--:|--:|--:|--:|--:|",
        ]
        for fault in faults:
            for outcome in (one for one in here if one["fault"] == fault):
                back = "not within 45 s" if outcome["recovered"] is None else f"{outcome['recovered']:.1f} s"
                if outcome["hung"]:
                    back = "the call hangs"
                lines.append(
                    f"| {fault} | {outcome['system']} | {outcome['accepted']} | {outcome['refused']} | "
                    f"{outcome['lost']} | {outcome['repeated']} | {back} |"
                )
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
