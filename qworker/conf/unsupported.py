"""Unsupported: Celery's names that this version does not have, each with an explanation.

Comes from:  ``__getattr__`` of the app, tasks, results, signatures, signals and the package ``qworker``; the
             command line.
Goes to:     the user, as an error at the line that uses the name.
Thread:      constants and pure functions.

A name that is in no table raises a plain AttributeError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qworker.errors import NotAvailable

LATER = "comes in a later version"
_SCHEDULES = "schedules are stored at the setting beat_store"
_EVENTS = (
    f"events {LATER.replace('comes', 'come')}; until then, signals such as qworker.signals.task_success "
    "report what happens in a worker"
)
_STEPS = "there are no boot steps: signals observe a worker, and middleware changes its behaviour"
_STAMPS = "calls cannot be selected by stamps: revoke() takes ids"
_EVENTLET = "qworker uses no greenlets: `async def` tasks run on an event loop, others with `--pool threads`"
_KOMBU = (
    "send calls with app.send_task() or task.apply_async(); for messages of another kind use kombu itself"
)
_HOOKS = "middleware (qworker.Middleware) changes how a task is published and run"

APP = {
    "Beat": "`qworker beat` runs the schedules, and so does a worker with --beat",
    "WorkController": "app.Worker() is a worker inside a program; for tests there is "
    "qworker.testing.StepWorker",
    "amqp": "queues are declared by the setting task_queues, and calls are sent by app.send_task()",
    "annotations": "app.conf.task_annotations holds them",
    "autofinalize": "the app is finalized on first use; app.finalized is True afterwards",
    "bugreport": "the command `qworker report` prints it",
    "canvas": "import it: from qworker import canvas",
    "config_from_cmdline": "`qworker start` has options, and every setting may be an environment variable "
    "QWORKER_…",
    "configured": "settings are read on first use; app.conf.resolve() reads them now",
    "create_task_cls": "subclass qworker.Task",
    "either": "use app.conf.get(name, default)",
    "events": _EVENTS,
    "fixups": "a Django project uses qworker.django instead",
    "loader": "settings come from config_from_object(), modules of tasks from imports, include and "
    "autodiscover_tasks()",
    "log": "qworker.logs.setup() configures logging, and the signals setup_logging and after_setup_logger",
    "namespace": "app.conf.rows() shows where each setting comes from",
    "now": "use datetime.now(UTC)",
    "select_queues": "`qworker start --queues` sets the queues of a worker",
    "set_as_current": "compare the app with qworker.current_app",
    "setup_security": "messages are signed with the setting security_key (HMAC), not with certificates",
    "steps": _STEPS,
    "subclass_with_self": "pass the app as an argument",
    "strict_typing": "use @app.task(typing=False) if arguments should not be checked",
    "timezone": "app.conf.timezone is its name, for zoneinfo.ZoneInfo",
    "type_checker": "task.check_arguments() raises the TypeError that calling the function would raise",
    "user_options": "commands accept no custom options: read an environment variable instead",
    "uses_utc_timezone": "app.conf.timezone is the name of the zone",
}

APP_ARGUMENTS = {
    "amqp": APP["amqp"],
    "autofinalize": "the app is finalized on first use; this cannot be disabled",
    "control": "app.control cannot be replaced; signals and middleware change what happens",
    "events": _EVENTS,
    "fixups": APP["fixups"],
    "loader": APP["loader"],
    "log": APP["log"],
    "strict_typing": "use @app.task(typing=False) if arguments should not be checked",
    "tasks": "tasks are registered by @app.task and app.register_task()",
}

_OWN_LOG = "the program configures logging itself, for example with qworker.logs.setup()"
WORKER_ARGUMENTS = {
    "autoscale": "concurrency is the number of threads or processes; idle ones cost little",
    "beat": "`qworker beat` runs the schedules, and so does `qworker start --beat`",
    "exclude_queues": "queues names the queues to consume",
    "logfile": _OWN_LOG,
    "loglevel": _OWN_LOG,
    "pidfile": "the program writes its own",
    "pool_cls": "use pool=",
    "purge": "run `qworker purge` first",
    "statedb": "revocations are stored in the broker",
    "task_events": _EVENTS,
}
"""Arguments of Celery's ``app.Worker``."""

APP_OVERRIDES = {
    **{f"{part}_cls": sentence for part, sentence in APP_ARGUMENTS.items()},
    "backend_cls": "see qworker.transports and qworker.backends for adding stores; pass a URL as backend=",
    "registry_cls": APP_ARGUMENTS["tasks"],
    "prepare_config": "connect to app.on_configure",
    "create_task_cls": APP["create_task_cls"],
}
"""Attributes that have no effect when a subclass of the app defines them."""

_ON_COMMIT = (
    "within `with app.publishing_in(connection):` calls are sent by the commit, if the broker is the "
    "database; otherwise use Django's transaction.on_commit(partial(task.delay, …))"
)
TASK = {
    "abstract": "a subclass of qworker.Task must be registered to become a task",
    "add_trail": "a task's calls are recorded automatically, as task.request.children",
    "from_config": "an option that is None is taken from its setting",
    "acks_on_failure": "acks_on_failure_or_timeout applies to both",
    "acks_on_timeout": "acks_on_failure_or_timeout applies to both",
    "retry_on_worker_lost": "reject_on_worker_lost redelivers the message; max_deliveries limits how often",
    "store_eager_result": "see app.conf.task_store_eager_result",
    "Request": _HOOKS,
    "Strategy": _HOOKS,
    "add_around": _HOOKS,
    "apply_async_on_commit": _ON_COMMIT,
    "delay_on_commit": _ON_COMMIT,
    "pop_request": "call task.apply() to run it with a request",
    "push_request": "call task.apply() to run it with a request",
    "request_stack": "task.request is the request of the running task",
    "send_event": _EVENTS,
    "signature_from_request": "task.retry(args=…, kwargs=…) sends the next attempt",
    "start_strategy": _HOOKS,
    "subtask_from_request": "task.retry(args=…, kwargs=…) sends the next attempt",
}
ONE_STORE = "an app has one result store for all tasks: set result_backend, or make another app"
_ONE_SWITCH = "acks_on_failure_or_timeout applies to both"

TASK_OPTIONS = {
    "Request": _HOOKS,
    "Strategy": _HOOKS,
    "acks_on_failure": _ONE_SWITCH,
    "acks_on_timeout": _ONE_SWITCH,
    "backend": ONE_STORE,
    "exchange_type": "an exchange is declared with its queue, in the setting task_queues",
    "lazy": "a task is made when it is defined, and its settings are read on first use",
    "retry_on_worker_lost": "reject_on_worker_lost redelivers the message; max_deliveries limits how often",
    "run": "decorate the function, or subclass qworker.Task and define run()",
    "shared": "a task belongs to its app; @shared_task makes one that belongs to every app",
}

OVERRIDES = {
    name: TASK_OPTIONS.get(name) or TASK[name]
    for name in ("Request", "Strategy", "start_strategy", "acks_on_failure", "acks_on_timeout",
    "retry_on_worker_lost",
                 "request_stack", "from_config", "store_eager_result")
}  # fmt: skip
"""Attributes that would have no effect in a subclass of Task, so defining one is an error."""

RESULT = {
    "revoke_by_stamped_headers": _STAMPS,
    "throw": "maybe_throw() raises what the task raised",
    "on_ready": "result.then(callback) is called when it has ended",
}

SIGNATURE = {
    "append_to_list_option": "link() and link_error() add callbacks",
    "extend_list_option": "link() and link_error() add callbacks",
    "AsyncResult": "app.AsyncResult(id) is the handle of a call; freeze() gives that of a signature",
    "register_type": "the kinds are fixed (chain, group, chord, mappings); a task can send any calls",
    "election": "workers do not elect a leader",
}

SIGNALS = {
    "heartbeat_sent": "`qworker health` says whether a worker is alive",
    "eventlet_pool_started": _EVENTLET,
    "eventlet_pool_preshutdown": _EVENTLET,
    "eventlet_pool_postshutdown": _EVENTLET,
    "eventlet_pool_apply": _EVENTLET,
    "user_preload_options": "commands accept no custom options: read an environment variable instead",
}

FRONT_DOOR = {
    "Celery": "the app's class is QWorker here: from qworker import QWorker",
    "bootsteps": _STEPS,
    "task": "decorate with @app.task, or with @shared_task",
    "uuid": "use Python's uuid.uuid4(); qworker makes ids itself if none is given",
    "bugreport": APP["bugreport"],
    "maybe_patch_concurrency": _EVENTLET,
    "schedules": "crontab, schedule and solar are in qworker.beat",
    "events": _EVENTS,
    "contrib": "abortable tasks, rdb and the pytest plugin are not in this version; see the migration guide",
    "bin": "the command line is qworker.cli.main",
    "exceptions": "errors are in qworker.errors, also under Celery's names; qworker has the common ones",
    "result": "AsyncResult, GroupResult and ResultSet are in qworker",
    "utils": "get_task_logger is in qworker; the rest of celery.utils has no counterpart",
    "local": "current_app is in qworker",
    "loaders": "settings come from app.config_from_object(), modules of tasks from imports and include",
    "concurrency": "`qworker start --pool` selects prefork, threads or solo",
    "fixups": APP["fixups"],
    "platforms": "let your init system start workers: `qworker init systemd` prints the files",
    "worker_main": "app.worker_main() runs a worker",
    "security": APP["setup_security"],
}

COMMANDS = {
    "events": _EVENTS,
    "inspect": "`qworker workers` and `qworker tasks` show workers and their tasks; the rest " + LATER,
    "control": "`qworker revoke` stops tasks; the rest " + LATER,
    "status": "`qworker workers` lists the running workers",
    "multi": "start several with your init system: `qworker init systemd` prints the files",
    "list": "`qworker queues` shows queues",
    "amqp": "`qworker queues` and `qworker purge` manage queues; the broker's own tools do the rest",
    "migrate": "`qworker move` moves messages from one broker to another",
    "upgrade": "`qworker config check` lists old settings; old names are accepted",
    "logtool": "`qworker start --log-json` writes logs for any tool",
    "flower": "`qworker doctor`, `qworker queues` and the page of worker_http_address show what happens",
}

_DAEMON = "let your init system do it: `qworker init systemd` prints the files"
WORKER_OPTIONS = {
    "-s/--schedule/--schedule-filename": _SCHEDULES,
    "--scheduler": _SCHEDULES,
    "-E/--task-events/--events": _EVENTS,
    "--autoscale": "--concurrency is the number of processes; idle ones cost little",
    "-D/--detach": _DAEMON,
    "--uid": _DAEMON,
    "--gid": _DAEMON,
    "--umask": _DAEMON,
    "--executable": _DAEMON,
    "--workdir": _DAEMON,
    "-S/--statedb": "revocations are stored in the broker",
    "--purge/--discard": "run `qworker purge` first",
    "-X/--exclude-queues": "--queues names the queues to consume",
    "-I/--include": "set include, or QWORKER_INCLUDE=a,b",
    "--disable-prefetch": "--prefetch-multiplier 1 prefetches one message for each process",
    "--pool-start-method": "use --start-method",
    "--heartbeat-interval": "a worker renews its lease itself; see worker_lease_seconds",
}
"""Options of `celery worker` that are not supported."""

BEAT_OPTIONS = {
    "-s/--schedule": _SCHEDULES,
    "-S/--scheduler": _SCHEDULES,
    "--detach": _DAEMON,
    "--uid": _DAEMON,
    "--gid": _DAEMON,
    "--umask": _DAEMON,
    "--executable": _DAEMON,
    "--workdir": _DAEMON,
}
"""Options of `celery beat` that are not supported."""

BEAT_OPTIONS_WITHOUT_EFFECT = {"--max-interval": True}
"""Options of `celery beat` that are accepted but not needed. True for those that take a value."""

OPTIONS_WITHOUT_EFFECT = {
    "--without-gossip": False,
    "--without-mingle": False,
    "--without-heartbeat": False,
    "-O/--optimization": True,
}
"""Options of `celery worker` that are accepted but not needed: workers never communicate with each other, and
tasks always go to free processes (`-O fair`). True for those that take a value."""


def unsupported(what: str, name: str, table: Mapping[str, str]) -> AttributeError:
    """Return the error for *name*, missing in *what* (such as "app"), with its explanation in *table*."""
    if name in table:
        return NotAvailable(f"{what}.{name} is not in qworker: {table[name]}")
    return AttributeError(f"{what} has no attribute {name!r}")


def refuse(what: str, names: Iterable[str], table: Mapping[str, str]) -> None:
    """Raise NotAvailable for the first of *names* that is in *table*.

    - what: where the names were used, for the error: "QWorker(…)", "task proj.add".
    """
    for name in names:
        if name in table:
            raise NotAvailable(f"{what}: {name} is not in qworker: {table[name]}")
