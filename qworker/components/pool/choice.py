"""Choice: makes the pool of a worker, according to the settings.

Comes from:  Worker, at its start, and EmbeddedWorker, before that.
Goes to:     ProcessPool or ThreadPool; the zygote.
Thread:      main.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from qworker.errors import ConfigurationError, QWorkerError

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.components.pool.contract import OnEnded, OnRoom, OnStored, PoolSettings, TaskPool
    from qworker.components.pool.spawner import Spawner
    from qworker.components.pool.zygote import Zygote

logger = logging.getLogger(__name__)

FORKING = ("zygote", "fork")


def make_zygote(app: QWorker) -> Zygote | None:
    """Fork the zygote, while there is nothing that must not be forked. None if the settings do not use
    one."""
    if app.conf.worker_pool != "prefork" or app.conf.worker_start_method not in FORKING:
        return None
    if not hasattr(os, "fork"):
        raise ConfigurationError(
            "this system cannot fork: use --start-method spawn, or --pool threads",
            setting="worker_start_method",
        )
    from qworker.components.pool.zygote import Zygote

    if threading.active_count() > 1:
        logger.debug("forking with %d threads alive", threading.active_count())
    _ = app.broker, app.backend  # imported before the fork, so that their modules are shared
    zygote = Zygote(app)
    zygote.fork()
    return zygote


def refuse_unsafe_fork(app: QWorker) -> None:
    """Raise ConfigurationError if forking from this thread is unsafe: a lock held by another thread would
    never be released in the child, and the kernel kills the child when this thread ends."""
    conf, here = app.conf, threading.current_thread()
    if conf.worker_pool != "prefork" or conf.worker_start_method not in FORKING:
        return
    others = [thread.name for thread in threading.enumerate() if thread is not here]
    if here is not threading.main_thread():
        why = "this is not its main thread"
    elif others:
        why = f"it has other threads ({', '.join(others)})"
    else:
        return
    raise ConfigurationError(
        f"this program cannot be forked safely here, because {why}: start the worker in the main thread "
        "before any other begins, or use pool='threads', or start_method='spawn'",
        setting="worker_pool",
    )


def make_pool(
    app: QWorker,
    settings: PoolSettings,
    zygote: Zygote | None,
    on_ended: OnEnded,
    on_stored: OnStored,
    on_room: OnRoom,
    on_crash: Callable[[str, BaseException], None],
) -> TaskPool:
    """Return the pool named by the setting ``worker_pool``, not started yet."""
    kind: str = app.conf.worker_pool
    if kind != "prefork":
        from qworker.components.pool.thread_pool import ThreadPool

        if any(task.time_limit or task.soft_time_limit for task in app.tasks.values()):
            logger.warning("time limits of sync tasks need the prefork pool: %s does not enforce them", kind)
        return ThreadPool(app, settings, on_ended, on_stored, on_room, kind)
    from qworker.components.pool.process_pool import ProcessPool

    spawner: Spawner
    if zygote is not None:
        from qworker.components.pool.spawner import ZygoteSpawner

        spawner = ZygoteSpawner(zygote)
    else:
        from qworker.components.pool.billiard_spawner import BilliardSpawner

        spawner = BilliardSpawner(app.conf.worker_start_method, _path_of(app))
    return ProcessPool(settings, spawner, on_ended, on_stored, on_room, on_crash)


def _path_of(app: QWorker) -> str:
    """Return ``module:attribute`` of *app*, for children that import it anew."""
    import sys

    # The main program last: it may have imported the app from another module, and a spawned process cannot
    # import it if it has no file.
    mains = ("__main__", "__mp_main__")
    for name, module in sorted(sys.modules.items(), key=lambda item: item[0] in mains):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and not name.startswith("qworker."):
                return f"{name}:{attribute}"
    raise QWorkerError(
        f"no module has the app {app.main!r} as an attribute, so a spawned process could not find it: "
        "make it a global of a module, or use --start-method zygote"
    )
