"""`qworker health`: whether a worker is running and consuming; for probes and scripts.

Comes from:  Docker's HEALTHCHECK, Kubernetes' exec probes, users.
Goes to:     the worker's status port if it has one; else its pid file, and the broker's list of workers.
Thread:      main.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

import click

from qworker.app import QWorker
from qworker.cli.options import SettingValue, app_option, json_option, nothing_there, open_app
from qworker.cli.output import age, print_json
from qworker.cli.process import expand_path, pidfile_owner
from qworker.conf import mask_urls
from qworker.errors import BrokerUnavailable
from qworker.naming import node_name
from qworker.transports.presence import held_seconds

_SECONDS = SettingValue("broker_connection_timeout")
HELD_SECONDS = 30.0
"""Seconds without a free slot that are considered a problem."""
EVERYWHERE = ("", "0.0.0.0", "::")


class Check(NamedTuple):
    """The subject of a check, whether it passed, and the details."""

    check: str
    ok: bool
    why: str


@click.command(
    epilog="Exit codes: 0 it is running and consuming; 1 it is not, or this could not be determined."
)
@app_option
@click.option("--pidfile", metavar="FILE", help="The pid file of the worker, as given to `qworker start`.")
@click.option(
    "-n", "--hostname", metavar="NAME", help="Name of the worker; default: any of the broker's workers."
)
@click.option(
    "--live", is_flag=True, help="Check only whether the process is alive, not whether it consumes."
)
@click.option("--timeout", type=_SECONDS, default="5s", show_default=True, help="How long to wait for it.")
@json_option
def health(
    app: str | None, pidfile: str | None, hostname: str | None, live: bool, timeout: float, as_json: bool
) -> int:
    """Check whether a worker of the app is running and consuming, and if not, say why."""
    application = open_app(app, tasks=False).app
    node = None if hostname is None else hostname if "@" in hostname else node_name(hostname)
    checks = []
    pid = None
    if pidfile is not None:
        path = expand_path(pidfile, node or node_name(), "pidfile")
        pid = pidfile_owner(path)
        finding = f"no running worker holds {path}" if pid is None else f"process {pid} holds {path}"
        checks.append(Check("process", pid is not None, finding))
    address = application.conf.worker_http_address
    if address is not None:
        checks.append(_ask(address, "/healthz" if live else "/readyz", timeout))
    elif not (pidfile is not None and (live or pid is None)):
        checks.append(_find(application, node, pid))
    if as_json:
        print_json({"ok": all(check.ok for check in checks), "checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            click.echo(f"{'ok' if check.ok else 'NOT OK'}: {check.why}")
    return 0 if all(check.ok for check in checks) else 1


def _ask(address: str, path: str, timeout: float) -> Check:
    """Query the worker itself."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    connection = HTTPConnection("127.0.0.1" if host in EVERYWHERE else host, int(port), timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        status = json.loads(answer.read(65536))
        reasons = status["reasons"] or [f"{status['worker']} is {status['phase']}"]
        return Check("status port", answer.status == 200, "; ".join([*reasons, *status.get("problems", ())]))
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        return Check("status port", False, f"no worker answers on {address}: {error}")
    finally:
        connection.close()


def _find(app: QWorker, node: str | None, pid: int | None) -> Check:
    """Query the broker's list of workers."""
    store = app.broker
    where = mask_urls(store.url)
    if reason := nothing_there(app):
        return Check("broker", False, reason)
    try:
        if store.presence is None:
            store.admin.queues()
            reason = f"{where} answers; it does not report its workers"
            advice = ": set worker_http_address, or give --pidfile" if pid is None else ""
            return Check("broker", pid is not None, reason + advice)
        workers = store.presence.admin.workers()
    except BrokerUnavailable as error:
        return Check("broker", False, mask_urls(f"the broker does not answer: {error}"))
    found = [worker for worker in workers if pid in (None, worker.pid) and node in (None, worker.name)]
    if found:
        now = app.clock.now()
        names = ", ".join(sorted(worker.name for worker in found))
        held = "".join(
            f"; no slot of {worker.name} has been free for {age(seconds)}: {worker.running[0].name}"
            f"[{worker.running[0].id}] has run for {age(now - worker.running[0].started)}"
            for worker in found
            if (seconds := held_seconds(worker, now)) >= HELD_SECONDS
        )
        return Check("broker", True, f"{names} consume{'s' * (len(found) == 1)} from {where}{held}")
    others = ", ".join(sorted(worker.name for worker in workers))
    wanted = node or (f"process {pid}" if pid is not None else "a worker")
    known = f"; it lists {others}" if others else ""
    return Check("broker", False, f"{where} does not list {wanted}{known}")
