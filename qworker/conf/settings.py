"""Settings: one typed declaration for each, with its default, its kind, its bounds and its line of reference.

Comes from:  nothing; this is the list the documentation, the checks and `qworker config` are made from.
Goes to:     `resolved.Settings`, which inherits the names and types and holds the values.
Thread:      built once at import, never changed. Names are Celery's wherever Celery has one. Durations are
             float seconds, sizes are bytes unless the line says KiB.
"""

from typing import Any

from qworker.conf import kinds
from qworker.conf.setting import Setting, declare

LOG_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"
TASK_LOG_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(task_name)s[%(task_id)s]: %(message)s"


class Declarations:
    """Names and types of all settings; `SETTINGS` below holds their declarations."""

    broker_url: str | None = declare(
        kinds.BROKER_URL,
        None,
        "Where messages are kept. None: the embedded broker, `.qworker/qworker.db` in the working directory; "
        "`sqlite:///path` for another file. Several, as a list or with `;` between them: the next one is "
        "used when one does not answer.",
    )
    broker_failover_strategy: str = declare(
        kinds.TEXT,
        "round-robin",
        "Which of several brokers is next: in order, or any.",
        choices=("round-robin", "shuffle"),
    )
    broker_transport_options: dict[str, Any] = declare(
        kinds.MAPPING, {}, "Options of the broker's transport, by name; see its how-to page.", nullable=True
    )
    broker_use_ssl: Any = declare(
        kinds.TLS,
        None,
        "TLS to a broker that is Redis or RabbitMQ: true, or a mapping of options as in Celery, such as "
        "`ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`, with `ssl_` before them or without. Certificates "
        "and host names are checked unless `ssl_cert_reqs` or `ssl_check_hostname` says otherwise.",
    )
    broker_connection_timeout: float = declare(
        kinds.DURATION, 4.0, "How long connecting to the broker may take.", minimum=0.1
    )
    broker_connection_retry_on_startup: bool = declare(
        kinds.BOOLEAN,
        True,
        "A worker waits for a broker that is not there yet when it starts, instead of ending.",
    )
    broker_heartbeat: float = declare(
        kinds.DURATION,
        10.0,
        "A worker's connection to RabbitMQ is dead when silent for twice so long; 0: never.",
        minimum=0,
    )
    result_backend: str | None = declare(
        kinds.BACKEND_URL,
        None,
        "Where results are kept. None: the broker's own file when the broker is embedded; else "
        "`disabled://`, `cache+memory://`, `file:///directory`, `sqlite:///path`, `redis://…`, "
        "`db+postgresql://…`.",
    )
    security_key: tuple[str, ...] | None = declare(
        kinds.SECRETS,
        None,
        "Key that signs messages, results and revocations (HMAC-SHA256), at least 32 bytes, or a list of "
        "them: the first signs, all verify, so that keys can be rotated. Several in the environment variable "
        'are a JSON list, `QWORKER_SECURITY_KEY=\'["new key", "old key"]\'`; text with commas, semicolons, '
        "spaces or quotes is refused. Needed for pickle.",
    )
    security_max_age: float = declare(
        kinds.DURATION,
        7 * 86400.0,
        "How old a signed message may be when a worker receives it, since it was sent, or since its `eta`; "
        "an older one becomes a dead letter, from where `qworker dead retry` signs it anew. 0: any age. Only "
        "with a `security_key`.",
        minimum=0,
    )
    accept_content: tuple[str, ...] = declare(
        kinds.NAMES, ("json",), "Serializers a worker accepts in messages; everything else is dead-lettered."
    )
    timezone: str = declare(
        kinds.TIMEZONE,
        "UTC",
        "Time zone of datetimes and ISO texts without an offset in `eta` and `expires`, and of times people "
        "read.",
    )
    enable_utc: bool = declare(
        kinds.BOOLEAN,
        True,
        "Messages always carry UTC; here so that configurations for Celery are understood.",
    )
    imports: tuple[str, ...] = declare(
        kinds.NAMES, (), "Modules a worker imports at start, so that their tasks are known."
    )
    include: tuple[str, ...] = declare(
        kinds.NAMES, (), "More modules to import; the same as `imports`, kept apart as in Celery."
    )
    middleware: tuple[Any, ...] = declare(
        kinds.OBJECTS, (), "Middleware objects, classes or their dotted names, outermost first."
    )

    embedded_synchronous: str = declare(
        kinds.TEXT,
        "FULL",
        "How the embedded broker writes a published message. FULL: on disk before `delay()` returns. NORMAL: "
        "three times as fast, but a power cut may take the last moments.",
        choices=("FULL", "NORMAL"),
    )

    message_max_bytes: int = declare(
        kinds.BYTES, 16 * 1024**2, "Largest message body that can be published or is accepted.", minimum=1024
    )
    message_warn_bytes: int = declare(
        kinds.BYTES, 1024**2, "Body size from which publishing logs a warning.", minimum=0
    )
    dead_letter_expires: float = declare(
        kinds.DURATION,
        604800.0,
        "How long dead letters are kept; on Amazon SQS and kombu's other transports until they are retried "
        "or discarded.",
        minimum=1,
    )
    dead_letter_max: int = declare(
        kinds.INTEGER,
        10000,
        "How many dead letters of each queue are kept; the oldest go first. Amazon SQS and kombu's other "
        "transports keep all.",
        minimum=1,
    )
    revokes_max: int = declare(kinds.INTEGER, 50000, "How many revoked task ids are remembered.", minimum=1)
    revoke_expires: float = declare(
        kinds.DURATION, 86400.0, "How long a revoked task id is remembered.", minimum=1
    )

    task_default_queue: str = declare(
        kinds.QUEUE, "celery", "Queue of tasks that no option and no route sends elsewhere."
    )
    task_default_queue_type: str = declare(
        kinds.TEXT, "classic", "Type of queues made in RabbitMQ.", choices=("classic", "quorum")
    )
    task_default_exchange: str | None = declare(
        kinds.TEXT,
        None,
        "Exchange of those tasks; None: the queue's name. The embedded broker delivers by queue.",
    )
    task_default_routing_key: str | None = declare(
        kinds.TEXT, None, "Routing key of those tasks; None: the queue's name."
    )
    task_queues: dict[str, dict[str, Any]] = declare(
        kinds.QUEUES,
        {},
        "Queues with their options: a mapping name → options, a list of names, or of kombu.Queue.",
        nullable=True,
    )
    task_routes: list[Any] = declare(
        kinds.ROUTES,
        [],
        "Which task goes to which queue: mappings of a name or pattern to a queue or options, functions, or "
        "their dotted names; the first answer wins.",
        nullable=True,
    )
    task_create_missing_queues: bool = declare(
        kinds.BOOLEAN, True, "Whether a queue that is not in `task_queues` may be used."
    )
    task_default_priority: int | None = declare(
        kinds.INTEGER,
        None,
        "Priority of tasks that name none: 0 (least, the same as None) to 9 (most urgent).",
        minimum=0,
        maximum=9,
    )
    task_queue_max_priority: int = declare(
        kinds.INTEGER, 9, "Highest priority a queue keeps apart.", minimum=0, maximum=9, nullable=True
    )
    task_inherit_parent_priority: bool = declare(
        kinds.BOOLEAN, False, "A task sent by a task takes its priority."
    )

    task_serializer: str = declare(kinds.TEXT, "json", "Serializer of arguments.")
    task_compression: str | None = declare(
        kinds.TEXT, None, "Compression of message bodies: gzip, bzip2, lzma, zstd…"
    )
    task_protocol: int = declare(
        kinds.INTEGER,
        2,
        "Version of the message protocol that is sent; both are accepted.",
        minimum=2,
        maximum=2,
    )
    task_publish_retry: bool = declare(kinds.BOOLEAN, True, "Try again when publishing fails.")
    task_publish_retry_policy: dict[str, Any] = declare(
        kinds.POLICY,
        {"max_retries": 5, "interval_start": 0.1, "interval_step": 0.5, "interval_max": 3.0},
        "How often and after which pauses (seconds); keys that are left out keep their default.",
    )
    task_publish_timeout: float = declare(
        kinds.DURATION, 10.0, "One deadline for publishing, all tries included.", minimum=0.01
    )
    task_send_sent_event: bool = declare(kinds.BOOLEAN, False, "Tell the cluster of each task that is sent.")
    task_always_eager: bool = declare(
        kinds.BOOLEAN, False, "Run tasks in the caller, at once, without broker or worker; for tests."
    )
    task_eager_propagates: bool = declare(
        kinds.BOOLEAN, False, "Errors of eager tasks are raised in the caller."
    )
    task_store_eager_result: bool = declare(kinds.BOOLEAN, False, "Results of eager tasks are stored too.")

    task_acks_late: bool = declare(
        kinds.BOOLEAN,
        True,
        "Acknowledge after the run: a task whose worker dies runs again. False: before it, so that it never "
        "runs twice and may be lost.",
    )
    task_acks_on_failure_or_timeout: bool = declare(
        kinds.BOOLEAN,
        True,
        "Failed tasks and those over their time limit are acknowledged; False: rejected to the dead letters.",
    )
    task_reject_on_worker_lost: bool = declare(
        kinds.BOOLEAN, True, "A task whose process died is delivered again, counted by `task_max_deliveries`."
    )
    task_max_deliveries: int = declare(
        kinds.INTEGER,
        5,
        "Deliveries after which a task that kills its process goes to the dead letters.",
        minimum=1,
    )
    task_unknown_delays: tuple[float, ...] = declare(
        kinds.DURATIONS,
        (30.0, 120.0, 300.0),
        "Pauses with which a task no worker knows goes back to its queue, before it is dead-lettered; time "
        "for a rolling deployment.",
    )
    task_ignore_result: bool = declare(kinds.BOOLEAN, False, "Do not store results.")
    task_store_errors_even_if_ignored: bool = declare(
        kinds.BOOLEAN, False, "Store failures of tasks whose result is ignored."
    )
    task_track_started: bool = declare(kinds.BOOLEAN, False, "Store the state STARTED when a task begins.")
    task_time_limit: float | None = declare(
        kinds.DURATION,
        None,
        "Hard limit: the process that runs the task is killed and replaced.",
        minimum=0.001,
    )
    task_soft_time_limit: float | None = declare(
        kinds.DURATION, None, "Soft limit: SoftTimeLimitExceeded is raised in the task.", minimum=0.001
    )
    task_default_rate_limit: str | None = declare(
        kinds.RATE, None, 'Rate of every task that names none, for each worker: "10/s", "100/m", "5/h".'
    )
    task_annotations: Any = declare(
        kinds.ANYTHING,
        None,
        'Attributes set on tasks by name or pattern: {"proj.add": {"rate_limit": "10/s"}}.',
    )

    result_backend_transport_options: dict[str, Any] = declare(
        kinds.MAPPING, {}, "Options of the result store, by name; see its how-to page.", nullable=True
    )
    redis_backend_use_ssl: Any = declare(kinds.TLS, None, "TLS to Redis results; as `broker_use_ssl`.")
    result_serializer: str = declare(kinds.TEXT, "json", "Serializer of results.")
    result_accept_content: tuple[str, ...] | None = declare(
        kinds.NAMES, None, "Serializers accepted in results; None: as `accept_content`."
    )
    result_compression: str | None = declare(kinds.TEXT, None, "Compression of results.")
    result_expires: float = declare(
        kinds.DURATION, 86400.0, "How long results are kept; 0 or None: for ever.", nullable=True, none=0.0
    )
    result_extended: bool = declare(
        kinds.BOOLEAN, False, "Store name, arguments, worker, retries and queue with each result."
    )
    result_store_patience: float = declare(
        kinds.DURATION,
        30.0,
        "How long a worker tries to store a result; then the task goes back to its queue.",
        minimum=0,
    )

    database_table_names: dict[str, str] = declare(
        kinds.MAPPING, {}, "Table names of the SQL result store, by `task` and `group`.", nullable=True
    )
    database_engine_options: dict[str, Any] = declare(
        kinds.MAPPING,
        {},
        "Options for SQLAlchemy's `create_engine`. Where `connect_args` and the URL say nothing else, a "
        "server of which nothing is heard is given up after 10 s when connecting and 30 s when waiting for "
        "an answer.",
        nullable=True,
    )
    database_short_lived_sessions: bool = declare(
        kinds.BOOLEAN, False, "Close the database connection after each use."
    )

    worker_concurrency: int | None = declare(
        kinds.INTEGER,
        None,
        "Processes or threads that run tasks; None: the number of processors.",
        minimum=1,
        maximum=1024,
    )
    worker_pool: str = declare(
        kinds.TEXT,
        "prefork",
        "What runs tasks: processes, threads, or the worker itself, one after the other.",
        choices=("prefork", "threads", "solo"),
    )
    worker_prefetch_multiplier: int = declare(
        kinds.INTEGER,
        1,
        "Messages a worker holds for each process beside the running one.",
        minimum=1,
        maximum=10000,
    )
    worker_async_concurrency: int = declare(
        kinds.INTEGER, 100, "`async def` tasks that run at once in each process.", minimum=1
    )
    worker_eta_window: float = declare(
        kinds.DURATION,
        5.0,
        "Tasks due within this time wait in the worker; later ones stay in the broker.",
        minimum=0,
    )
    worker_eta_task_limit: int = declare(
        kinds.INTEGER, 1000, "Most tasks with an ETA that wait in the worker.", minimum=1
    )
    worker_lease_seconds: float = declare(
        kinds.DURATION,
        15.0,
        "How long a silent worker keeps its messages; it renews while it lives.",
        minimum=1,
    )
    worker_ack_flush_seconds: float = declare(
        kinds.DURATION,
        0.01,
        "Acknowledgements wait this long for others to be written with them.",
        minimum=0,
        maximum=1,
    )
    worker_ack_flush_count: int = declare(kinds.INTEGER, 64, "…but not longer than for this many.", minimum=1)
    worker_frame_seconds: float = declare(
        kinds.DURATION,
        0.02,
        "Short tasks travel to a process together, up to this much expected work.",
        minimum=0,
        maximum=1,
    )
    worker_max_tasks_per_child: int | None = declare(
        kinds.INTEGER, None, "A process is replaced after this many tasks.", minimum=1
    )
    worker_max_memory_per_child: int | None = declare(
        kinds.KIBIBYTES,
        None,
        "A process is replaced after a task that leaves it above this much resident memory (KiB, or text "
        'such as "200MB").',
        minimum=1024,
    )
    worker_start_method: str = declare(
        kinds.TEXT,
        "zygote",
        "How processes begin: forked from a small copy made before any thread exists, from a fork server, or "
        "anew. `fork` means `zygote`.",
        choices=("zygote", "fork", "forkserver", "spawn"),
    )
    worker_stall_seconds: float = declare(
        kinds.DURATION,
        30.0,
        "A worker that has not heard from its broker for so long says so in its log and in health checks.",
        minimum=1,
    )
    worker_http_address: str | None = declare(
        kinds.ADDRESS,
        None,
        "`host:port` on which a worker answers `/healthz`, `/readyz` and `/metrics`; None: nowhere.",
    )
    worker_proc_alive_timeout: float = declare(
        kinds.DURATION, 10.0, "How long a new process may take until it is ready.", minimum=0.1
    )
    worker_shutdown_timeout: float = declare(
        kinds.DURATION,
        25.0,
        "How long running tasks may go on after the first signal to stop; then they go back to the broker.",
        minimum=0,
    )
    worker_soft_shutdown_timeout: float = declare(
        kinds.DURATION, 0.0, "How long, after that, interrupted tasks may take to clean up.", minimum=0
    )
    worker_send_task_events: bool = declare(
        kinds.BOOLEAN, False, "Tell the cluster what happens to each task."
    )
    worker_redirect_stdouts: bool = declare(kinds.BOOLEAN, True, "What tasks print goes to the log.")
    worker_redirect_stdouts_level: str = declare(
        kinds.TEXT, "WARNING", "…at this level.", choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    )
    worker_hijack_root_logger: bool = declare(
        kinds.BOOLEAN, True, "Replace handlers that were set up on the root logger before."
    )
    worker_log_format: str = declare(kinds.TEXT, LOG_FORMAT, "Format of log lines.")
    worker_task_log_format: str = declare(
        kinds.TEXT, TASK_LOG_FORMAT, "Format of lines logged by tasks; has `task_name` and `task_id`."
    )
    worker_log_color: bool | None = declare(
        kinds.BOOLEAN, None, "Colours in the log; None: when it goes to a terminal."
    )
    worker_log_json: bool = declare(kinds.BOOLEAN, False, "Log one JSON object a line.")


def _collect(owner: type) -> dict[str, Setting]:
    """Takes the declarations off the class, so that instances hold plain attributes and nothing shadows
    them."""
    settings = {}
    for name in owner.__annotations__:
        kind, default, doc, bounds = getattr(owner, name)
        settings[name] = Setting(name, kind, default, doc, **bounds)
        delattr(owner, name)
    return settings


SETTINGS: dict[str, Setting] = _collect(Declarations)
