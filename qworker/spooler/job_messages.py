"""Job messages: a claimed spool file as a message that a worker takes, for the task that runs jobs.

Comes from:  ``consumer``, with the claim of a file that uWSGI, or anybody, has written.
Goes to:     the listener; what the message says of the file goes on to ``jobs``, in a child.
Thread:      listener; functions.

The child reads the file itself, which this process keeps locked: a body of any size crosses no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from json.encoder import encode_basestring_ascii as quote

from qworker.message.protocol import NO_EMBED_JSON
from qworker.message.reading import valid_id
from qworker.spooler.claiming import Claim
from qworker.transports.lease import Leased

RUN = "qworker.spooler.run"
"""The task that runs jobs."""
SIGNAL = "qworker.spooler.signal"
"""The task that runs handlers of signals."""

QUEUE = "spool"
"""The queue that such messages seem to come from, followed by the directory."""


def job_reader(directory: str, harakiri: float | None) -> Callable[[Claim, int, int], Leased]:
    """What makes messages of the jobs of *directory*. harakiri: seconds after which a job is killed."""
    limit = "" if harakiri is None else f',"timelimit":[{harakiri!r},null]'
    head = f'{{"lang":"py","task":{quote(RUN)},"shadow":"spool","id":'
    tail = f'{limit},"retries":0,"kwargsrepr":"{{}}"}}'
    quoted_directory, queue = quote(directory), f"{QUEUE}:{directory}"

    def read(claim: Claim, tag: int, attempts: int) -> Leased:
        id_ = quote(job_id(claim.name))
        deaths = max(0, attempts - claim.returns) if attempts else 0
        headers = f'{head}{id_},"root_id":{id_},"argsrepr":{quote(claim.path)}{tail}'
        body = f"[[{quoted_directory},{quote(claim.path)},{claim.inode}],{{}},{NO_EMBED_JSON}]"
        return Leased(tag, queue, 0, None, deaths, deaths > 0, 0, headers, None, body.encode())

    return read


def job_id(name: str) -> str:
    """The id of the job in the file *name*: its name, but for what cannot be in an id."""
    return name if valid_id(name) else ascii(name)[1:-1][:255]


def signal_message(tag: int, number: int, directory: str) -> Leased:
    """A message for the handlers of signal *number*, which no file stands for."""
    id_ = quote(f"uwsgi-signal-{number}-{-tag}")
    headers = (
        f'{{"lang":"py","task":{quote(SIGNAL)},"id":{id_},"root_id":{id_},"retries":0,'
        f'"ignore_result":true,"argsrepr":"({number},)","kwargsrepr":"{{}}"}}'
    )
    body = f"[[{number}],{{}},{NO_EMBED_JSON}]"
    return Leased(tag, f"{QUEUE}:{directory}", 0, None, 0, False, 0, headers, None, body.encode())
