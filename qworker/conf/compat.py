"""Compat: Celery's old and new names of settings, and their meaning here.

Comes from:  a name as written in any source.
Goes to:     `sources.translate`, which stores the value under our name, or reports why it has no effect.
Thread:      constants and one pure function.
"""

from typing import NamedTuple

from qworker.conf.settings import SETTINGS
from qworker.naming import MISSPELT, close_matches

# Upper-case names of Celery before 4.0, and those that are not CELERY_ + the new name.
OLD_NAMES = {
    "BROKER_BACKEND": "broker_url",
    "BROKER_TRANSPORT": "broker_url",
    "CELERY_ACCEPT_CONTENT": "accept_content",
    "CELERY_ACKS_LATE": "task_acks_late",
    "CELERY_ALWAYS_EAGER": "task_always_eager",
    "CELERY_ANNOTATIONS": "task_annotations",
    "CELERY_BACKEND": "result_backend",
    "CELERY_CREATE_MISSING_QUEUES": "task_create_missing_queues",
    "CELERY_DEFAULT_EXCHANGE": "task_default_exchange",
    "CELERY_DEFAULT_QUEUE": "task_default_queue",
    "CELERY_DEFAULT_RATE_LIMIT": "task_default_rate_limit",
    "CELERY_DEFAULT_ROUTING_KEY": "task_default_routing_key",
    "CELERY_EAGER_PROPAGATES": "task_eager_propagates",
    "CELERY_EAGER_PROPAGATES_EXCEPTIONS": "task_eager_propagates",
    "CELERY_ENABLE_UTC": "enable_utc",
    "CELERY_IGNORE_RESULT": "task_ignore_result",
    "CELERY_IMPORTS": "imports",
    "CELERY_INCLUDE": "include",
    "CELERY_MESSAGE_COMPRESSION": "task_compression",
    "CELERY_QUEUES": "task_queues",
    "CELERY_REDIRECT_STDOUTS": "worker_redirect_stdouts",
    "CELERY_REDIRECT_STDOUTS_LEVEL": "worker_redirect_stdouts_level",
    "CELERY_REJECT_ON_WORKER_LOST": "task_reject_on_worker_lost",
    "CELERY_ROUTES": "task_routes",
    "CELERY_SEND_EVENTS": "worker_send_task_events",
    "CELERY_SEND_TASK_SENT_EVENT": "task_send_sent_event",
    "CELERY_STORE_EAGER_RESULT": "task_store_eager_result",
    "CELERY_STORE_ERRORS_EVEN_IF_IGNORED": "task_store_errors_even_if_ignored",
    "CELERY_TASK_PUBLISH_RETRY": "task_publish_retry",
    "CELERY_TASK_PUBLISH_RETRY_POLICY": "task_publish_retry_policy",
    "CELERY_TASK_RESULT_EXPIRES": "result_expires",
    "CELERY_TIMEZONE": "timezone",
    "CELERY_TRACK_STARTED": "task_track_started",
    "CELERYD_CONCURRENCY": "worker_concurrency",
    "CELERYD_FORCE_HIJACK_ROOT_LOGGER": "worker_hijack_root_logger",
    "CELERYD_HIJACK_ROOT_LOGGER": "worker_hijack_root_logger",
    "CELERYD_LOG_COLOR": "worker_log_color",
    "CELERYD_LOG_FORMAT": "worker_log_format",
    "CELERYD_MAX_MEMORY_PER_CHILD": "worker_max_memory_per_child",
    "CELERYD_MAX_TASKS_PER_CHILD": "worker_max_tasks_per_child",
    "CELERYD_POOL": "worker_pool",
    "CELERYD_PREFETCH_MULTIPLIER": "worker_prefetch_multiplier",
    "CELERYD_TASK_LOG_FORMAT": "worker_task_log_format",
    "CELERYD_TASK_SOFT_TIME_LIMIT": "task_soft_time_limit",
    "CELERYD_TASK_TIME_LIMIT": "task_time_limit",
    "CELERY_RESULT_DB_SHORT_LIVED_SESSIONS": "database_short_lived_sessions",
    "CELERY_RESULT_DB_TABLENAMES": "database_table_names",
    "CELERY_RESULT_ENGINE_OPTIONS": "database_engine_options",
    "CELERY_RESULT_DBURI": "result_backend",
    "CELERY_MAX_CACHED_RESULTS": "result_cache_max",
    "CELERY_ENABLE_REMOTE_CONTROL": "worker_enable_remote_control",
    "CELERY_DISABLE_RATE_LIMITS": "worker_disable_rate_limits",
    "CELERY_WORKER_DIRECT": "worker_direct",
    "CELERYD_STATE_DB": "worker_state_db",
    "CELERYD_TIMER_PRECISION": "worker_timer_precision",
    "CELERYD_AUTOSCALER": "worker_autoscaler",
    "CELERYD_CONSUMER": "worker_consumer",
    "CELERYD_AGENT": "worker_agent",
    "CELERYD_WORKER_LOST_WAIT": "worker_lost_wait",
    "CELERYBEAT_SCHEDULE": "beat_schedule",
    "CELERYBEAT_SCHEDULER": "beat_scheduler",
    "CELERYBEAT_SCHEDULE_FILENAME": "beat_schedule_filename",
    "CELERYBEAT_MAX_LOOP_INTERVAL": "beat_max_loop_interval",
}

# Common short names of the two most important settings, and variants of Celery's new names.
ALIASES = {
    "broker": "broker_url",
    "backend": "result_backend",
    "broker_read_url": "broker_url",
    "broker_write_url": "broker_url",
    "task_publish_retries": "task_publish_retry",
    "worker_task_soft_time_limit": "task_soft_time_limit",
    "worker_task_time_limit": "task_time_limit",
    "worker_pool_start_method": "worker_start_method",
}

# Prefixes of old upper-case names, and the new ones that replace them.
_OLD_PREFIXES = {"celeryd_": "worker_", "celerybeat_": "beat_", "celery_": "task_"}

_NOT_YET = "not in this version of qworker"
_UNNEEDED = "not needed: qworker does this by itself"
_IN_BROKER_URL = "write it in `broker_url`"
_IN_RESULT_URL = "write it in the URL of `result_backend`"
_OTHER_STORE = "that result store is not in this version of qworker"
_SIGNED = "qworker signs with `security_key` (HMAC), not with certificates"
_STEPS = "there are no boot steps; use signals or middleware"
_WAITS = "a worker waits for its broker without limit, a caller for `task_publish_timeout`"
_SCHEDULES = "schedules are stored at `beat_store`, and the scheduler sleeps until something is due"
_EVENTS = "events come in a later version; signals report what happens in a worker"

# Celery's settings that are accepted and have no effect; a prefix ends with an underscore.
WITHOUT_EFFECT = {
    "arangodb_": _OTHER_STORE,
    "arangodb_backend_settings": _OTHER_STORE,
    "azureblockblob_": _OTHER_STORE,
    "beat_cron_starting_deadline": "see each entry's `catch_up` for missed due times",
    "beat_scheduler": f"{_SCHEDULES}; entries stored by another scheduler are not called, so add them to "
    "`beat_schedule`, or with `qworker beat add`",
    "beat_": _SCHEDULES,
    "broker_channel_error_retry": _WAITS,
    "broker_connection_max_retries": _WAITS,
    "broker_connection_retry": _WAITS,
    "broker_heartbeat_checkrate": _UNNEEDED,
    "broker_host": _IN_BROKER_URL,
    "broker_native_delayed_delivery_queue_type": "delayed messages wait in queues of qworker's own",
    "broker_password": _IN_BROKER_URL,
    "broker_pool_acquire_timeout": "an app has one connection, which its threads share",
    "broker_pool_limit": "an app has one connection, which its threads share",
    "broker_port": _IN_BROKER_URL,
    "broker_transport": _IN_BROKER_URL,
    "broker_user": _IN_BROKER_URL,
    "broker_vhost": _IN_BROKER_URL,
    "broker_": _NOT_YET,
    "cache_backend": "write it as `result_backend`",
    "cache_": _NOT_YET,
    "cassandra_": _OTHER_STORE,
    "control_": "workers do not reply in this version; `app.control.revoke()` reaches them through the "
    "broker",
    "cosmosdbsql_": _OTHER_STORE,
    "couchbase_": _OTHER_STORE,
    "database_create_tables_at_setup": "tables are created on first use",
    "database_engine_callback": "give `database_engine_options`",
    "database_table_schemas": _NOT_YET,
    "database_url": "write it as `result_backend`",
    "deprecated_settings": _UNNEEDED,
    "dynamodb_": _OTHER_STORE,
    "elasticsearch_": _OTHER_STORE,
    "event_": _EVENTS,
    "gcs_": _OTHER_STORE,
    "override_backends": _NOT_YET,
    "redis_db": _IN_RESULT_URL,
    "redis_host": _IN_RESULT_URL,
    "redis_password": _IN_RESULT_URL,
    "redis_port": _IN_RESULT_URL,
    "redis_username": _IN_RESULT_URL,
    "redis_": _UNNEEDED,
    "result_backend_": _UNNEEDED,
    "result_cache_max": _UNNEEDED,
    "result_chord_expires": "the data of a chord is kept as long as results: `result_expires`",
    "result_chord_join_timeout": "the members of a chord have ended when their values are read",
    "result_exchange": "results that are sent (`rpc://`) go directly to the caller's queue",
    "result_exchange_type": "results that are sent (`rpc://`) go directly to the caller's queue",
    "result_failure_expires": "`result_expires` applies to values and failures",
    "result_persistent": "results are stored on disk if the store supports it",
    "s3_": _OTHER_STORE,
    "security_": _SIGNED,
    "sentinel_": _NOT_YET,
    "task_acks_on_failure": "`task_acks_on_failure_or_timeout` applies to both",
    "task_acks_on_timeout": "`task_acks_on_failure_or_timeout` applies to both",
    "task_create_missing_queue_exchange_type": "a queue that is not declared is reached by its name",
    "task_create_missing_queue_type": "see `task_default_queue_type`",
    "task_default_delivery_mode": "messages are always durable",
    "task_default_exchange_type": "the exchanges of queues are declared in `task_queues`",
    "task_reject_on_error": "see `task_acks_on_failure_or_timeout`",
    "task_remote_tracebacks": "the worker's traceback is the cause of the exception that `get()` raises",
    "task_repr_maxlevels": "displayed arguments and results are limited in length",
    "task_retry_on_worker_lost": "see `task_reject_on_worker_lost` and `task_max_deliveries`",
    "worker_agent": _STEPS,
    "worker_autoscaler": "`worker_concurrency` is the number of processes",
    "worker_cancel_long_running_tasks_on_connection_loss": "running tasks continue while the lease lasts",
    "worker_consumer": _STEPS,
    "worker_deduplicate_successful_tasks": _UNNEEDED,
    "worker_detect_quorum_queues": _UNNEEDED,
    "worker_direct": _NOT_YET,
    "worker_disable_prefetch": "set `worker_prefetch_multiplier = 1`",
    "worker_disable_rate_limits": "leave the rate limits out instead",
    "worker_enable_prefetch_count_reduction": _UNNEEDED,
    "worker_enable_remote_control": "workers do not reply in this version",
    "worker_enable_soft_shutdown_on_idle": _UNNEEDED,
    "worker_eta_task_limit_": _UNNEEDED,
    "worker_log_datefmt": "times in logs have a fixed format",
    "worker_logfile": "use `qworker start --logfile`",
    "worker_lost_wait": _UNNEEDED,
    "worker_pidfile": "use `qworker start --pidfile`",
    "worker_pool_putlocks": _UNNEEDED,
    "worker_pool_restarts": "workers do not reply in this version; `qworker start --reload` restarts by "
    "itself",
    "worker_proc_": _UNNEEDED,
    "worker_state_db": "revoked ids are stored in the broker",
    "worker_task_log_datefmt": "times in logs have a fixed format",
    "worker_timer": _UNNEEDED,
    "worker_timer_precision": _UNNEEDED,
    "worker_uid": "use your init system, or `su`",
    "worker_umask": "use your init system, or `umask`",
}


SILENCING = frozenset(["beat_scheduler"])
"""Settings reported as a warning, not a note: entries stored by another scheduler are not called."""


class Known(NamedTuple):
    """The meaning of a name. name: of the setting. without_effect: why it has no effect; None: it has."""

    name: str
    without_effect: str | None = None


def understand(spelling: str) -> Known | None:
    """Return the meaning of a name in upper or lower case: ours, or Celery's new or old name. None if
    unknown."""
    name = OLD_NAMES.get(spelling) or spelling.lower()
    if spelling.isupper() and name.startswith("celery_") and spelling not in OLD_NAMES:
        name = name.removeprefix("celery_")
    known = _meaning(ALIASES.get(name, name))
    if known is None and spelling.isupper():
        for old, new in _OLD_PREFIXES.items():
            name = spelling.lower()
            if name.startswith(old):
                return _meaning(ALIASES.get(new + name.removeprefix(old), new + name.removeprefix(old)))
    return known


def _meaning(name: str) -> Known | None:
    if name in SETTINGS:
        return Known(name)
    if name in WITHOUT_EFFECT:
        return Known(name, WITHOUT_EFFECT[name])
    for known, reason in WITHOUT_EFFECT.items():
        if known.endswith("_") and name.startswith(known):
            # A misspelt name of ours is not a setting of Celery's, even with the same prefix.
            return None if close_matches(name, SETTINGS, 1, MISSPELT) else Known(name, reason)
    return None
