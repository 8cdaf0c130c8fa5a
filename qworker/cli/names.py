"""Names: of tasks and queues, as people type them: shortened, or with a slip in them.

Comes from:  the commands that take such names.
Goes to:     the app's tasks and settings, and what the broker tells of queues.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from qworker.app import QWorker
from qworker.control import looking
from qworker.errors import ConfigurationError, NotRegistered
from qworker.naming import near, near_tasks, own_tasks
from qworker.transports.lease import QueueInfo

_LISTED = 10
"""So many names are told to somebody whose own is like none of them."""


def task_named(app: QWorker, name: str) -> str:
    """Return the full name of the task that is meant by a name or by its end.

    Raises NotRegistered, with the nearest names, when there is none or several, and ConfigurationError, with
    those that there are, when none is near.
    """
    if name in app.tasks:
        return name
    ending = _ending(app, name)
    if len(ending) == 1:
        return ending[0]
    error = NotRegistered(name, ending or near_tasks(name, app.tasks))
    if error.near:
        raise error
    known = own_tasks(app.tasks)
    more = ", …" if len(known) > _LISTED else ""
    listed = f"This app has: {', '.join(known[:_LISTED])}{more}" if known else "This app has no tasks"
    raise ConfigurationError(f"{error} {listed}")


def likely_task(app: QWorker, name: str) -> str:
    """Return what task_named() returns; *name* itself where there is none, which other apps may know."""
    ending = [] if name in app.tasks else _ending(app, name)
    return ending[0] if len(ending) == 1 else name


def doubt_task(app: QWorker, name: str) -> str:
    """Return that this app knows no task *name*, with those that may be meant; "" when it knows it."""
    if name in app.tasks:
        return ""
    guesses = _ending(app, name) or near_tasks(name, app.tasks)
    hint = f" Did you mean {' or '.join(map(repr, guesses))}?" if guesses else ""
    return f"this app knows no task {name!r:.200}.{hint}"


def _ending(app: QWorker, name: str) -> list[str]:
    return [known for known in own_tasks(app.tasks) if name and known.endswith(f".{name}")]


def queues_in_use(app: QWorker) -> dict[str, str]:
    """Queues that tasks are sent to, with those who send there."""
    conf = app.conf
    senders: dict[str, list[str]] = {conf.task_default_queue: ["the default"]}
    for queue in conf.task_queues:
        senders.setdefault(queue, []).append("task_queues")
    for name, task in app.tasks.items():
        if task.queue:
            senders.setdefault(task.queue, []).append(name)
    for router in conf.task_routes:
        for pattern, route in router.items() if isinstance(router, dict) else ():
            queue = route if isinstance(route, str) else route.get("queue")
            if isinstance(queue, str):
                senders.setdefault(queue, []).append(f"task_routes {pattern}")
    return {queue: ", ".join(names[:3]) for queue, names in senders.items()}


def queues_option(app: QWorker, queue: str) -> str:
    """What has a worker work on *queue*, behind ``qworker start``; "" where it does so anyhow."""
    conf = app.conf
    return "" if queue in (conf.task_queues or (conf.task_default_queue,)) else f" -Q {queue}"


def misspelt_queues(app: QWorker, names: Iterable[str] | None) -> list[str]:
    """Return a sentence for each of *names* that is no queue, as far as anybody can tell, and looks like one.

    Known are the queues of the settings, those that hold messages, and those of workers. A queue is made by
    what is sent to it, so that an unknown name that looks like no other may well be right.
    """
    wanted = list(names or ())
    known = set(queues_in_use(app)) if wanted else set()
    if all(name in known for name in wanted):
        return []
    infos = [*app.broker.admin.queues(), *app.broker.admin.depths(wanted)]
    known |= {info.queue for info in infos if info != QueueInfo(info.queue)}
    if all(name in known for name in wanted):
        return []
    known |= {queue for worker in looking.workers(app) for queue in worker.queues}
    return slips(wanted, known)


def slips(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return a sentence for each queue of *names* that is none of *known*, and looks like one."""
    there = sorted(known)
    told = []
    for name in names:
        if name not in there and (guesses := near(name, there)):
            told.append(f"Nobody knows a queue {name!r}. Did you mean {' or '.join(map(repr, guesses))}?")
    return told


def doubt_queues(app: QWorker, names: Iterable[str] | None) -> None:
    """Say on standard error what misspelt_queues() finds."""
    for sentence in misspelt_queues(app, names):
        click.echo(sentence, err=True)


def numbers_of(
    found: Iterable[tuple[int, object]], tags: Sequence[str], what: str, command: str
) -> list[int]:
    """The numbers of those that *tags* name, each once: by the number, or by the id of the call.

    found: the number and the id of each that is there, read no further than is needed. Raises
    ConfigurationError, before anything is done, when one of *tags* names none.
    """
    by_number: dict[str, list[int]] = {}
    by_id: dict[str, list[int]] = {}
    wanted = set(tags)
    for number, task_id in found:
        if str(number) in wanted:
            by_number[str(number)] = [number]
            if len(by_number) == len(wanted):
                break
        if isinstance(task_id, str) and task_id in wanted:
            by_id.setdefault(task_id, []).append(number)
    numbers: list[int] = []
    for tag in tags:
        named = by_number.get(tag) or by_id.get(tag)
        if not named:
            raise ConfigurationError(f"there is no {what} {tag[:80]}; see `qworker {command} list`")
        numbers += named
    return list(dict.fromkeys(numbers))
