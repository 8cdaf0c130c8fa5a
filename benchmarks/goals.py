"""The goals: what the figures of qworker must reach on each broker, in itself and beside the peers of the
same run.

A table and nothing else. Goals that name a peer travel to other machines; the others are for two cores such
as the report names. `aim` is what to try for once the goals are met.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.metrics import METRICS


@dataclass(frozen=True)
class Goal:
    """What a figure must reach: a bound by itself, or `bound` times the figure of `peer` in the same run."""

    bound: float
    peer: str = ""


@dataclass(frozen=True)
class Target:
    """The goals of one figure of `subject`; all must hold. `aim` is what to try for after that."""

    metric: str
    goals: tuple[Goal, ...]
    aim: Goal | None = None
    subject: str = "qworker"
    floor: bool | None = None

    @property
    def at_least(self) -> bool:
        """Whether the figure must be at or above its goals, rather than at or below."""
        return self.floor if self.floor is not None else METRICS[self.metric].better == "higher"


def _everywhere(subject: str, memory: float = 45.0) -> Iterator[Target]:
    """What holds on any server: the processor goes to the tasks, ETA tasks are in nobody's way, stops are
    quick."""
    yield Target("cpu1_efficiency", (Goal(0.85),), Goal(0.92), subject)
    yield Target("cpu10_efficiency", (Goal(0.88),), Goal(0.95), subject)
    yield Target("eta_late_p99", (Goal(250),), Goal(50), subject)
    yield Target("eta_earliest", (Goal(0),), subject=subject, floor=True)
    yield Target("eta_pss_growth", (Goal(10),), Goal(1), subject)
    yield Target("behind_eta", (Goal(10),), subject=subject)
    yield Target("beside_worst", (Goal(10),), subject=subject)
    yield Target("idle_pss", (Goal(memory),), Goal(33), subject)
    yield Target("start_seconds", (Goal(0.35),), Goal(0.2), subject)
    yield Target("stop_beyond", (Goal(0.1),), subject=subject)
    yield Target("stop_finished", (Goal(1),), subject=subject, floor=True)


EMBEDDED: tuple[Target, ...] = (
    Target("noop_rate", (Goal(2.5, "huey-sqlite"), Goal(30, "celery-sqlalchemy")), Goal(20_000)),
    Target("stored_rate", (Goal(2.5, "huey-sqlite"),), Goal(4, "huey-sqlite")),
    Target("enqueue_rate", (Goal(1, "huey-sqlite"),)),
    Target("enqueue_rate", (Goal(3, "huey-sqlite"),), subject="qworker-normal"),
    Target("bulk_rate", (Goal(60_000),), Goal(150_000)),
    Target("latency_p50", (Goal(1.0),), Goal(0.5)),
    Target("latency_p99", (Goal(4.0),)),
    Target("cpu1_efficiency", (Goal(0.85),), Goal(0.92)),
    Target("cpu10_efficiency", (Goal(0.90),), Goal(0.95)),
    Target("eta_late_p99", (Goal(250),), Goal(50)),
    Target("eta_earliest", (Goal(0),), floor=True),
    Target("eta_pss_growth", (Goal(10),), Goal(1)),
    Target("behind_eta", (Goal(10),)),
    Target("beside_worst", (Goal(10),)),
    Target("idle_pss", (Goal(40),), Goal(33)),
    Target("idle_cpu", (Goal(0.1),)),
    Target("idle_written", (Goal(0),)),
    Target("start_seconds", (Goal(0.4),), Goal(0.2)),
    Target("stop_beyond", (Goal(0.1),)),
    Target("stop_finished", (Goal(1),), floor=True),
)

REDIS = (
    Target("noop_rate", (Goal(10, "celery-redis"), Goal(1.3, "huey-redis")), Goal(20_000), "qworker-redis"),
    Target(
        "stored_rate", (Goal(6.5, "celery-redis"), Goal(1.3, "huey-redis")), Goal(10_000), "qworker-redis"
    ),
    Target("enqueue_rate", (Goal(3, "celery-redis"), Goal(12_000)), Goal(20_000), "qworker-redis"),
    Target("bulk_rate", (Goal(80_000),), Goal(100_000), "qworker-redis"),
    Target("latency_p50", (Goal(0.5),), Goal(0.4), "qworker-redis"),
    Target("latency_p99", (Goal(1.8),), Goal(1.0), "qworker-redis"),
    Target("chain_time", (Goal(1 / 3, "celery-redis"),), Goal(1 / 5, "celery-redis"), "qworker-redis"),
    Target("chord_time", (Goal(1 / 5, "celery-redis"),), Goal(1 / 10, "celery-redis"), "qworker-redis"),
    Target("group_publish_rate", (Goal(50_000),), subject="qworker-redis"),
    Target("group_collect_rate", (Goal(15_000),), subject="qworker-redis"),
    Target("large_chord_memory", (Goal(2.0),), subject="qworker-redis"),
    *_everywhere("qworker-redis"),
)

RABBITMQ = (
    Target(
        "noop_rate",
        (Goal(2.9, "celery-rabbitmq"), Goal(1.2, "dramatiq-rabbitmq")),
        Goal(13_000),
        "qworker-rabbitmq",
    ),
    Target(
        "stored_rate",
        (Goal(2.9, "celery-rabbitmq"), Goal(1.1, "dramatiq-rabbitmq")),
        subject="qworker-rabbitmq",
    ),
    Target("enqueue_rate", (Goal(1_900),), Goal(2_100), subject="qworker-rabbitmq"),
    Target(
        "enqueue_rate",
        (Goal(1, "dramatiq-rabbitmq"), Goal(10_000)),
        Goal(14_000),
        subject="qworker-rabbitmq-unconfirmed",
    ),
    Target("bulk_rate", (Goal(25_000),), subject="qworker-rabbitmq-quorum"),
    Target("latency_p50", (Goal(1, "dramatiq-rabbitmq"),), Goal(0.8), "qworker-rabbitmq-unconfirmed"),
    Target("latency_p50", (Goal(0.8),), subject="qworker-rabbitmq"),
    Target("latency_p99", (Goal(1.8),), subject="qworker-rabbitmq"),
    *_everywhere("qworker-rabbitmq"),
)

POSTGRESQL = (
    Target(
        "noop_rate",
        (Goal(1, "pgqueuer"), Goal(20, "procrastinate")),
        Goal(1.3, "pgqueuer"),
        "qworker-postgresql",
    ),
    Target("enqueue_rate", (Goal(1, "pgqueuer"),), subject="qworker-postgresql"),
    Target("bulk_rate", (Goal(1, "pgqueuer"), Goal(60_000)), subject="qworker-postgresql"),
    Target("latency_p50", (Goal(2.0),), subject="qworker-postgresql"),
    *_everywhere("qworker-postgresql", memory=60.0),
)

MARIADB = (*_everywhere("qworker-mariadb", memory=60.0),)

TARGETS: tuple[Target, ...] = (*EMBEDDED, *REDIS, *RABBITMQ, *POSTGRESQL, *MARIADB)
