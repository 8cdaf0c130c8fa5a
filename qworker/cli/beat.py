"""`qworker beat`: looks after the schedules; and looks at them, and changes them.

Comes from:  people and init systems.
Goes to:     `beat.service` runs; `beat.catalog` and the schedule store show and keep.
Thread:      main; the service has its own.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import click

from qworker.cli.options import app_option, open_app

logger = logging.getLogger(__name__)


@click.group(invoke_without_command=True)
@app_option
@click.pass_context
def beat(context: click.Context, app: str | None) -> None:
    """Look after the schedules: call what is due."""
    context.obj = app
    if context.invoked_subcommand is None:
        run_service(app)


def run_service(given: str | None) -> None:
    """Run until told to stop."""
    from qworker.beat.service import Beat
    from qworker.logs import parse_level, setup

    choice = open_app(given)
    app = choice.app
    setup(app.conf, parse_level("INFO"))
    app.load_tasks()
    crashed: list[Any] = []
    readable, writable = os.pipe()

    def on_crash(name: str, error: BaseException) -> None:
        crashed.append(error)
        os.write(writable, b"x")

    service = Beat(app, on_crash)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(writable, b"x"))
    service.start()
    os.read(readable, 1)
    service.stop()
    service.join(5.0)
    if crashed:
        raise crashed[0]
