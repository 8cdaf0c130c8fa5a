"""Settings of workers.

Comes from:  nothing; see `settings`.
Goes to:     `settings`, which collects them; `worker` and `cli/start`, which have options for some of them.
Thread:      built once at import, immutable.
"""

from qworker.conf import kinds
from qworker.conf.setting import declare

LOG_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"
TASK_LOG_FORMAT = "[%(asctime)s: %(levelname)s/%(processName)s] %(task_name)s[%(task_id)s]: %(message)s"

OPTIONS = {
    "concurrency": "worker_concurrency",
    "pool": "worker_pool",
    "prefetch_multiplier": "worker_prefetch_multiplier",
    "max_tasks_per_child": "worker_max_tasks_per_child",
    "max_memory_per_child": "worker_max_memory_per_child",
    "time_limit": "task_time_limit",
    "soft_time_limit": "task_soft_time_limit",
    "start_method": "worker_start_method",
}
"""Arguments of Worker, and the settings that they override."""


class WorkerSettings:
    """Declarations: each setting with its type, default and text. `settings.SETTINGS` has all by name."""

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
        "What runs tasks: processes, threads, or the worker itself, one task at a time.",
        choices=("prefork", "threads", "solo"),
    )
    worker_prefetch_multiplier: int = declare(
        kinds.INTEGER,
        1,
        "Messages a worker holds for each process besides the running one.",
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
        kinds.INTEGER, 1000, "Maximum number of tasks with an ETA that wait in the worker.", minimum=1
    )
    worker_lease_seconds: float = declare(
        kinds.DURATION,
        15.0,
        "How long a silent worker keeps its messages. A live worker renews its lease.",
        minimum=1,
    )
    worker_ack_flush_seconds: float = declare(
        kinds.DURATION,
        0.01,
        "How long an acknowledgement waits for others, so that they are written together.",
        minimum=0,
        maximum=1,
    )
    worker_ack_flush_count: int = declare(
        kinds.INTEGER, 64, "Maximum number of acknowledgements that wait.", minimum=1
    )
    worker_frame_seconds: float = declare(
        kinds.DURATION,
        0.02,
        "Short tasks are sent to a process together, up to this much expected work.",
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
        "How processes start: forked from a small copy made before any thread exists, from a fork server, "
        "or as new processes. `fork` means `zygote`.",
        choices=("zygote", "fork", "forkserver", "spawn"),
    )
    worker_stall_seconds: float = declare(
        kinds.DURATION,
        30.0,
        "A worker whose broker has been silent for this long reports it in its log and in health checks.",
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
        "How long running tasks may continue after the first stop signal; then they go back to the broker.",
        minimum=0,
    )
    worker_soft_shutdown_timeout: float = declare(
        kinds.DURATION,
        0.0,
        "How long tasks interrupted after `worker_shutdown_timeout` may take to clean up.",
        minimum=0,
    )
    worker_send_task_events: bool = declare(kinds.BOOLEAN, False, "No effect: there are no events yet.")
    worker_redirect_stdouts: bool = declare(kinds.BOOLEAN, True, "Write the output of tasks to the log.")
    worker_redirect_stdouts_level: str = declare(
        kinds.TEXT,
        "WARNING",
        "Log level for the output of tasks.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    )
    worker_hijack_root_logger: bool = declare(
        kinds.BOOLEAN, True, "Replace existing handlers of the root logger."
    )
    worker_log_format: str = declare(kinds.TEXT, LOG_FORMAT, "Format of log lines.")
    worker_task_log_format: str = declare(
        kinds.TEXT, TASK_LOG_FORMAT, "Format of lines logged by tasks; supports `task_name` and `task_id`."
    )
    worker_log_color: bool | None = declare(kinds.BOOLEAN, None, "Colour the log; None: only on a terminal.")
    worker_log_json: bool = declare(kinds.BOOLEAN, False, "Log one JSON object per line.")
