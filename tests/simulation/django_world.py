"""django_world: a Django project whose clusters and callers are nodes of a world.

Comes from:  ``run``, for cases with ``django``.
Goes to:     ``qworker.django``, on an SQLite file; ``django_checks``, with the final state.
Thread:      the world's.

The globals of a project's process (its app, database connection, brokers and clock) are swapped in whenever
its node steps, so that one process simulates several. Statements of the ORM and calls of the cache are store
calls, which may fail.
"""

from __future__ import annotations

import datetime as datetimes
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.django_project import configure

configure()

from django.core.cache.backends.locmem import LocMemCache  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import Error, OperationalError, connections, transaction  # noqa: E402
from django.test import override_settings  # noqa: E402

from qworker import QWorker  # noqa: E402
from qworker.django.brokers import get_broker, orm, transported  # noqa: E402
from qworker.django.cluster import extra_parts  # noqa: E402
from qworker.django.clusters import engine  # noqa: E402
from qworker.django.clusters.retention import TIDY_SECONDS  # noqa: E402
from qworker.django.models import Part, Schedule, Task  # noqa: E402
from qworker.django.several import Chain, Iter  # noqa: E402
from qworker.django.signals import post_execute  # noqa: E402
from qworker.django.tasks import (  # noqa: E402
    AsyncTask,
    async_chain,
    async_iter,
    async_task,
    count_group,
    delete_group,
    fetch_group,
    result,
    result_group,
    schedule,
)
from qworker.django.waiting import watcher as watchers  # noqa: E402
from qworker.errors import BackendError  # noqa: E402
from qworker.message.context import current_context  # noqa: E402
from tests.simulation.case import Case, Job  # noqa: E402
from tests.simulation.django_checks import ALWAYS, MINUTE  # noqa: E402
from tests.simulation.nodes import Asked, Node, WorkerNode  # noqa: E402
from tests.simulation.run import CALLERS, LONG, Running, heard  # noqa: E402
from tests.simulation.seams import BACKEND, BROKER, watch  # noqa: E402
from tests.simulation.waiting import LOOK, Watcher  # noqa: E402
from tests.simulation.world import START, Stuck  # noqa: E402

ALIAS = "default"
HERE = "tests.simulation.django_world"
WORK = f"{HERE}.work"
RETRY = 5
MOMENT = 0.0001
"""Seconds of a run, so that consecutive tasks end one after the other."""
SETTLED = 12.0
"""Virtual seconds within which a cluster deletes excess results after a fault."""
DATABASE = ("broker", "results", "orm", "cache")
"""Stores that are away, or full, together."""
SCHEDULES = ("look", "take", "renew", "fire", "pending", "sent", "slots", "sweep", "resign")
_here: list[Any] = []
"""The nested nodes that step; the last one is the current process."""


class RolledBack(Exception):
    """Raised to roll back the caller's transaction."""


# -- a process of the project --


class InProject(Node):
    """A node with the globals of a project's process."""

    def __init__(self, process: Any, time: Any, stores: Any, *more: Any) -> None:
        made: Any = connections.create_connection(ALIAS)
        made.settings_dict = {
            **made.settings_dict,
            "NAME": str(stores.directory / "q.db"),
            "CONN_MAX_AGE": None,
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
        made.execute_wrappers.append(partial(_statement, process))
        commit = made._commit
        made._commit = lambda: process.call("orm", "orm.commit", commit, (), {})
        process.errors |= {"orm": OperationalError, "cache": ConnectionError}
        self.connection = made
        self._opened = stores.opened
        self._opened.append(made)
        self._kept: list[Any] = [[], {}, {}, {}, made]
        with self.entered():
            super().__init__(process, time, stores, *more)

    def _app(self, stores: Any, world: Any, key: bool) -> QWorker:
        app = engine.make_app(self.clock)
        broker: Any = app.broker
        for side in (broker.sender, broker.consumer, broker.admin):
            watch(self.process, "broker", side, BROKER)
        join = broker.sender.join

        def joined(connection: Any) -> Any:
            sender = join(connection)
            watch(self.process, "orm", sender, ("push",))
            return sender

        broker.sender.join = joined
        watch(self.process, "results", app.backend, BACKEND)
        stores.opened += [broker, app.backend]
        engine._made.append(app)
        transported._transports["orm"] = broker
        looking = watchers.TaskWatcher(ALIAS, ALIAS)
        looking.watcher.close()
        looking.watcher = Watcher(self.time, self.name, _Looking(looking))  # type: ignore[arg-type,assignment]
        watchers._watchers[ALIAS, ALIAS] = looking
        return app

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the current process within the block."""
        before = _here[-1] if _here else None
        _here.append(self)
        try:
            if before is self:
                yield
                return
            outside = _exchanged(self._kept)
            if before is not None:
                before._kept = outside
            try:
                yield
            finally:
                self._kept = _exchanged(outside if before is None else before._kept)
        finally:
            _here.pop()


def _exchanged(new: list[Any]) -> list[Any]:
    """Replace the globals of the process with *new*; return the old ones."""
    places: list[Any] = [engine._made, transported._transports, transported._takings, watchers._watchers]
    old: list[Any] = [place.copy() for place in places]
    for place, content in zip(places, new[:-1], strict=True):
        place.clear()
        (place.extend if isinstance(place, list) else place.update)(content)
    old.append(getattr(connections._connections, ALIAS, None))  # type: ignore[attr-defined]
    if new[-1] is not None:
        connections[ALIAS] = new[-1]
    elif old[-1] is not None:
        del connections[ALIAS]
    return old


def _statement(process: Any, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    kind = "orm.read" if sql.lstrip().startswith("SELECT") else "orm.write"
    try:
        return process.call("orm", kind, execute, (sql, params, many, context), {})
    except BaseException:
        if sql.startswith("BEGIN"):  # Django does not know that a transaction has begun
            context["connection"].connection.rollback()
        raise


class _Looking:
    """A TaskWatcher with the interface of a result store."""

    def __init__(self, looking: Any) -> None:
        self._looking = looking

    def read_many(self, ids: Any) -> Any:
        try:
            return self._looking.read_many(ids)
        except Error as error:
            raise BackendError(str(error)) from error


class SharedCache(LocMemCache):
    """A cache that all nodes share."""


def _of_cache(method: str) -> Any:
    own = getattr(LocMemCache, method)

    def call(*given: Any, **more: Any) -> Any:
        return _here[-1].process.call("cache", f"cache.{method}", own, given, more)

    return call


for _method in ("add", "get", "set", "delete"):
    setattr(SharedCache, _method, _of_cache(_method))


class _Now(datetimes.datetime):
    """The datetime class that Django reads the clock from."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        seconds = _here[-1].clock.now() if _here else START
        return datetimes.datetime.fromtimestamp(seconds, tz)


# -- the project's tasks --


def work(name: str, number: int, fails: int, *, at: str = "") -> str:
    """A task whose first *fails* attempts fail."""
    here = _here[-1]
    record = here.record
    with record.running(name, number, here.process.execution):
        here.time.now += MOMENT
        here.time.note(here.name, "runs", name, number, at)
        if at:
            record.slots[name].append(at)
        context = current_context()  # None if it is called directly
        if ((context.retries or 0) if context else 0) < fails:
            raise ValueError(f"{name}:{number} fails")
        return f"{name}:{number}"


def hook(task: Any) -> None:
    """A hook that checks whether the stored task matches."""
    here = _here[-1]
    name, number = task.args[:2]
    here.record.tell(name, number, here.process.execution)
    try:
        stored = Task.objects.filter(pk=task.pk).first()
    except Error:
        return
    if stored is not None and not stored.success and task.success:
        here.record.wrong.append(f"{name}: the hook is told of a success, and a failure is stored")
    if stored is not None and stored.result not in (task.result, f"{name}:{number}"):
        here.record.wrong.append(f"{name}: the hook is told {task.result!r}, and {stored.result!r} is stored")
    if stored is None and not task.success and not here.job(name).cached:
        here.record.wrong.append(f"{name}: the hook is told of a failure that is not stored")


# -- nodes --


class DjangoWorker(InProject, WorkerNode):
    """A cluster."""

    queues = None

    def _extras(self) -> Any:
        return extra_parts(get_broker(), lambda: None)  # type: ignore[arg-type,return-value]

    def _more_parts(self) -> Any:
        self.more = [later._make() for later in self.worker.parts.others]  # type: ignore[attr-defined]
        for part in self.more:
            if part.name == "schedules":
                watch(self.process, "broker", part._store, SCHEDULES, "schedules.")
                self._opened.append(part._store)
        return self.more

    def _stepping(self, step: Any) -> Any:
        turn = super()._stepping(step)

        def inside() -> float | None:
            with self.entered():
                rest: float | None = turn()
                return rest

        return inside

    def stop(self) -> None:
        with self.entered():
            super().stop()
            for part in self.more:
                part.closed()


class DjangoCaller(InProject):
    """A process that calls tasks, makes schedules, and reads results."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.made: dict[str, AsyncTask | Iter | Chain] = {}
        """What was called by class, by the name of its job."""

    def call(self, asked: Asked) -> None:
        job: Any = asked.order
        try:
            with self.entered(), warnings.catch_warnings():
                if not job.atomic:
                    asked.results.append(JOBS[job.kind](self, job, asked.name))
                    return
                try:
                    with transaction.atomic():
                        asked.results.append(JOBS[job.kind](self, job, asked.name))
                        if job.atomic == "rollback":
                            raise RolledBack
                except RolledBack:
                    pass
        except Exception as error:  # noqa: BLE001 - judged by the checks
            asked.refused.append(error)
            self.time.note(self.name, "cannot call", asked.name, type(error).__name__)

    def ask(self, asked: Asked, limit: int) -> None:
        """Wait as the job requires, and keep what is received."""
        job: Any = asked.order
        if job.ask != "wait" or asked.refused or job.atomic == "rollback" or job.kind == "schedule":
            return
        with self.entered():
            try:
                asked.told.append(self._told(asked, job, asked.results[0]))
            except (Error, BackendError, OSError) as error:
                asked.unanswered.append(error)

    def _told(self, asked: Asked, job: Job, key: Any) -> Any:
        if job.cached:  # the cache does not notify, so it is polled
            until = self.time.now + 300.0
            while (found := _found(job, key)) is None and self.time.now < until:
                self.clock.sleep(LOOK)
            return found
        made = self.made.get(asked.name)
        if isinstance(made, Iter | Chain) and job.fails < 0:  # Chain.result() has no failures
            return made.result(wait=300_000)
        if isinstance(made, AsyncTask):
            if job.kind == "group":
                return made.result_group(failures=True, wait=300_000, count=calls_of(job))
            return made.result(wait=300_000)
        if job.kind in ("group", "chain"):
            return result_group(key, failures=True, wait=300_000, count=calls_of(job))
        return result(key, wait=300_000)

    def change(self, asked: Any) -> None:
        """Change or delete a schedule, as in the admin."""
        rows = Schedule.objects.filter(name=asked.name)
        try:
            with self.entered():
                if asked.order.change == "delete":
                    rows.delete()
                else:
                    rows.exclude(repeats=0).update(next_run=_instant(self.clock.now()))
        except Error as error:
            asked.unanswered.append(error)
            return
        asked.revoked = True  # it is not known what ran

    def job(self, name: str) -> Any:
        return self.record.jobs[name]


DjangoWorker.job = DjangoCaller.job  # type: ignore[attr-defined]


def calls_of(job: Job) -> int:
    """Return how many calls of *job* end; for a chain, those up to the one that fails."""
    return job.fails + 1 if job.kind == "chain" and 0 <= job.fails < job.size else job.size


def _found(job: Job, key: Any) -> Any:
    if job.kind not in ("group", "chain"):
        return result(key, cached=job.cached)
    found = result_group(key, failures=True, cached=job.cached)
    return found if found and len(found) == calls_of(job) else None


def _instant(seconds: float) -> datetimes.datetime:
    return datetimes.datetime.fromtimestamp(seconds, datetimes.UTC)


def _fails(job: Job, number: int) -> int:
    return ALWAYS if job.fails == number else 0


def _options(job: Job) -> dict[str, Any]:
    given = {"save": job.save, "ack_failure": job.ack_failure, "hook": f"{HERE}.hook" if job.hook else None}
    return {name: value for name, value in given.items() if value is not None}


def _send(caller: Any, job: Job, name: str, number: int, fails: int, **more: str) -> str:
    """Send the call *number* of *job*. more: other options."""
    given = {"sync": job.sync, "cached": job.cached, **more, **_options(job)}
    if not job.by_class:
        return async_task(WORK, name, number, fails, **given)
    ack = {key: given.pop(key) for key in ("ack_failure",) if key in given}  # which is no attribute
    caller.made[name] = made = AsyncTask(WORK, name, number, fails, **ack)
    for key, value in given.items():
        setattr(made, key, value)
    return made.run()


def _task(caller: Any, job: Job, name: str) -> str:
    if job.cached and not job.by_class and int(name[1:]) % 2:
        _send(caller, job, name, 0, max(0, job.fails), task_name=name)
        return name
    return _send(caller, job, name, 0, max(0, job.fails))


def _iter(caller: Any, job: Job, name: str) -> str:
    calls = [(name, number, _fails(job, number)) for number in range(job.size)]
    if job.by_class:
        caller.made[name] = made = Iter(WORK, cached=job.cached, sync=job.sync)
        for each in calls:
            made.append(*each)
        return made.run()
    return async_iter(f"{HERE}.work", calls, cached=job.cached, sync=job.sync)


def _chain(caller: Any, job: Job, name: str) -> str:
    links = [
        (f"{HERE}.work", (name, number, _fails(job, number)), _options(job)) for number in range(job.size)
    ]
    if job.by_class:
        caller.made[name] = made = Chain(group=name, cached=job.cached, sync=job.sync)
        for function, args, options in links:
            made.append(function, *args, **options)
        return made.run()
    return async_chain(links, group=name, cached=job.cached, sync=job.sync)


def _group(caller: Any, job: Job, name: str) -> str:
    for number in range(job.size):
        _send(caller, job, name, number, _fails(job, number), group=name)
    return name


def _schedule(caller: Any, job: Job, name: str) -> int:
    made = schedule(
        f"{HERE}.work", name, 0, max(0, job.fails),
        name=name,
        schedule_type=Schedule.ONCE if job.once else Schedule.CRON if job.crontab else job.every,
        cron=job.crontab,
        repeats=-1 if job.once else job.size,
        next_run=_instant(caller.clock.now() + job.due),
        intended_date_kwarg="at" if job.intended else None,
        hook=f"{HERE}.hook" if job.hook else None,
    )  # fmt: skip
    return int(made.pk)


JOBS: dict[str, Callable[[Any, Job, str], Any]] = {
    "task": _task,
    "iter": _iter,
    "chain": _chain,
    "group": _group,
    "schedule": _schedule,
}


# -- a case --


@cache
def template() -> Path:
    """Return an SQLite file with the project's tables."""
    file = configure().parent / "simulation.db"
    made: Any = connections.create_connection(ALIAS)
    made.settings_dict = {**made.settings_dict, "NAME": str(file)}
    before = _exchanged([[], {}, {}, {}, made])
    try:
        call_command("migrate", verbosity=0)
        made.close()
    finally:
        _exchanged(before)
    return file


class DjangoRunning(Running):
    """A running case of a Django project."""

    caller_class = DjangoCaller
    worker_class = DjangoWorker

    def __init__(self, case: Case, directory: Path, trace: Any) -> None:
        assert case.django is not None
        self.around = ExitStack()
        self.errors: list[str] = []
        try:
            self._surround(case, directory)
            super().__init__(case, directory, trace)
            self.settled = SETTLED if case.faults else 2.5
        except BaseException:
            self.around.close()
            raise

    def _surround(self, case: Case, directory: Path) -> None:
        django: Any = case.django
        shutil.copy(template(), directory / "q.db")
        cluster = {
            "name": "simulated",
            "orm": ALIAS,
            "workers": case.world.concurrency,
            "retry": RETRY,
            "save_limit": django.save_limit,
            "save_limit_per": django.save_limit_per,
            "ack_failures": django.ack_failures,
            "catch_up": django.catch_up,
            "max_attempts": django.max_attempts,
            "time_zone": django.time_zone,
        }
        cached = {"default": {"BACKEND": f"{HERE}.SharedCache", "LOCATION": str(directory)}}
        enter = self.around.enter_context
        enter(mock.patch("django.utils.timezone.datetime", _Now))
        enter(override_settings(Q_CLUSTER=cluster, CACHES=cached, USE_TZ=True, TIME_ZONE="UTC"))
        enter(heard("django-q", self.errors))
        if case.seed % 2:  # with a receiver, rows are stored earlier
            post_execute.connect(self._hears, weak=False)
            self.around.callback(post_execute.disconnect, self._hears)

    def _hears(self, task: Any, **_: Any) -> None:
        if not task.get("iter_count"):
            name, number = task["args"][:2]
            self.seen.record.post_executed[name][number] += 1

    def _plan(self) -> float:
        last = 0.0
        django: Any = self.case.django
        for number, job in enumerate(django.jobs):
            asked = Asked(job, f"j{number}")
            self.seen.asked.append(asked)
            self.seen.record.jobs[asked.name] = job
            self._at(job.at, CALLERS[number % 2], partial(self._order, asked), True)
            last = max(last, job.at)
            if job.kind == "schedule":
                span = job.size * MINUTE * (2 if job.crontab else 1)
                last = max(last, job.at + max(0.0, job.due) + span)
                if job.change:
                    at = job.at + max(0.1, job.change_at)
                    self._at(at, CALLERS[number % 2], partial(self.callers[number % 2].change, asked))
                    last = max(last, at + span)
        return last

    def _order(self, asked: Asked) -> None:
        caller: Any = self.callers[int(asked.name[1:]) % 2]
        asked.begun = True
        try:
            caller.call(asked)
            asked.called = True
            self.open -= 1
            django: Any = self.case.django
            caller.ask(asked, django.save_limit)
        except Stuck as error:
            self.seen.stuck = self.seen.stuck or f"{asked.name}: {error}"

    def together(self, store: str) -> tuple[str, ...]:
        return DATABASE

    def joins(self) -> int:
        return 0

    def quiet(self) -> bool:
        if not super().quiet():
            return False
        if any(self.time.now < until for until in self.time.frozen.values()):
            return False  # excess results are deleted afterwards
        with self.observer.entered():
            return not Schedule.objects.exclude(repeats=0).filter(next_run__isnull=False).exists()

    def _look(self) -> None:
        seen, time = self.seen, self.time
        self.to_come.clear()
        seen.turns, seen.seconds, seen.log = time.turns, time.now, time.log
        seen.tasks = sum(map(len, seen.record.runs.values()))
        seen.errors += self.errors
        self.away.clear()
        self.full.clear()
        with self.observer.entered():
            seen.left = {
                "rows": {task.pk: task for task in Task.objects.all()},
                "parts": Part.objects.exclude(ended=Part.COLLECTED).filter(needed__isnull=False).count()
                + Part.objects.filter(needed=None, ended=None).exclude(pk=_own_whole()).count(),
                "schedules": {row.name: row for row in Schedule.objects.all()},
                "dead": [letter.reason for letter in self.observer.app.broker.admin.dead(None, 1000)],
                "counts": {
                    asked.name: (count_group(asked.name), count_group(asked.name, failures=True))
                    for asked in seen.asked
                },
            }
            for asked in seen.asked:
                job: Any = asked.order
                if asked.results and job.cached:
                    seen.values[asked.name] = [_found(job, asked.results[0])]
            seen.left["groups"] = {asked.name: _deleted(asked.name) for asked in seen.asked}

    def _linger(self) -> None:
        time = self.time
        for _ in range(2):  # an iterable whose parts were not all sent is given up, and later deleted
            time.now += LONG
            time.limit += 2 * LONG
            time.pump(time.now + 2 * TIDY_SECONDS)
        with self.observer.entered():
            self.seen.left_for_ever = {"parts": count} if (count := Part.objects.count()) else {}

    def close(self) -> None:
        try:
            super().close()
        finally:
            orm._joined.clear()  # its values refer to its keys through the world's clock
            self.around.close()


def _deleted(group: str) -> tuple[list[str], int, int, int]:
    """Delete *group*; return its tasks, how many delete_group() says there were, and how many are left in the
    group and of the tasks."""
    tasks = sorted(task.pk for task in fetch_group(group, cached=False))
    count = delete_group(group, tasks=len(tasks) % 2 == 0, cached=False)
    return tasks, count, count_group(group, cached=False) or 0, Task.objects.filter(pk__in=tasks).count()


def _own_whole() -> Any:
    from django.db.models import F

    return F("whole")
