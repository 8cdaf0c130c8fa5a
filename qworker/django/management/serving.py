"""serving: runs qcluster's cluster until it is stopped, or nothing waits.

Comes from:  the command, which imports this module, and with it the worker, when it is run.
Goes to:     ``Cluster.run()``.
Thread:      main; with --run-once, one that checks whether there is work.
"""

from __future__ import annotations

import os
import signal
import threading

from django.core.management.base import CommandError

from qworker.django.brokers import get_broker
from qworker.django.cluster import Cluster
from qworker.django.clusters.engine import app, forget
from qworker.django.conf import conf
from qworker.django.execution import connections as task_connections
from qworker.django.tables.migrated import require_tables
from qworker.errors import QWorkerError

IDLE_LOOK_SECONDS = 0.2


def serve(run_once: bool) -> int:
    """Run a cluster; return its worker's exit code. run_once: stop when no work is left.

    Raises CommandError if it cannot start.
    """
    if aliases := task_connections.in_transaction():
        raise CommandError(
            f"this program is in a transaction on the database {min(aliases)!r}, which the cluster would "
            "end by closing the connection: start it outside the transaction (in tests: use "
            "TransactionTestCase)"
        )
    try:
        require_tables()
        return Cluster().run(_stop_when_idle if run_once else None)
    except QWorkerError as error:
        raise CommandError(str(error)) from error
    finally:
        forget()  # the program may continue, and drop the database, as tests do


def _stop_when_idle() -> None:
    """Stop this process once nothing waits and nothing runs."""
    threading.Thread(target=_watch, name="run-once", daemon=True).start()


def _watch() -> None:
    rest = threading.Event()
    rest.wait(IDLE_LOOK_SECONDS)  # due schedules are sent first
    while _has_work():
        rest.wait(IDLE_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _has_work() -> bool:
    """Return whether tasks of this queue are due or run. Delayed tasks are not counted."""
    if conf.broker == "custom":
        broker = get_broker()
        return bool(broker.queue_size() or broker.lock_size())
    (found,) = app().broker.admin.depths([conf.cluster_name])
    return bool(found.ready or found.leased)
