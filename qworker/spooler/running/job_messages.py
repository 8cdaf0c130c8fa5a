"""Job messages: messages for the task that runs jobs, which name spool files.

Comes from:  ``dispatch``, with the names of files.
Goes to:     the listener, and so to ``jobs`` in a child, which claims and reads them.
Thread:      any; functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii as quote

from qworker.message.protocol import NO_EMBED_JSON
from qworker.message.reading import valid_id
from qworker.transports.lease import Leased

RUN = "qworker.spooler.run"
"""The task that runs jobs."""
SIGNAL = "qworker.spooler.signal"
"""The task that runs handlers of signals."""
SHOWN = "spool"
"""Their name in the log."""

MakeMessage = Callable[[int, Sequence[str]], Leased]
"""Returns the message with the given tag for the files with the given names."""


def job_messages(directory: str, harakiri: float | None, *, results: bool) -> MakeMessage:
    """Return a function that makes messages for the files of *directory*. harakiri: seconds after which the
    process that runs them is killed. results: whether return values are stored, under the names of the
    jobs."""
    limit = "" if harakiri is None else f',"timelimit":[{harakiri!r},null]'
    ignore = "" if results else ',"ignore_result":true'
    head = f'{{"lang":"py","task":{quote(RUN)},"shadow":{quote(SHOWN)},"id":'
    tail = f'{limit}{ignore},"retries":0,"kwargsrepr":"{{}}"}}'
    quoted = quote(directory)
    queue = queue_name(directory)

    def make(tag: int, paths: Sequence[str]) -> Leased:
        id_ = quote(job_id(paths[0]))
        shown = quote(paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more")
        headers = f'{head}{id_},"root_id":{id_},"argsrepr":{shown}{tail}'
        body = f"[[{quoted},[{','.join(map(quote, paths))}]],{{}},{NO_EMBED_JSON}]"
        return Leased(tag, queue, 0, None, 0, False, 0, headers, None, body.encode())

    return make


def queue_name(directory: str) -> str:
    """Return the name of the queue of the jobs of *directory*."""
    return f"{SHOWN}:{directory}"


def job_id(path: str) -> str:
    """Return the id of the job in the file *path*: its name without characters that an id cannot have."""
    name = path.rpartition("/")[2]
    return name if valid_id(name) else ascii(name)[1:-1][:255]


def signal_message(tag: int, number: int, directory: str) -> Leased:
    """Return a message for the handlers of signal *number*, which has no file."""
    id_ = quote(f"uwsgi-signal-{number}-{tag}")
    headers = (
        f'{{"lang":"py","task":{quote(SIGNAL)},"shadow":{quote(SHOWN)},"id":{id_},"root_id":{id_},"retries":0,'
        f'"ignore_result":true,"argsrepr":"({number},)","kwargsrepr":"{{}}"}}'
    )
    body = f"[[{number}],{{}},{NO_EMBED_JSON}]"
    return Leased(tag, queue_name(directory), 0, None, 0, False, 0, headers, None, body.encode())
