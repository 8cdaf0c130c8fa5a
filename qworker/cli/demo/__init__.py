"""The demo of ``qworker start --demo``: real tasks on real files, without configuration or installation.

Comes from:  the command line, or ``qworker.cli.demo.run()``.
Goes to:     a worker in a separate process, a table on the terminal, an HTML file.
Thread:      main.

Modules, in reading order: ``driver`` (runs it), ``tasks``, ``analysis`` (the computations), ``screen`` (the
terminal), ``report`` and ``page`` (the results).
"""

from qworker.cli.demo.driver import run

__all__ = ["run"]
