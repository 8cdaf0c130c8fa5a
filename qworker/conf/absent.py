"""Absent: what Celery has under some name and this version has not, each with the sentence that says so.

Comes from:  ``__getattr__`` of the app, tasks, results, signatures, signals and the front door; the command
             line.
Goes to:     whoever wrote the name, as an error at that line.
Thread:      constants and pure functions.

A name that is in no table is a misspelling, and gets Python's plain AttributeError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qworker.errors import NotAvailable

LATER = "comes in a later version"
_SCHEDULES = "schedules are kept where the setting beat_store says"
_EVENTS = (
    f"events {LATER.replace('comes', 'come')}; until then signals, as qworker.signals.task_success, tell "
    "what happens in a worker"
)
_STEPS = "there are no boot steps here: signals observe a worker, and middleware changes what it does"
_STAMPS = "revoke() takes ids"
_EVENTLET = "there are no greenlets here: `async def` tasks run as they are, and `--pool threads` runs others"
_KOMBU = (
    "send calls with app.send_task() or task.apply_async(); for messages of another kind use kombu itself"
)
_HOOKS = "middleware (qworker.Middleware) is what changes how a task is published and run"

APP = {
    "Beat": "`qworker beat` looks after the schedules, and so does a worker with --beat",
    "WorkController": "app.Worker() is a worker inside a program; for tests there is "
    "qworker.testing.StepWorker",
    "amqp": "queues are declared by the setting task_queues, and calls are sent by app.send_task()",
    "annotations": "app.conf.task_annotations holds them",
    "autofinalize": "app.finalized tells whether it is finalized; that happens at first use",
    "bugreport": "the command `qworker report` prints it",
    "canvas": "import it: from qworker import canvas",
    "config_from_cmdline": "`qworker start` has options, and every setting may be an environment variable "
    "QWORKER_…",
    "configured": "settings are read at first use; app.conf.resolve() reads them now",
    "create_task_cls": "subclass qworker.Task",
    "either": "say app.conf.get(name, default)",
    "events": _EVENTS,
    "fixups": "there are none: what Django needs comes with its integration, in a later version",
    "loader": "settings come from config_from_object(), modules of tasks from imports, include and "
    "autodiscover_tasks()",
    "log": "qworker.logs.setup() sets logs up; the signals setup_logging and after_setup_logger change them",
    "namespace": "app.conf.rows() tells where each setting came from",
    "now": "datetime.now(UTC) of Python says it",
    "select_queues": "`qworker start --queues` says what a worker consumes",
    "set_as_current": "app is qworker.current_app tells whether it is",
    "setup_security": "messages are signed with the setting security_key (HMAC), not with certificates",
    "steps": _STEPS,
    "subclass_with_self": "pass the app as an argument",
    "strict_typing": "say @app.task(typing=False) where arguments are not to be checked",
    "timezone": "app.conf.timezone is its name; zoneinfo.ZoneInfo makes a zone of that",
    "type_checker": "task.check_arguments() raises the TypeError that calling the function would raise",
    "user_options": "commands take no options of your own: read an environment variable instead",
    "uses_utc_timezone": "app.conf.timezone is the name of the zone",
}

APP_ARGUMENTS = {
    "amqp": APP["amqp"],
    "autofinalize": "the app is finalized at its first use; there is no way to forbid it",
    "control": "app.control is what it is; signals and middleware change what happens",
    "events": _EVENTS,
    "fixups": APP["fixups"],
    "loader": APP["loader"],
    "log": APP["log"],
    "strict_typing": "say @app.task(typing=False) where arguments are not to be checked",
    "tasks": "tasks are registered by @app.task and app.register_task()",
}

_OWN_LOG = "the program's own log has it: set up logging, or call qworker.logs.setup()"
WORKER_ARGUMENTS = {
    "autoscale": "concurrency is the number of threads or processes; idle ones cost little",
    "beat": "`qworker beat` looks after the schedules, and so does `qworker start --beat`",
    "exclude_queues": "queues names those that it works on",
    "logfile": _OWN_LOG,
    "loglevel": _OWN_LOG,
    "pidfile": "the program has its own",
    "pool_cls": "it is pool= here",
    "purge": "run `qworker purge` first",
    "statedb": "what was revoked is kept in the broker",
    "task_events": _EVENTS,
}
"""Arguments of Celery's ``app.Worker``."""

APP_OVERRIDES = {
    **{f"{part}_cls": sentence for part, sentence in APP_ARGUMENTS.items()},
    "backend_cls": "qworker.transports and qworker.backends say how stores are added; give backend= a URL",
    "registry_cls": APP_ARGUMENTS["tasks"],
    "prepare_config": "connect to app.on_configure",
    "create_task_cls": APP["create_task_cls"],
}
"""What a subclass of the app cannot change by defining it."""

_ON_COMMIT = (
    "within `with app.publishing_in(connection):` calls are sent by the commit, where the broker is the "
    "database; else transaction.on_commit(partial(task.delay, …)) of Django's sends them after it"
)
TASK = {
    "abstract": "a subclass of qworker.Task is not a task before it is registered",
    "add_trail": "a task's calls are remembered by themselves, as task.request.children",
    "from_config": "an option that is None is taken from its setting",
    "acks_on_failure": "acks_on_failure_or_timeout says it for both",
    "acks_on_timeout": "acks_on_failure_or_timeout says it for both",
    "retry_on_worker_lost": "reject_on_worker_lost delivers it again, max_deliveries says how often",
    "store_eager_result": "app.conf.task_store_eager_result says it",
    "Request": _HOOKS,
    "Strategy": _HOOKS,
    "add_around": _HOOKS,
    "apply_async_on_commit": _ON_COMMIT,
    "delay_on_commit": _ON_COMMIT,
    "pop_request": "call task.apply() to run it with a request",
    "push_request": "call task.apply() to run it with a request",
    "request_stack": "task.request is the request of the task that is running",
    "send_event": _EVENTS,
    "signature_from_request": "task.retry(args=…, kwargs=…) sends the next attempt",
    "start_strategy": _HOOKS,
    "subtask_from_request": "task.retry(args=…, kwargs=…) sends the next attempt",
}
ONE_STORE = "results of all tasks of an app are in one store: say result_backend, or make another app"
_ONE_SWITCH = "acks_on_failure_or_timeout says it for both"

TASK_OPTIONS = {
    "Request": _HOOKS,
    "Strategy": _HOOKS,
    "acks_on_failure": _ONE_SWITCH,
    "acks_on_timeout": _ONE_SWITCH,
    "backend": ONE_STORE,
    "exchange_type": "an exchange is declared with its queue, in the setting task_queues",
    "lazy": "a task is made when it is defined; its settings are read at first use all the same",
    "retry_on_worker_lost": "reject_on_worker_lost delivers it again, max_deliveries says how often",
    "run": "decorate the function, or subclass qworker.Task and define run()",
    "shared": "a task belongs to its app; @shared_task makes one that belongs to every app",
}

OVERRIDES = {
    name: TASK_OPTIONS.get(name) or TASK[name]
    for name in ("Request", "Strategy", "start_strategy", "acks_on_failure", "acks_on_timeout",
    "retry_on_worker_lost",
                 "request_stack", "from_config", "store_eager_result")
}  # fmt: skip
"""What a subclass of Task cannot change by defining it: to find it there says that something is expected of
it."""

RESULT = {
    "revoke_by_stamped_headers": _STAMPS,
    "throw": "maybe_throw() raises what the task raised",
    "on_ready": "result.then(callback) is called when it has ended",
}

SIGNATURE = {
    "append_to_list_option": "link() and link_error() add callbacks",
    "extend_list_option": "link() and link_error() add callbacks",
    "AsyncResult": "app.AsyncResult(id) is the handle of a call; freeze() gives that of a signature",
    "register_type": "the kinds are chain, group, chord and the mappings; a task can send any calls",
    "election": "workers elect nobody here",
}

SIGNALS = {
    "heartbeat_sent": "`qworker health` says whether a worker is alive",
    "eventlet_pool_started": _EVENTLET,
    "eventlet_pool_preshutdown": _EVENTLET,
    "eventlet_pool_postshutdown": _EVENTLET,
    "eventlet_pool_apply": _EVENTLET,
    "user_preload_options": "commands take no options of your own: read an environment variable instead",
}

FRONT_DOOR = {
    "Celery": "the app's class is QWorker here: from qworker import QWorker",
    "bootsteps": _STEPS,
    "task": "decorate with @app.task, or with @shared_task",
    "uuid": "uuid.uuid4() of Python makes ids; qworker makes its own where none is given",
    "bugreport": APP["bugreport"],
    "maybe_patch_concurrency": _EVENTLET,
    "schedules": "crontab, schedule and solar are in qworker.beat",
    "events": _EVENTS,
    "contrib": "abortable tasks, rdb and the pytest plugin are not in this version; the migration guide says "
    "what to do",
    "bin": "the command line is qworker.cli.main",
    "exceptions": "errors are in qworker.errors, by Celery's names, too; the usual ones are in qworker",
    "result": "AsyncResult, GroupResult and ResultSet are in qworker",
    "utils": "get_task_logger is in qworker; the rest of Celery's utils is its own",
    "local": "current_app is in qworker",
    "loaders": "settings come from app.config_from_object(), modules of tasks from imports and include",
    "concurrency": "`qworker start --pool prefork`, threads or solo says what runs tasks",
    "fixups": APP["fixups"],
    "platforms": "let your init system start workers: `qworker init systemd` prints the files",
    "worker_main": "app.worker_main() runs a worker",
    "security": APP["setup_security"],
}

COMMANDS = {
    "events": _EVENTS,
    "inspect": "`qworker workers` and `qworker tasks` show workers and what they have; the rest " + LATER,
    "control": "`qworker revoke` stops tasks; the rest " + LATER,
    "status": "`qworker workers` shows which workers are there",
    "multi": "start several with your init system: `qworker init systemd` prints the files",
    "list": "`qworker queues` shows queues",
    "amqp": "`qworker queues` and `qworker purge` look at queues; the broker's own tools do the rest",
    "migrate": "`qworker move` moves messages from one broker to another",
    "upgrade": "`qworker config check` says which settings are old; old names are understood as they are",
    "logtool": "`qworker start --log-json` writes logs that any tool reads",
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
    "-S/--statedb": "what was revoked is kept in the broker",
    "--purge/--discard": "run `qworker purge` first",
    "-X/--exclude-queues": "--queues names those that it works on",
    "-I/--include": "set include, or QWORKER_INCLUDE=a,b",
    "--disable-prefetch": "--prefetch-multiplier 1 takes one message ahead for each process",
    "--pool-start-method": "it is --start-method here",
    "--heartbeat-interval": "a worker renews its lease by itself; worker_lease_seconds says how long "
    "one lasts",
}
"""Options of `celery worker` that would change something."""

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
"""Options of `celery beat` that would change something."""

BEAT_OPTIONS_WITHOUT_EFFECT = {"--max-interval": True}
"""Options of `celery beat` that are not needed: the scheduler rests until something is due, and no longer."""

OPTIONS_WITHOUT_EFFECT = {
    "--without-gossip": False,
    "--without-mingle": False,
    "--without-heartbeat": False,
    "-O/--optimization": True,
}
"""Options of `celery worker` that ask for what is so anyhow: workers do not talk to each other here, and
tasks go to processes that are free (`-O fair`). True of those that take a value."""


def absent(what: str, name: str, table: Mapping[str, str]) -> AttributeError:
    """Return the error for *name*, which *what* (such as "app") has not: with its sentence, if Celery knows
    it."""
    if name in table:
        return NotAvailable(f"{what}.{name} is not in qworker: {table[name]}")
    return AttributeError(f"{what} has no attribute {name!r}")


def refuse(what: str, names: Iterable[str], table: Mapping[str, str]) -> None:
    """Raise NotAvailable for the first of *names* that is in *table*.

    - what: what the error calls the place of the names: "QWorker(…)", "task proj.add".
    """
    for name in names:
        if name in table:
            raise NotAvailable(f"{what}: {name} is not in qworker: {table[name]}")
