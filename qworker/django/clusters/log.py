"""log: a cluster's log lines, worded as in Django-Q.

Comes from:  signals of qworker's worker and of its children; the end of each task.
Goes to:     the logger ``django-q``.
Thread:      the one that sends the signal. Programs that only call tasks send none.

Django-Q's processes are threads of one process here, so guarding, pushing and monitoring are logged with the
same process id.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from qworker import signals
from qworker.django.clusters.affinity import pin
from qworker.django.conf import logger, prepare_logger
from qworker.django.execution.endings import ended
from qworker.django.execution.running import SENDER
from qworker.django.function_names import function_name
from qworker.django.signals import post_spawn
from qworker.django.transports.packages import RUN
from qworker.safe_repr import printable

SHOWN = 500
"""Characters of a failure's message in a log line."""
TRACEBACK = " : Traceback"
"""Where the traceback begins in a failed task's result."""
ENDS = "qworker.components.ending.outcomes"
"""qworker's logger for the ends of tasks."""

_engine = logging.getLogger("qworker")
_place = [0]
"""The number of this worker process, from 1. Written once, when it starts."""


def prepare() -> None:
    """Show the cluster's log and qworker's warnings, unless the project's LOGGING configures them. Safe to
    call twice."""
    prepare_logger()
    if _engine.level == logging.NOTSET and not _engine.hasHandlers():
        _engine.setLevel(logging.WARNING)
        for handler in logger.handlers:
            _engine.addHandler(handler)
    logging.getLogger(ENDS).addFilter(_is_news)  # has no effect the second time


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for qworker's *record* of a package that raised: the child has logged it."""
    is_failure = getattr(record, "task_name", None) == RUN and getattr(record, "event", None) == "task-failed"
    return not (is_failure and "raised" in record.msg)


def log_start(cluster: str) -> None:
    """Log that the cluster starts."""
    logger.info("Q Cluster %s starting.", cluster)


def log_running(cluster: str) -> None:
    """Log that everything runs."""
    pid = os.getpid()
    logger.info("monitoring at %d", pid)
    logger.info("guarding cluster %s at %d", cluster, pid)
    logger.info("pushing tasks at %d", pid)
    logger.info("Q Cluster %s running.", cluster)


def log_stopping(cluster: str) -> None:
    """Log that the cluster was told to stop and takes no more tasks."""
    logger.info("Q Cluster %s stopping.", cluster)
    logger.info("stopping cluster processes")
    logger.info("stopped pushing tasks")


def log_end(cluster: str) -> None:
    """Log that the last result is stored."""
    logger.info("stopped monitoring results")
    logger.info("Q Cluster %s has stopped.", cluster)


def _begins(*, index: int, **_: Any) -> None:
    """Set up logging in this worker process, which has just started."""
    _place[0] = index + 1
    pin(index)
    logger.info("worker %d ready for work at %d", _place[0], os.getpid())
    post_spawn.send(SENDER, proc_name=f"worker {_place[0]}")
    ended.connect(_ended, dispatch_uid="qworker.django.clusters.log")


def _ends(**_: Any) -> None:
    logger.info("worker %d stopped doing work", _place[0])


def _ended(*, task: dict[str, Any], **_: Any) -> None:
    """Log the end of a task in this worker process."""
    # The name of a task must not inject lines into the log.
    name, label = printable(function_name(task["func"])), printable(str(task.get("name", task["id"])))
    if task["success"]:
        logger.info("Processed '%s' (%s)", name, label)
    else:
        why, mark, traceback = str(task.get("result")).partition(TRACEBACK)
        more = {"event": "task-failed", "task_id": task["id"], "task_name": name}
        description = f"{why[:SHOWN]}{mark}{traceback}"
        logger.error("Failed '%s' (%s) - %s", name, label, description, extra=more)


signals.worker_process_init.connect(_begins, weak=False)
signals.worker_process_shutdown.connect(_ends, weak=False)
