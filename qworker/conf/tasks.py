"""Settings of tasks.

Comes from:  nothing; see `settings`.
Goes to:     `settings`, which collects them.
Thread:      built once at import, immutable.
"""

from typing import Any

from qworker.conf import kinds
from qworker.conf.setting import declare


class TaskSettings:
    """Declarations: each setting with its type, default and text. `settings.SETTINGS` has all by name."""

    task_default_queue: str = declare(kinds.QUEUE, "celery", "Queue of tasks for which no other is given.")
    task_default_queue_type: str = declare(
        kinds.TEXT, "classic", "Type of queues created in RabbitMQ.", choices=("classic", "quorum")
    )
    task_default_exchange: str | None = declare(
        kinds.TEXT,
        None,
        "No effect: the default queue is reached by its name.",
    )
    task_default_routing_key: str | None = declare(
        kinds.TEXT, None, "No effect: the default queue is reached by its name."
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
        "Default priority of tasks: 0 (least, the same as None) to 9 (most urgent).",
        minimum=0,
        maximum=9,
    )
    task_queue_max_priority: int = declare(
        kinds.INTEGER, 9, "Highest priority that a queue distinguishes.", minimum=0, maximum=9, nullable=True
    )
    task_inherit_parent_priority: bool = declare(
        kinds.BOOLEAN, False, "Calls made by a task inherit its priority."
    )

    task_serializer: str = declare(kinds.TEXT, "json", "Serializer of arguments.")
    task_compression: str | None = declare(
        kinds.TEXT, None, "Compression of message bodies: gzip, bzip2, xz, zstd."
    )
    task_protocol: int = declare(
        kinds.INTEGER,
        2,
        "Version of the message protocol for sending; both are accepted.",
        minimum=2,
        maximum=2,
    )
    task_publish_retry: bool = declare(kinds.BOOLEAN, True, "Try again when publishing fails.")
    task_publish_retry_policy: dict[str, Any] = declare(
        kinds.POLICY,
        {"max_retries": 5, "interval_start": 0.1, "interval_step": 0.5, "interval_max": 3.0},
        "Number of retries and pauses between them (seconds); missing keys keep their default.",
    )
    task_publish_timeout: float = declare(
        kinds.DURATION,
        10.0,
        "Deadline for publishing, including retries. When very many messages are sent in portions, it "
        "applies to each portion.",
        minimum=0.01,
    )
    task_send_sent_event: bool = declare(kinds.BOOLEAN, False, "No effect: there are no events yet.")
    canvas_format: str = declare(
        kinds.TEXT,
        "auto",
        "The format of joins: Celery's workers can take part in `celery` (in Redis), only qworker's in "
        "`shared`. `auto`: `celery` if the broker is one that Celery supports, results are in Redis, and "
        "there is no `security_key`.",
        choices=("auto", "celery", "shared"),
    )
    task_allow_error_cb_on_chord_header: bool = declare(
        kinds.BOOLEAN, False, "An errback of a chord is also called for each failed call of its header."
    )
    task_always_eager: bool = declare(
        kinds.BOOLEAN, False, "Run tasks in the calling process, at once; for tests."
    )
    task_eager_propagates: bool = declare(kinds.BOOLEAN, False, "Raise the errors of eager tasks.")
    task_store_eager_result: bool = declare(kinds.BOOLEAN, False, "Store the results of eager tasks too.")

    task_acks_late: bool = declare(
        kinds.BOOLEAN,
        True,
        "Acknowledge a task after it has run: if its worker dies, it runs again. False: before it runs, so "
        "that it never runs twice, but may be lost.",
    )
    task_acks_on_failure_or_timeout: bool = declare(
        kinds.BOOLEAN,
        True,
        "Tasks that fail or exceed their time limit are acknowledged; False: dead-lettered.",
    )
    task_keep_failed: bool = declare(
        kinds.BOOLEAN,
        True,
        "Keep the messages of tasks that have failed for good, so that `qworker failed` can show them and "
        "send them again.",
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
        "Pauses after which a message with an unknown task is delivered again, before it is dead-lettered; "
        "this allows for rolling deployments.",
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
        kinds.RATE, None, 'Default rate limit of tasks, for each worker: "10/s", "100/m", "5/h".'
    )
    task_annotations: Any = declare(
        kinds.ANYTHING,
        None,
        'Attributes set on tasks by name or pattern: {"proj.add": {"rate_limit": "10/s"}}.',
    )
