"""The demo behind ``qworker start --demo``: real tasks on real files, with nothing configured and nothing to
install.

Comes from:  the command line, or ``qworker.cli.demo.run()``.
Goes to:     a worker in a process of its own, a table on the terminal, an HTML file.
Thread:      main.

Modules, in reading order: ``driver`` (runs it), ``tasks``, ``analysis`` (what the tasks compute), ``screen``
(the terminal), ``report`` and ``page`` (what came of it).
"""

from qworker.cli.demo.driver import run

__all__ = ["run"]
