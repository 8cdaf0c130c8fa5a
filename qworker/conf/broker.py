"""Settings of the broker, of messages, and of the whole app.

Comes from:  nothing; see `settings`.
Goes to:     `settings`, which collects them.
Thread:      built once at import, immutable.
"""

from typing import Any

from qworker.conf import kinds
from qworker.conf.setting import declare


class BrokerSettings:
    """Declarations: each setting with its type, default and text. `settings.SETTINGS` has all by name."""

    broker_url: str | None = declare(
        kinds.BROKER_URL,
        None,
        "Where messages are kept. None: the embedded broker, `.qworker/qworker.db` in the working "
        "directory; `sqlite:///path` for another file. Several, as a list or separated by `;`: the next "
        "one is used when one is unavailable.",
    )
    broker_failover_strategy: str = declare(
        kinds.TEXT,
        "round-robin",
        "How the next of several brokers is chosen: in order, or at random.",
        choices=("round-robin", "shuffle"),
    )
    broker_transport_options: dict[str, Any] = declare(
        kinds.MAPPING, {}, "Options of the broker's transport, by name; see its how-to page.", nullable=True
    )
    broker_use_ssl: Any = declare(
        kinds.TLS,
        None,
        "TLS to a broker that is Redis, RabbitMQ, NATS or IronMQ: true, or a mapping of options as in "
        "Celery, such as `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`, with or without the prefix "
        "`ssl_`. Certificates and host names are checked unless `ssl_cert_reqs` or `ssl_check_hostname` "
        "disables it.",
    )
    broker_connection_timeout: float = declare(
        kinds.DURATION, 4.0, "How long connecting to the broker may take.", minimum=0.1
    )
    broker_connection_retry_on_startup: bool = declare(
        kinds.BOOLEAN,
        True,
        "A worker waits for an unavailable broker when it starts, instead of exiting.",
    )
    broker_heartbeat: float = declare(
        kinds.DURATION,
        10.0,
        "A worker's connection to RabbitMQ is considered dead after two to three times this long without "
        "data; 0: never.",
        minimum=0,
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
        "Maximum age of a signed message when a worker receives it, since it was sent, or since its `eta`; "
        "an older one becomes a dead letter, from where `qworker dead retry` signs it again. 0: any age. "
        "Only with a `security_key`.",
        minimum=0,
    )
    accept_content: tuple[str, ...] = declare(
        kinds.NAMES, ("json",), "Serializers a worker accepts in messages; everything else is dead-lettered."
    )
    timezone: str = declare(
        kinds.TIMEZONE,
        "UTC",
        "Time zone of datetimes and ISO texts without an offset in `eta` and `expires`, and of displayed "
        "times.",
    )
    enable_utc: bool = declare(
        kinds.BOOLEAN,
        True,
        "No effect, because messages always carry UTC; accepted for configurations of Celery.",
    )
    imports: tuple[str, ...] = declare(
        kinds.NAMES, (), "Modules a worker imports at start, so that their tasks are known."
    )
    include: tuple[str, ...] = declare(
        kinds.NAMES, (), "More modules to import; the same as `imports`, separate as in Celery."
    )
    middleware: tuple[Any, ...] = declare(
        kinds.OBJECTS, (), "Middleware objects, classes or their dotted names, outermost first."
    )

    embedded_synchronous: str = declare(
        kinds.TEXT,
        "FULL",
        "How the embedded broker writes a published message. FULL: on disk before `delay()` returns. "
        "NORMAL: three times as fast, but a power failure may lose the last moments.",
        choices=("FULL", "NORMAL"),
    )

    message_max_bytes: int = declare(
        kinds.BYTES, 16 * 1024**2, "Maximum size of a published or accepted message body.", minimum=1024
    )
    message_warn_bytes: int = declare(
        kinds.BYTES, 1024**2, "Body size from which publishing logs a warning.", minimum=0
    )
    dead_letter_expires: float = declare(
        kinds.DURATION,
        604800.0,
        "How long dead letters are kept. No effect on Amazon SQS, IronMQ, Disque and kombu's other "
        "transports.",
        minimum=1,
    )
    failed_task_expires: float = declare(
        kinds.DURATION, 604800.0, "How long failed tasks are kept, for `qworker failed`.", minimum=0.001
    )
    failed_task_max: int = declare(
        kinds.INTEGER,
        10000,
        "How many failed tasks of each queue are kept; older ones are deleted.",
        minimum=0,
    )
    dead_letter_max: int = declare(
        kinds.INTEGER,
        10000,
        "How many dead letters of each queue are kept; older ones are deleted. No effect on Amazon SQS, "
        "IronMQ, Disque and kombu's other transports.",
        minimum=1,
    )
    revokes_max: int = declare(
        kinds.INTEGER, 50000, "How many revoked task ids a worker remembers while it runs.", minimum=1
    )
    revoke_expires: float = declare(
        kinds.DURATION,
        86400.0,
        "How long revoked ids are kept for workers that start later. A call that is due later runs if no "
        "running worker knows of its revocation: set it longer than the countdowns of calls that may be "
        "revoked.",
        minimum=1,
    )
