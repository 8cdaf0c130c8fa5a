"""Peers on PostgreSQL and MariaDB, with the durability that the server is set up for."""

from benchmarks.peer import Peer, celery, qworker, twice, without

_CELERY = ("celery==5.7.0", "sqlalchemy==2.1.9", "psycopg[binary]==3.3.9")
_WITHOUT_RESULTS = without("stored", "bulk")
_NO_RETURN = "has no results to compare"

ROWS = (
    qworker("qworker-postgresql", "PostgreSQL", note="in a database of its own; acks after the task"),
    Peer(
        "procrastinate",
        "procrastinate",
        "procrastinate_postgres",
        twice("{bin}/procrastinate --app=benchmarks.adapters.procrastinate_postgres.app worker"),
        requirements=("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
        workloads=without("stored"),
        most={"noop": 2_000, "enqueue": 4_000, "cpu1": 1_000, "eta": 2_500, "latency": 300},
        server="PostgreSQL",
        note=f"two processes, async bodies; acknowledges after the task; {_NO_RETURN}",
    ),
    Peer(
        "pgqueuer",
        "pgqueuer",
        "pgqueuer_postgres",
        twice("{python} -m benchmarks.adapters.pgqueuer_postgres"),
        requirements=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        workloads=without("stored"),
        most={"enqueue": 5000, "eta": 5000},
        server="PostgreSQL",
        note="two processes, 50 jobs fetched at a time, async bodies; acknowledges after the task; "
        f"{_NO_RETURN}",
    ),
    celery(
        "celery-postgresql-qworker",
        "PostgreSQL",
        requirements=_CELERY,
        workloads=_WITHOUT_RESULTS,
        environment={"BENCHMARK_TRANSPORT": "qworker"},
        note="Celery's own worker, prefork, on `qworker+postgresql://`; acknowledges when a task begins",
    ),
    celery(
        "celery-postgresql-sqlalchemy",
        "PostgreSQL",
        requirements=_CELERY,
        workloads=_WITHOUT_RESULTS,
        most={"noop": 1_000, "enqueue": 2_000, "latency": 30, "cpu1": 500, "behind-eta": 100, "eta": 500},
        environment={"BENCHMARK_TRANSPORT": "sqla"},
        note="Celery's own worker, prefork, on kombu's `sqla+postgresql://`; what it read is gone, so a "
        "killed worker loses it; it polls once a second",
    ),
    qworker(
        "qworker-mariadb",
        "MariaDB",
        note="in a database of its own; acks after the task; no peer has MariaDB",
    ),
)
