"""Names of tasks and queues as typed by users: shortened, or misspelt.

Comes from:  the commands that take such names.
Goes to:     the app's tasks and settings, and the broker's queues.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from qworker.app import QWorker
from qworker.control import looking
from qworker.errors import ConfigurationError, NotRegistered
from qworker.naming import close_matches, close_tasks, own_tasks
from qworker.transports.lease import QueueInfo

_LISTED = 10
"""Maximum names listed if none is similar."""


def task_named(app: QWorker, name: str) -> str:
    """Return the full name of a task, given that name or its last part.

    Raises NotRegistered, with similar names, when there is none or several, and ConfigurationError, with the
    existing ones, when none is similar.
    """
    if name in app.tasks:
        return name
    ending = _ending(app, name)
    if len(ending) == 1:
        return ending[0]
    error = NotRegistered(name, ending or close_tasks(name, app.tasks))
    if error.near:
        raise error
    known = own_tasks(app.tasks)
    more = ", …" if len(known) > _LISTED else ""
    listed = f"This app has: {', '.join(known[:_LISTED])}{more}" if known else "This app has no tasks"
    raise ConfigurationError(f"{error} {listed}")


def likely_task(app: QWorker, name: str) -> str:
    """Return task_named(); *name* itself if there is none, because other apps may know it."""
    ending = [] if name in app.tasks else _ending(app, name)
    return ending[0] if len(ending) == 1 else name


def doubt_task(app: QWorker, name: str) -> str:
    """Return a warning if this app does not know the task *name*, with suggestions; otherwise ""."""
    if name in app.tasks:
        return ""
    guesses = _ending(app, name) or close_tasks(name, app.tasks)
    hint = f" Did you mean {' or '.join(map(repr, guesses))}?" if guesses else ""
    return f"this app does not know the task {name!r:.200}.{hint}"


def _ending(app: QWorker, name: str) -> list[str]:
    return [known for known in own_tasks(app.tasks) if name and known.endswith(f".{name}")]


def queues_in_use(app: QWorker) -> dict[str, str]:
    """Return the queues that tasks are sent to, with the senders."""
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
    """Return the option of ``qworker start`` that makes a worker consume *queue*; "" if it does so by
    default."""
    conf = app.conf
    return "" if queue in (conf.task_queues or (conf.task_default_queue,)) else f" -Q {queue}"


def misspelt_queues(app: QWorker, names: Iterable[str] | None) -> list[str]:
    """Return a sentence for each of *names* that does not seem to exist, and is similar to an existing queue.

    Known queues are those of the settings, those with messages, and those of workers. Sending creates a
    queue, so an unknown name that is similar to no other may be right.
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
    """Return a sentence for each queue of *names* that is missing in *known*, and similar to one."""
    there = sorted(known)
    hints = []
    for name in names:
        if name not in there and (guesses := close_matches(name, there)):
            hints.append(f"There is no queue {name!r}. Did you mean {' or '.join(map(repr, guesses))}?")
    return hints


def doubt_queues(app: QWorker, names: Iterable[str] | None) -> None:
    """Print the sentences of misspelt_queues() on standard error."""
    for sentence in misspelt_queues(app, names):
        click.echo(sentence, err=True)


def numbers_of(
    found: Iterable[tuple[int, object]], tags: Sequence[str], what: str, command: str
) -> list[int]:
    """Return the numbers given by *tags*, without duplicates; a tag is a number, or the id of a call.

    found: the number and the id of each existing one, read no further than needed. Raises ConfigurationError,
    before anything is changed, for an unknown tag.
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
