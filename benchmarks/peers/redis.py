"""Peers on Redis; all empty the one database that is set aside for them."""

import signal

from benchmarks.adapters.services import REDIS_URL
from benchmarks.peer import WORKFLOWS, Peer, celery, qworker, twice, without

_CLIENT = ("redis==8.1.0", "hiredis==3.5.0")
_FAST = ("hiredis==3.5.0", "uvloop==0.23.0")
_TASKIQ = "{bin}/taskiq worker benchmarks.adapters.taskiq_redis:broker -w {concurrency} --log-level WARNING"
_RQ = f"{{bin}}/rq worker -q -w rq.worker.SimpleWorker --with-scheduler -u {REDIS_URL}"

ROWS = (
    qworker("qworker-redis", "Redis", note="acks after the task; a killed worker's tasks run again"),
    celery(
        "celery-redis",
        "Redis",
        requirements=("celery==5.7.0", "packaging==26.0", *_CLIENT),
        workloads=without("bulk") + WORKFLOWS,
        most={"noop": 10_000, "stored": 8_000, "eta": 25_000, "group": 2_000, "large-chord": 5_000},
        note="prefork, its defaults; acknowledges when a task begins: a killed worker loses the task it runs",
    ),
    Peer(
        "huey-redis",
        "huey",
        "huey_redis",
        (
            "{bin}/huey_consumer",
            "benchmarks.adapters.huey_redis.huey",
            "-w",
            "{concurrency}",
            "-k",
            "process",
            "-q",
        ),
        requirements=("huey==3.5.4", *_CLIENT),
        workloads=without("bulk"),
        stop_signal=signal.SIGINT,
        server="Redis",
        note="RedisHuey; acknowledges nothing: takes a task out of the queue before it runs, so a killed "
        "worker loses it; "
        "runs ETA tasks up to a second early; stopped by SIGINT",
    ),
    Peer(
        "dramatiq-redis",
        "dramatiq",
        "dramatiq_redis",
        ("{bin}/dramatiq", "benchmarks.adapters.dramatiq_redis", "-p", "{concurrency}", "-t", "8"),
        requirements=("dramatiq==2.2.1", *_CLIENT),
        workloads=without("bulk"),
        server="Redis",
        note="2 processes of 8 threads, its default on two cores; acknowledges after the task",
    ),
    Peer(
        "rq",
        "rq",
        "rq_redis",
        twice(_RQ),
        requirements=("rq==2.12.0", *_CLIENT),
        most={"noop": 5_000, "stored": 5_000, "cpu1": 2_000, "eta": 5_000},
        server="Redis",
        note="two SimpleWorkers, which run tasks in their own process; the worker that RQ begins with forks "
        "for each task and "
        "is seven times slower; ETA tasks move once a second",
    ),
    Peer(
        "taskiq-list",
        "taskiq",
        "taskiq_redis",
        tuple(_TASKIQ.split()),
        requirements=("taskiq==0.13.0", "taskiq-redis==1.2.4", *_FAST),
        workloads=without("bulk", "eta", "behind-eta"),
        server="Redis",
        note="ListQueueBroker, async bodies; acknowledges nothing: a killed worker loses what it fetched; "
        "delays need a "
        "scheduler process, not measured",
    ),
    Peer(
        "taskiq-stream",
        "taskiq",
        "taskiq_redis",
        tuple(_TASKIQ.split()),
        requirements=("taskiq==0.13.0", "taskiq-redis==1.2.4", *_FAST),
        workloads=without("bulk", "eta", "behind-eta"),
        environment={"BENCHMARK_TASKIQ": "stream"},
        server="Redis",
        note="RedisStreamBroker, async bodies; acknowledges after the task, what a killed worker held comes "
        "back after ten "
        "minutes; delays not measured",
    ),
    Peer(
        "saq",
        "saq",
        "saq_redis",
        twice("{bin}/saq benchmarks.adapters.saq_redis.settings"),
        requirements=("saq==0.26.4", "redis==7.4.1", "typing_extensions==4.16.0", *_FAST),
        workloads=without("bulk"),
        server="Redis",
        note="two processes, async bodies; acknowledges after the task; ETA in whole seconds, here the next "
        "one; a grace period of 2 s at a stop, which it uses up in any case (with none it cancels what runs)",
    ),
    Peer(
        "arq",
        "arq",
        "arq_redis",
        twice("{bin}/arq benchmarks.adapters.arq_redis.WorkerSettings"),
        requirements=("arq==0.28.0", "redis==5.3.1", *_FAST),
        workloads=without("bulk"),
        most={"noop": 8_000, "stored": 8_000, "eta": 15_000},
        server="Redis",
        note="two processes, async bodies, 100 jobs each, looking every 10 ms (by default twice a second); "
        "acknowledges "
        "after the task",
    ),
    Peer(
        "django-q2",
        "django-q2",
        "djangoq_redis",
        ("{python}", "-m", "django", "qcluster"),
        requirements=("django-q2==1.11.1", "django==5.2.19", *_CLIENT),
        workloads=without("bulk", "eta", "behind-eta"),
        most={"noop": 5_000, "stored": 3_000, "enqueue": 4_000, "cpu1": 2_000},
        environment={"DJANGO_SETTINGS_MODULE": "benchmarks.adapters.djangoq_settings"},
        server="Redis",
        note="two workers; acknowledges nothing on Redis: a killed worker loses its tasks; results in "
        "SQLite; delays are "
        "rows of a schedule that is looked at twice a minute, not measured",
    ),
)
