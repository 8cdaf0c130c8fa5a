"""Program: an app as the program that was started, ``if __name__ == "__main__": app.worker_main()``, and a
worker inside of another program.

Comes from:  the user's module, as methods of the app.
Goes to:     the command line or ``embedded``, which are loaded for nothing else.
Thread:      main.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, Unpack

from qworker.naming import import_object

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.control.embedded import EmbeddedWorker, WorkerOptions


def start(app: QWorker, argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line for this app, as the command ``qworker`` does. It ends the program with its exit
    code.

    argv: what would follow ``qworker``; None for what followed the name of this program.
    """
    command_line = import_object("qworker.cli.main:main")
    command_line.main(_arguments(argv), obj=app)
    raise AssertionError("unreachable: the command line ends the program")


def worker_main(app: QWorker, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a worker for this app: ``app.worker_main(["worker", "--loglevel=INFO"])``. It ends the program, as
    start() does.

    Raises ValueError when *argv* has not the command, ``worker`` or ``start``.
    """
    arguments = _arguments(argv)
    if not {"worker", "start"} & set(arguments):
        raise ValueError(
            f'worker_main() takes the command too, as in ["worker", "--loglevel=INFO"], not {arguments}'
        )
    start(app, arguments)


def _arguments(argv: Sequence[str] | None) -> list[str]:
    return sys.argv[1:] if argv is None else list(argv)


def make_worker(
    app: QWorker,
    *,
    hostname: str | None = None,
    queues: Sequence[str] | None = None,
    **options: Unpack[WorkerOptions],
) -> EmbeddedWorker:
    """Make a worker that runs inside this program: ``with app.Worker(concurrency=2, queues=["mail"]): …``.

    Tasks run in threads of this program unless pool= says otherwise. hostname: ``name@host``. options: as
    those of ``qworker start``. Raises NotAvailable for what only Celery's takes.
    """
    make = import_object("qworker.control.embedded:EmbeddedWorker")
    made: EmbeddedWorker = make(app, hostname=hostname, queues=queues, **options)
    return made
