"""Settings of result stores.

Comes from:  nothing; see `settings`.
Goes to:     `settings`, which collects them.
Thread:      built once at import, immutable.
"""

from typing import Any

from qworker.conf import kinds
from qworker.conf.setting import declare


class ResultSettings:
    """Declarations: each setting with its type, default and text. `settings.SETTINGS` has all by name."""

    result_backend: str | None = declare(
        kinds.BACKEND_URL,
        None,
        "Where results are kept. None: with the messages on SQLite, Redis, PostgreSQL, MySQL, MariaDB and "
        "MongoDB, sent to the caller on RabbitMQ (`rpc://`), and nowhere on other brokers. Otherwise "
        "`disabled://`, `cache+memory://`, `file:///directory`, `sqlite:///path`, `redis://…`, "
        "`db+postgresql://…`, `rpc://`.",
    )

    result_backend_transport_options: dict[str, Any] = declare(
        kinds.MAPPING, {}, "Options of the result store, by name; see its how-to page.", nullable=True
    )
    redis_backend_use_ssl: Any = declare(kinds.TLS, None, "TLS to Redis results; like `broker_use_ssl`.")
    result_serializer: str = declare(kinds.TEXT, "json", "Serializer of results.")
    result_accept_content: tuple[str, ...] | None = declare(
        kinds.NAMES, None, "Serializers accepted in results; None: those of `accept_content`."
    )
    result_compression: str | None = declare(kinds.TEXT, None, "Compression of results.")
    result_expires: float = declare(
        kinds.DURATION, 86400.0, "How long results are kept; 0 or None: forever.", nullable=True, none=0.0
    )
    result_chord_retry_interval: float = declare(
        kinds.DURATION,
        1.0,
        "How long `celery.chord_unlock` waits between checks whether a chord's members have ended. Only "
        "chords of Celery's producers use it, with results in an SQL database or in files.",
        minimum=0,
    )
    result_extended: bool = declare(
        kinds.BOOLEAN,
        False,
        "Store name, arguments, worker, retries and queue with each result, also of calls that have not run. "
        "Arguments that results cannot contain are stored as text.",
    )
    result_store_patience: float = declare(
        kinds.DURATION,
        30.0,
        "How long a worker tries to store a result; then the task goes back to its queue.",
        minimum=0,
    )

    mongodb_backend_settings: dict[str, Any] = declare(
        kinds.MAPPING,
        {},
        "Options of the MongoDB result store that override its URL: `database`, `taskmeta_collection`, "
        "`groupmeta_collection`, `host`, `port`, `user`, `password`, `max_pool_size`, and `options` of "
        "PyMongo's client.",
        nullable=True,
    )

    database_table_names: dict[str, str] = declare(
        kinds.MAPPING,
        {},
        "Table names of the SQL result store, by `task`, `group`, `join` and `part`.",
        nullable=True,
    )
    database_engine_options: dict[str, Any] = declare(
        kinds.MAPPING,
        {},
        "Options for SQLAlchemy's `create_engine`. Unless `connect_args` or the URL say otherwise, "
        "connecting times out after 10 s, and waiting for an answer after 30 s.",
        nullable=True,
    )
    database_short_lived_sessions: bool = declare(kinds.BOOLEAN, False, "Close connections after each use.")


def options_beside(conf: Any) -> dict[str, Any]:
    """Return the transport options for results: those of the broker too, if ``result_backend`` is unset."""
    own: dict[str, Any] = conf.result_backend_transport_options
    return {**conf.broker_transport_options, **own} if conf.result_backend is None else own
