"""Suitability: compares the app's needs with the broker's capabilities.

Comes from:  `qworker config check`, `qworker doctor`.
Goes to:     Problems, like those of the settings.
Thread:      main. Connects to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit

from qworker.cli.discovery import AppChoice
from qworker.conf import mask_urls
from qworker.conf.sources import Problem
from qworker.errors import ConfigurationError
from qworker.naming import own_tasks
from qworker.process.owner_files import runtime_directory
from qworker.transports.capabilities import (
    DELIVERY_COUNT,
    ETA,
    FAILED_TASKS,
    FANOUT,
    PRIORITY,
    Capabilities,
    capabilities_of,
    without_effect,
)

PAGE = "docs/reference/transports.md"
_DEFAULT = "default"
_PLAIN = ("redis", "valkey", "amqp", "pyamqp")
_RABBITMQ = ("amqp", "amqps", "pyamqp")
_REDIS = ("redis", "rediss", "valkey", "valkeys", "sentinel", "unix")


def problems(choice: AppChoice) -> list[Problem]:
    """Return incompatibilities, most severe first."""
    conf = choice.app.conf
    capabilities = capabilities_of(conf.broker_url)
    stores = list(_stores(choice))
    if any(problem.setting == "broker_url" for problem in stores):
        return stores  # without a broker its capabilities do not matter
    checks = (
        iter(stores),
        _features(choice, capabilities),
        _results(choice),
        _queues_with_priority(choice),
        _options(conf),
        _redis(choice),
        _rabbitmq(choice),
        _tls(conf),
    )
    order = ("error", "warning", "note")
    return sorted((p for check in checks for p in check), key=lambda problem: order.index(problem.severity))


def _stores(choice: AppChoice) -> Iterator[Problem]:
    """Check whether there are stores for the URLs, and their requirements are installed."""
    opened: tuple[tuple[str, Callable[[], object]], ...] = (
        ("broker_url", lambda: choice.app.broker),
        ("result_backend", lambda: choice.app.backend),
    )
    for setting, open_ in opened:
        try:
            open_()
        except ConfigurationError as error:
            yield Problem(setting, str(error), choice.app.conf.source(setting), "error")
            return  # results are kept with the messages by default


def _features(choice: AppChoice, capabilities: Capabilities) -> Iterator[Problem]:
    """Return the features that the app uses and the broker lacks."""
    source = choice.app.conf.source("broker_url")
    used = {PRIORITY: _with_priority(choice), ETA: _with_retries(choice), DELIVERY_COUNT: _acked_late(choice)}
    for lack, words in (
        (PRIORITY, capabilities.priority),
        (ETA, capabilities.eta),
        (DELIVERY_COUNT, capabilities.delivery_count),
        (FANOUT, capabilities.fanout),
        (FAILED_TASKS, capabilities.failed_tasks),
    ):
        if lack not in capabilities.lacks or (lack == FAILED_TASKS and not choice.app.conf.task_keep_failed):
            continue
        users = used.get(lack)
        if users:
            message = f"{_USES[lack]} ({users}), which {capabilities.name} supports only in part: {words}"
            yield Problem("broker_url", message, source, "note" if lack == DELIVERY_COUNT else "warning")
        else:
            yield Problem(
                "broker_url", f"{_NAMES[lack]} on {capabilities.name}: {words}; see {PAGE}", source, "note"
            )


_USES = {
    PRIORITY: "priorities are used",
    ETA: "retries are used, and each has a countdown",
    DELIVERY_COUNT: "deliveries must be counted",
}
_NAMES = {
    PRIORITY: "priorities",
    ETA: "countdown, ETA and retries",
    FANOUT: "revoking tasks",
    DELIVERY_COUNT: "counting deliveries",
    FAILED_TASKS: "failed tasks",
}


def _queues_with_priority(choice: AppChoice) -> Iterator[Problem]:
    """Report priorities of queues declared without them, which RabbitMQ ignores."""
    conf = choice.app.conf
    users = _with_priority(choice)
    if users and _scheme(conf.broker_url) in _RABBITMQ and conf.source("task_queue_max_priority") == _DEFAULT:
        message = (
            f"priorities are used ({users}), but RabbitMQ's queues are declared without them: set "
            "task_queue_max_priority = 9, and delete the existing queues, which cannot be changed"
        )
        yield Problem("task_queue_max_priority", message, _DEFAULT, "warning")


def _with_priority(choice: AppChoice) -> str:
    conf = choice.app.conf
    if conf.task_default_priority:
        return "task_default_priority"
    tasks = [name for name, task in _own(choice) if task.priority]
    routes = [
        f"task_routes {pattern}"
        for router in conf.task_routes
        if isinstance(router, Mapping)
        for pattern, route in router.items()
        if isinstance(route, Mapping) and route.get("priority")
    ]
    return ", ".join(islice((*tasks, *routes), 3))


def _with_retries(choice: AppChoice) -> str:
    return ", ".join(islice((name for name, task in _own(choice) if task.autoretry_for), 3))


def _acked_late(choice: AppChoice) -> str:
    conf = choice.app.conf
    return "task_max_deliveries" if conf.source("task_max_deliveries") != _DEFAULT else ""


def _own(choice: AppChoice) -> list[tuple[str, Any]]:
    tasks = choice.app.tasks
    return [(name, tasks[name]) for name in own_tasks(tasks)]


def _results(choice: AppChoice) -> Iterator[Problem]:
    conf = choice.app.conf
    why = choice.app.stores.place.why_none
    if why and conf.result_backend is None and not conf.task_ignore_result:
        message = f"{why}; or set task_ignore_result = True if results are not needed"
        yield Problem("result_backend", message, conf.source("result_backend"), "note")
    elif choice.app.stores.place.replies and not conf.task_ignore_result:
        message = (
            "results are sent to the calling process (rpc://): no other process can read them, and chords "
            "and graphs are refused. If you need these, or pages that read a result by its id, set "
            "result_backend to a store such as redis:// or postgresql://"
        )
        yield Problem("result_backend", message, conf.source("result_backend"), "note")


def _options(conf: Any) -> Iterator[Problem]:
    """Return transport options that have no effect."""
    if text := without_effect(conf.broker_url, conf.broker_transport_options):
        source = conf.source("broker_transport_options")
        yield Problem("broker_transport_options", text, source, "warning")


def _redis(choice: AppChoice) -> Iterator[Problem]:
    """Warn that a visibility timeout applies to Celery workers on the same queues."""
    conf = choice.app.conf
    if _scheme(conf.broker_url) not in _REDIS:
        return
    options = conf.broker_transport_options
    timeout = options.get("visibility_timeout")
    limits = [conf.task_time_limit, *(task.time_limit for _, task in _own(choice))]
    longest = max((limit for limit in limits if limit is not None), default=None)
    if isinstance(timeout, (int, float)) and longest is not None and timeout < longest:
        message = (
            f"visibility_timeout is {timeout:g} s, but a task may run for {longest:g} s: if a Celery worker "
            "on these queues runs a task for longer than the timeout, the task is delivered to another "
            "worker, too. Increase it above the longest task"
        )
        yield Problem("broker_transport_options", message, conf.source("broker_transport_options"), "warning")
    if options.get("allow_eviction"):
        message = "allow_eviction is on: a Redis whose memory is full may delete messages"
        yield Problem("broker_transport_options", message, conf.source("broker_transport_options"), "warning")


def _rabbitmq(choice: AppChoice) -> Iterator[Problem]:
    """Check the directory that is needed to count deaths of whole workers."""
    conf = choice.app.conf
    if _scheme(conf.broker_url) not in _RABBITMQ:
        return
    directory = runtime_directory()
    if directory is None:
        why = "there is no directory for it that this user can write to"
        severity = "warning"
    elif os.environ.get("XDG_RUNTIME_DIR"):
        return
    else:
        why = (
            f"the next start looks for the dead worker's tasks in {directory}, which systemd's PrivateTmp "
            "and a new container start empty"
        )
        severity = "note"
    message = (
        f"RabbitMQ does not count how often a task killed its whole worker, and {why}: set XDG_RUNTIME_DIR "
        "to a persistent directory, like the unit of `qworker init systemd`"
    )
    yield Problem("task_max_deliveries", message, conf.source("task_max_deliveries"), severity)


def _tls(conf: Any) -> Iterator[Problem]:
    """Report encrypted connections without verification, and unencrypted passwords."""
    for setting, option in (("broker_url", "broker_use_ssl"), ("result_backend", "redis_backend_use_ssl")):
        url = getattr(conf, setting)
        if not url or _scheme(url) == "sqlite":
            continue
        try:
            parts = urlsplit(url)
            host, password, query = parts.hostname, parts.password, parse_qs(parts.query)
        except ValueError as error:
            yield Problem(setting, f"{setting} {mask_urls(url)}: {error}", conf.source(setting), "error")
            continue
        use_ssl = getattr(conf, option, None)
        plain = _scheme(url) in _PLAIN and not use_ssl
        options = use_ssl if isinstance(use_ssl, Mapping) else {}
        in_url = query.get("ssl_cert_reqs", [""])[0]
        verification = (
            "" if plain else str(in_url or options.get("ssl_cert_reqs", options.get("cert_reqs", "")))
        )
        if verification.upper().removeprefix("VERIFYMODE.").removeprefix("CERT_") in ("NONE", "0"):
            message = (
                f"{setting} uses TLS without verifying the certificate (ssl_cert_reqs): anybody in between "
                "can read and change messages. Set ssl_ca_certs, and require the certificate"
            )
            yield Problem(setting, message, conf.source(setting), "warning")
        if plain and password and host not in (None, "localhost", "127.0.0.1", "::1"):
            message = (
                f"{setting} sends its password to {host} unencrypted; use rediss:// or amqps:// if the "
                "network is shared"
            )
            yield Problem(setting, message, conf.source(setting), "note")


def _scheme(url: str | None) -> str:
    return (url or "sqlite:").partition(":")[0].partition("+")[0]
