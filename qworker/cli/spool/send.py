"""`qworker spool send`: a job for a spooler that listens on a socket.

Comes from:  users and scripts.
Goes to:     the client of ``spooler/network``.
Thread:      main.
"""

from __future__ import annotations

from datetime import datetime
from typing import BinaryIO

import click

from qworker.cli.options import json_option
from qworker.cli.output import print_json, visible
from qworker.cli.spool.job import due, job_options, read_pairs
from qworker.spooler.network.client import send
from qworker.spooler.network.framing import read_key


@click.command("send")
@click.argument("address")
@job_options
@click.option("--spooler", default="", metavar="DIR", help="The server's directory, as a full path.")
@click.option("--key-file", metavar="FILE", help="File with the key of the server; signs the job.")
@json_option
def send_job(
    address: str,
    pairs: tuple[str, ...],
    at: float | datetime | None,
    delay: float | None,
    priority: str,
    body: BinaryIO | None,
    spooler: str,
    key_file: str | None,
    as_json: bool,
) -> None:
    """Send a job to a spooler, ours or uWSGI's, and print its name if the server returns it.

    ADDRESS is host:port, :port on this machine, the path of a UNIX socket, or @name. Without --body and
    --key-file any uWSGI accepts the job, and returns no name.
    """
    name = send(
        address,
        read_pairs(pairs),
        b"" if body is None else body.read(),
        at=due(at, delay),
        priority=priority,
        spooler=spooler,
        key=None if key_file is None else read_key(key_file),
    )
    if as_json:
        print_json({"name": name})
    else:
        click.echo("Enqueued." if name is None else visible(name))
