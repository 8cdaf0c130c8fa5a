"""The entries that a scheduler looks after while it is measured; it runs in the scheduler's own environment.

Comes from:  ``benchmarks.schedulers``, which says by BENCHMARK_SCHEDULER whose they are, by BENCHMARK_ENTRIES
             and BENCHMARK_BURST how many there are and how many of them are due every minute, and by
             BENCHMARK_MARKER whether there is one more that is due all the time.
Goes to:     ``qworker beat``, ``celery beat`` and ``rq cron``.

The same crontabs for all, in the form that the scheduler's manual shows.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from benchmarks.adapters.services import BROKER, REDIS_URL, directory
from benchmarks.bodies import noop

SCHEDULER = os.environ.get("BENCHMARK_SCHEDULER", "")
ENTRIES = int(os.environ.get("BENCHMARK_ENTRIES", "10"))
BURST = int(os.environ.get("BENCHMARK_BURST", "10"))
MARKER = os.environ.get("BENCHMARK_MARKER", "") == "1"

QUEUE = "minutely"
"""Where the calls go that are due every minute."""
MARKED = "marked"
"""Where those of the marker go."""
MARKER_SECONDS = 0.01
FIELDS = ("minute", "hour", "day_of_month", "month_of_year")
EVERY_MINUTE = dict.fromkeys(FIELDS, "*")


def crontabs(entries: int = ENTRIES, burst: int = BURST) -> Iterator[tuple[str, dict[str, str]]]:
    """Names and fields of all entries but the marker.

    The first `burst` are due every minute; the others once a year, at instants of their own two to ten months
    from now.
    """
    month = datetime.now(UTC).month
    for number in range(entries):
        far = (month + 1 + number // 40320 % 9) % 12 + 1
        yearly = (number % 60, number // 60 % 24, number // 1440 % 28 + 1, far)
        fields = EVERY_MINUTE if number < burst else dict(zip(FIELDS, map(str, yearly), strict=True))
        yield f"entry-{number}", fields


def described(crontab: Any) -> dict[str, Any]:
    """All entries as the setting ``beat_schedule`` has them. crontab: the peer's."""
    found: dict[str, Any] = {}
    if MARKER:
        found["marker"] = {
            "task": "noop",
            "schedule": MARKER_SECONDS,
            "args": (0,),
            "options": {"queue": MARKED},
        }
    for name, fields in crontabs():
        found[name] = {"task": "noop", "schedule": crontab(**fields), "args": (0,)}
    return found


if SCHEDULER == "qworker":
    from benchmarks.adapters import own_database
    from qworker import QWorker
    from qworker.beat import crontab

    URLS = {"Redis": REDIS_URL, "": f"sqlite:///{directory() / 'qworker.db'}"}
    app: Any = QWorker("benchmarks", broker=URLS.get(BROKER) or own_database.url())
    app.task(name="noop", ignore_result=True)(noop)
    app.conf.task_default_queue = QUEUE
    app.conf.beat_schedule = described(crontab)
elif SCHEDULER == "celery":
    from celery import Celery
    from celery.schedules import crontab

    app = Celery("benchmarks", broker=REDIS_URL)
    app.task(name="noop", ignore_result=True)(noop)
    app.conf.task_default_queue = QUEUE
    app.conf.beat_schedule = described(crontab)
elif SCHEDULER == "rq":
    from rq import cron

    if MARKER:
        # The shortest that it takes. One that never ran is due at once.
        cron.register(noop, MARKED, args=(0,), interval=1, name="marker")
    for name, fields in crontabs():
        cron.register(noop, QUEUE, args=(0,), cron=" ".join((*fields.values(), "*")), name=name)
