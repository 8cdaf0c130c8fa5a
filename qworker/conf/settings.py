"""Settings: one typed declaration for each, with its default, its kind, its bounds and its line of reference.

Comes from:  nothing; this is the list the documentation, the checks and `qworker config` are made from.
Goes to:     `resolved.Settings`, which inherits the names and types and holds the values.
Thread:      built once at import, never changed.
Names are Celery's wherever Celery has one. Durations are float seconds, sizes are bytes unless the line says KiB.
"""

from typing import Any, NamedTuple

from qworker.conf import kinds
from qworker.conf.kinds import Kind

LOG_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"
TASK_LOG_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(task_name)s[%(task_id)s]: %(message)s"


class Setting(NamedTuple):
    """The declaration of one setting. `minimum` is inclusive; `nullable`: None may be given and means the default."""

    name: str
    kind: Kind
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    nullable: bool = False

    def read(self, value: Any) -> Any:
        """The value this setting takes for a raw value of any source; ValueError says what it must be."""
        if value is None or (
            self.nullable and isinstance(value, str) and value.strip().lower() in ("none", "null")
        ):
            if self.nullable:
                return self.fresh_default()
            raise ValueError("must not be None; leave it out to get the default")
        result = self.kind.read(value)
        if self.choices and result not in self.choices:
            raise ValueError("must be one of " + ", ".join(self.choices))
        if self.minimum is not None and result < self.minimum:
            raise ValueError(f"must be at least {self.minimum:g}")
        if self.maximum is not None and result > self.maximum:
            raise ValueError(f"must be at most {self.maximum:g}")
        return self.default | result if self.kind is kinds.POLICY else result

    def fresh_default(self) -> Any:
        """The default, as a copy where it could be changed."""
        return self.default.copy() if isinstance(self.default, (dict, list)) else self.default


def _declare(kind: Kind, default: Any, doc: str, **bounds: Any) -> Any:
    bounds.setdefault("nullable", default is None)
    return (kind, default, doc, bounds)


class Declarations:
    """Names and types of all settings; `SETTINGS` below holds their declarations."""

    broker_url: str | None = _declare(
        kinds.URL,
        None,
        "Where messages are kept. None: the embedded broker, `.qworker/qworker.db` in the working directory; `sqlite:///path` for another file.",
    )
    result_backend: str | None = _declare(
        kinds.BACKEND_URL,
        None,
        "Where results are kept. None: the broker's own file when the broker is embedded; else `disabled://`, `cache+memory://`, `file:///directory`, `sqlite:///path`, `db+postgresql://…`.",
    )
    security_key: tuple[str, ...] | None = _declare(
        kinds.SECRETS,
        None,
        'Key that signs messages (HMAC-SHA256), at least 32 bytes, or a list of them: the first signs, all verify, so that keys can be rotated. Several in the environment variable are a JSON list, `QWORKER_SECURITY_KEY=\'["new key", "old key"]\'`; text with commas, semicolons, spaces or quotes is refused. Needed for pickle.',
    )
    accept_content: tuple[str, ...] = _declare(
        kinds.NAMES, ("json",), "Serializers a worker accepts in messages; everything else is dead-lettered."
    )
    timezone: str = _declare(
        kinds.TIMEZONE,
        "UTC",
        "Time zone of naive datetimes in `eta` and `expires`, and of times people read.",
    )
    enable_utc: bool = _declare(
        kinds.BOOLEAN,
        True,
        "Messages always carry UTC; here so that configurations for Celery are understood.",
    )
    imports: tuple[str, ...] = _declare(
        kinds.NAMES, (), "Modules a worker imports at start, so that their tasks are known."
    )
    include: tuple[str, ...] = _declare(
        kinds.NAMES, (), "More modules to import; the same as `imports`, kept apart as in Celery."
    )
    middleware: tuple[Any, ...] = _declare(
        kinds.OBJECTS, (), "Middleware objects, classes or their dotted names, outermost first."
    )

    embedded_synchronous: str = _declare(
        kinds.TEXT,
        "FULL",
        "How the embedded broker writes a published message. FULL: on disk before `delay()` returns. NORMAL: three times as fast, but a power cut may take the last moments.",
        choices=("FULL", "NORMAL"),
    )

    message_max_bytes: int = _declare(
        kinds.BYTES, 16 * 1024**2, "Largest message body that can be published or is accepted.", minimum=1024
    )
    message_warn_bytes: int = _declare(
        kinds.BYTES, 1024**2, "Body size from which publishing logs a warning.", minimum=0
    )
    dead_letter_expires: float = _declare(
        kinds.DURATION, 604800.0, "How long dead letters are kept.", minimum=1
    )
    dead_letter_max: int = _declare(
        kinds.INTEGER, 10000, "How many dead letters a queue keeps; the oldest go first.", minimum=1
    )
    revokes_max: int = _declare(kinds.INTEGER, 50000, "How many revoked task ids are remembered.", minimum=1)
    revoke_expires: float = _declare(
        kinds.DURATION, 86400.0, "How long a revoked task id is remembered.", minimum=1
    )

    task_default_queue: str = _declare(
        kinds.QUEUE, "celery", "Queue of tasks that no option and no route sends elsewhere."
    )
    task_default_exchange: str | None = _declare(
        kinds.TEXT,
        None,
        "Exchange of those tasks; None: the queue's name. The embedded broker delivers by queue.",
    )
    task_default_routing_key: str | None = _declare(
        kinds.TEXT, None, "Routing key of those tasks; None: the queue's name."
    )
    task_queues: dict[str, dict[str, Any]] = _declare(
        kinds.QUEUES,
        {},
        "Queues with their options: a mapping name → options, a list of names, or of kombu.Queue.",
        nullable=True,
    )
    task_routes: list[Any] = _declare(
        kinds.ROUTES,
        [],
        "Which task goes to which queue: mappings of a name or pattern to a queue or options, functions, or their dotted names; the first answer wins.",
        nullable=True,
    )
    task_create_missing_queues: bool = _declare(
        kinds.BOOLEAN, True, "Whether a queue that is not in `task_queues` may be used."
    )
    task_default_priority: int | None = _declare(
        kinds.INTEGER,
        None,
        "Priority of tasks that name none: 0 (least, the same as None) to 9 (most urgent).",
        minimum=0,
        maximum=9,
    )
    task_queue_max_priority: int = _declare(
        kinds.INTEGER, 9, "Highest priority a queue keeps apart.", minimum=0, maximum=9, nullable=True
    )
    task_inherit_parent_priority: bool = _declare(
        kinds.BOOLEAN, False, "A task sent by a task takes its priority."
    )

    task_serializer: str = _declare(kinds.TEXT, "json", "Serializer of arguments.")
    task_compression: str | None = _declare(
        kinds.TEXT, None, "Compression of message bodies: gzip, bzip2, lzma, zstd…"
    )
    task_protocol: int = _declare(
        kinds.INTEGER,
        2,
        "Version of the message protocol that is sent; both are accepted.",
        minimum=2,
        maximum=2,
    )
    task_publish_retry: bool = _declare(kinds.BOOLEAN, True, "Try again when publishing fails.")
    task_publish_retry_policy: dict[str, Any] = _declare(
        kinds.POLICY,
        {"max_retries": 5, "interval_start": 0.1, "interval_step": 0.5, "interval_max": 3.0},
        "How often and after which pauses (seconds); keys that are left out keep their default.",
    )
    task_publish_timeout: float = _declare(
        kinds.DURATION, 10.0, "One deadline for publishing, all tries included.", minimum=0.01
    )
    task_send_sent_event: bool = _declare(kinds.BOOLEAN, False, "Tell the cluster of each task that is sent.")
    task_always_eager: bool = _declare(
        kinds.BOOLEAN, False, "Run tasks in the caller, at once, without broker or worker; for tests."
    )
    task_eager_propagates: bool = _declare(
        kinds.BOOLEAN, False, "Errors of eager tasks are raised in the caller."
    )
    task_store_eager_result: bool = _declare(kinds.BOOLEAN, False, "Results of eager tasks are stored too.")

    task_acks_late: bool = _declare(
        kinds.BOOLEAN,
        True,
        "Acknowledge after the run: a task whose worker dies runs again. False: before it, so that it never runs twice and may be lost.",
    )
    task_acks_on_failure_or_timeout: bool = _declare(
        kinds.BOOLEAN,
        True,
        "Failed tasks and those over their time limit are acknowledged; False: rejected to the dead letters.",
    )
    task_reject_on_worker_lost: bool = _declare(
        kinds.BOOLEAN, True, "A task whose process died is delivered again, counted by `task_max_deliveries`."
    )
    task_max_deliveries: int = _declare(
        kinds.INTEGER,
        5,
        "Deliveries after which a task that kills its process goes to the dead letters.",
        minimum=1,
    )
    task_unknown_delays: tuple[float, ...] = _declare(
        kinds.DURATIONS,
        (30.0, 120.0, 300.0),
        "Pauses with which a task no worker knows goes back to its queue, before it is dead-lettered; time for a rolling deployment.",
    )
    task_ignore_result: bool = _declare(kinds.BOOLEAN, False, "Do not store results.")
    task_store_errors_even_if_ignored: bool = _declare(
        kinds.BOOLEAN, False, "Store failures of tasks whose result is ignored."
    )
    task_track_started: bool = _declare(kinds.BOOLEAN, False, "Store the state STARTED when a task begins.")
    task_time_limit: float | None = _declare(
        kinds.DURATION,
        None,
        "Hard limit: the process that runs the task is killed and replaced.",
        minimum=0.001,
    )
    task_soft_time_limit: float | None = _declare(
        kinds.DURATION, None, "Soft limit: SoftTimeLimitExceeded is raised in the task.", minimum=0.001
    )
    task_default_rate_limit: str | None = _declare(
        kinds.RATE, None, 'Rate of every task that names none, for each worker: "10/s", "100/m", "5/h".'
    )
    task_annotations: Any = _declare(
        kinds.ANYTHING,
        None,
        'Attributes set on tasks by name or pattern: {"proj.add": {"rate_limit": "10/s"}}.',
    )

    result_serializer: str = _declare(kinds.TEXT, "json", "Serializer of results.")
    result_accept_content: tuple[str, ...] | None = _declare(
        kinds.NAMES, None, "Serializers accepted in results; None: as `accept_content`."
    )
    result_compression: str | None = _declare(kinds.TEXT, None, "Compression of results.")
    result_expires: float = _declare(kinds.DURATION, 86400.0, "How long results are kept.", minimum=1)
    result_extended: bool = _declare(
        kinds.BOOLEAN, False, "Store name, arguments, worker, retries and queue with each result."
    )
    result_store_patience: float = _declare(
        kinds.DURATION,
        30.0,
        "How long a worker tries to store a result; then the task goes back to its queue.",
        minimum=0,
    )

    database_table_names: dict[str, str] = _declare(
        kinds.MAPPING, {}, "Table names of the SQL result store, by `task` and `group`.", nullable=True
    )
    database_engine_options: dict[str, Any] = _declare(
        kinds.MAPPING, {}, "Options for SQLAlchemy's `create_engine`.", nullable=True
    )
    database_short_lived_sessions: bool = _declare(
        kinds.BOOLEAN, False, "Close the database connection after each use."
    )

    worker_concurrency: int | None = _declare(
        kinds.INTEGER,
        None,
        "Processes or threads that run tasks; None: the number of processors.",
        minimum=1,
        maximum=1024,
    )
    worker_pool: str = _declare(
        kinds.TEXT,
        "prefork",
        "What runs tasks: processes, threads, or the worker itself, one after the other.",
        choices=("prefork", "threads", "solo"),
    )
    worker_prefetch_multiplier: int = _declare(
        kinds.INTEGER,
        1,
        "Messages a worker holds for each process beside the running one.",
        minimum=1,
        maximum=10000,
    )
    worker_async_concurrency: int = _declare(
        kinds.INTEGER, 100, "`async def` tasks that run at once in each process.", minimum=1
    )
    worker_eta_window: float = _declare(
        kinds.DURATION,
        5.0,
        "Tasks due within this time wait in the worker; later ones stay in the broker.",
        minimum=0,
    )
    worker_eta_task_limit: int = _declare(
        kinds.INTEGER, 1000, "Most tasks with an ETA that wait in the worker.", minimum=1
    )
    worker_lease_seconds: float = _declare(
        kinds.DURATION,
        15.0,
        "How long a silent worker keeps its messages; it renews while it lives.",
        minimum=1,
    )
    worker_ack_flush_seconds: float = _declare(
        kinds.DURATION,
        0.005,
        "Acknowledgements wait this long for others to be written with them.",
        minimum=0,
        maximum=1,
    )
    worker_ack_flush_count: int = _declare(
        kinds.INTEGER, 64, "…but not longer than for this many.", minimum=1
    )
    worker_frame_seconds: float = _declare(
        kinds.DURATION,
        0.005,
        "Short tasks travel to a process together, up to this much expected work.",
        minimum=0,
        maximum=1,
    )
    worker_max_tasks_per_child: int | None = _declare(
        kinds.INTEGER, None, "A process is replaced after this many tasks.", minimum=1
    )
    worker_max_memory_per_child: int | None = _declare(
        kinds.KIBIBYTES,
        None,
        'A process is replaced after a task that leaves it above this much resident memory (KiB, or text such as "200MB").',
        minimum=1024,
    )
    worker_start_method: str = _declare(
        kinds.TEXT,
        "zygote",
        "How processes begin: forked from a small copy made before any thread exists, from a fork server, or anew. `fork` means `zygote`.",
        choices=("zygote", "fork", "forkserver", "spawn"),
    )
    worker_proc_alive_timeout: float = _declare(
        kinds.DURATION, 10.0, "How long a new process may take until it is ready.", minimum=0.1
    )
    worker_shutdown_timeout: float = _declare(
        kinds.DURATION,
        25.0,
        "How long running tasks may go on after the first signal to stop; then they go back to the broker.",
        minimum=0,
    )
    worker_soft_shutdown_timeout: float = _declare(
        kinds.DURATION, 0.0, "How long, after that, interrupted tasks may take to clean up.", minimum=0
    )
    worker_send_task_events: bool = _declare(
        kinds.BOOLEAN, False, "Tell the cluster what happens to each task."
    )
    worker_redirect_stdouts: bool = _declare(kinds.BOOLEAN, True, "What tasks print goes to the log.")
    worker_redirect_stdouts_level: str = _declare(
        kinds.TEXT, "WARNING", "…at this level.", choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    )
    worker_hijack_root_logger: bool = _declare(
        kinds.BOOLEAN, True, "Replace handlers that were set up on the root logger before."
    )
    worker_log_format: str = _declare(kinds.TEXT, LOG_FORMAT, "Format of log lines.")
    worker_task_log_format: str = _declare(
        kinds.TEXT, TASK_LOG_FORMAT, "Format of lines logged by tasks; has `task_name` and `task_id`."
    )
    worker_log_color: bool | None = _declare(
        kinds.BOOLEAN, None, "Colours in the log; None: when it goes to a terminal."
    )
    worker_log_json: bool = _declare(kinds.BOOLEAN, False, "Log one JSON object a line.")


def _collect(owner: type) -> dict[str, Setting]:
    """Takes the declarations off the class, so that instances hold plain attributes and nothing shadows them."""
    settings = {}
    for name in owner.__annotations__:
        kind, default, doc, bounds = getattr(owner, name)
        settings[name] = Setting(name, kind, default, doc, **bounds)
        delattr(owner, name)
    return settings


SETTINGS: dict[str, Setting] = _collect(Declarations)
