"""The peers: one row each, and one module of the same name in `benchmarks.adapters`.

To add a peer, add a row here and a module there. `python -m benchmarks run --peers NAME` then measures it.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

EVERYTHING = (
    "noop",
    "stored",
    "enqueue",
    "bulk",
    "latency",
    "cpu1",
    "cpu10",
    "eta",
    "behind-eta",
    "beside-long",
    "idle",
    "start",
    "stop",
)


def without(*names: str) -> tuple[str, ...]:
    """All workloads but these."""
    return tuple(name for name in EVERYTHING if name not in names)


@dataclass(frozen=True)
class Peer:
    """How to run one peer at concurrency 2.

    `command` may hold {bin}, the environment's directory of scripts, and {python}. `most` bounds the number of
    tasks of a workload for peers that would take minutes; `server` names what it needs of `services.SERVERS`;
    `note` is what a reader of the report must know.
    """

    name: str
    package: str
    adapter: str
    command: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    workloads: tuple[str, ...] = EVERYTHING
    most: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_signal: int = signal.SIGTERM
    server: str = ""
    note: str = ""


_QWORKER = (
    "{python}",
    "-m",
    "qworker",
    "start",
    "-A",
    "benchmarks.adapters.qworker_sqlite",
    "-c",
    "2",
    "-l",
    "WARNING",
)
_HUEY_NOTE = "takes a task out of the queue before it runs: a killed worker loses it"

_PGQUEUER = "{python} -m benchmarks.adapters.pgqueuer_postgres"
_TWO_PGQUEUERS = f'{_PGQUEUER} & a=$!; {_PGQUEUER} & b=$!; trap "kill $a $b" TERM; wait; wait'

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "qworker",
            "qworker",
            "qworker_sqlite",
            _QWORKER,
            note="embedded broker, every publish fsynced (synchronous=FULL)",
        ),
        Peer(
            "qworker-normal",
            "qworker",
            "qworker_sqlite",
            _QWORKER,
            workloads=("enqueue", "bulk"),
            environment={"BENCHMARK_SYNCHRONOUS": "NORMAL"},
            note="embedded broker, publishes survive a crash of the process but not of the machine (synchronous=NORMAL)",
        ),
        Peer(
            "huey-sqlite",
            "huey",
            "huey_sqlite",
            ("{bin}/huey_consumer", "benchmarks.adapters.huey_sqlite.huey", "-w", "2", "-k", "process", "-q"),
            requirements=("huey==3.5.4",),
            workloads=without("bulk"),
            stop_signal=signal.SIGINT,
            note=f"SqliteHuey, WAL, SQLite's default durability (FULL); {_HUEY_NOTE}; stopped by SIGINT, its graceful signal",
        ),
        Peer(
            "celery-sqlalchemy",
            "celery",
            "celery_sqlalchemy",
            (
                "{bin}/celery",
                "-A",
                "benchmarks.adapters.celery_sqlalchemy",
                "worker",
                "-c",
                "2",
                "-l",
                "WARNING",
            ),
            requirements=("celery==5.7.0", "sqlalchemy==2.1.9"),
            workloads=without("bulk", "eta"),
            most={
                "noop": 3000,
                "stored": 2000,
                "enqueue": 3000,
                "latency": 30,
                "cpu1": 1000,
                "behind-eta": 200,
            },
            note="sqla+sqlite:///, prefork; fewer tasks, for it polls once a second; no ETA drain, it cannot enqueue them in time",
        ),
        Peer(
            "huey-redis",
            "huey",
            "huey_redis",
            ("{bin}/huey_consumer", "benchmarks.adapters.huey_redis.huey", "-w", "2", "-k", "process", "-q"),
            requirements=("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"),
            workloads=without("bulk"),
            stop_signal=signal.SIGINT,
            server="Redis",
            note=f"RedisHuey; {_HUEY_NOTE}; stopped by SIGINT",
        ),
        Peer(
            "dramatiq-redis",
            "dramatiq",
            "dramatiq_redis",
            ("{bin}/dramatiq", "benchmarks.adapters.dramatiq_redis", "-p", "2", "-t", "8"),
            requirements=("dramatiq==2.2.1", "redis==8.1.0", "hiredis==3.5.0"),
            workloads=without("bulk", "stored"),
            server="Redis",
            note="2 processes of 8 threads, its default on two cores",
        ),
        Peer(
            "dramatiq-rabbitmq",
            "dramatiq",
            "dramatiq_rabbitmq",
            ("{bin}/dramatiq", "benchmarks.adapters.dramatiq_rabbitmq", "-p", "2", "-t", "8"),
            requirements=("dramatiq[rabbitmq]==2.2.1",),
            workloads=without("bulk", "stored"),
            server="RabbitMQ",
            note="2 processes of 8 threads, its default on two cores",
        ),
        Peer(
            "pgqueuer",
            "pgqueuer",
            "pgqueuer_postgres",
            ("sh", "-c", _TWO_PGQUEUERS),
            requirements=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
            workloads=("noop", "enqueue", "bulk", "latency", "cpu1", "cpu10", "idle", "start"),
            most={"enqueue": 5000},
            server="PostgreSQL",
            note="PostgreSQL with fsync; two processes, 50 jobs fetched at a time, async bodies",
        ),
    )
}
