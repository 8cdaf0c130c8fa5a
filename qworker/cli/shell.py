"""`qworker shell`: a Python prompt with the app and its tasks.

Comes from:  users.
Goes to:     IPython when it is installed, else Python's own prompt; or code from -c or standard input.
Thread:      main.
"""

from __future__ import annotations

import sys
from importlib import import_module
from traceback import print_exception
from typing import Any

import click

from qworker.cli.discovery import AppChoice
from qworker.cli.options import app_option, open_app
from qworker.errors import QWorkerError
from qworker.naming import own_tasks


@click.command()
@app_option
@click.option("-c", "--command", metavar="CODE", help="Run this and exit.")
@click.option("--plain", is_flag=True, help="Python's own prompt, even if IPython is installed.")
def shell(app: str | None, command: str | None, plain: bool) -> None:
    """Open a Python prompt with `app` and all its tasks by their short names."""
    choice = open_app(app)
    names = _names(choice)
    if command is not None:
        _run(command, "<command>", names)
    elif not sys.stdin or not sys.stdin.isatty():
        source = sys.stdin.read() if sys.stdin else ""
        _run(source, "<stdin>", names)
    else:
        _prompt(names, choice, plain)


def _run(source: str, name: str, names: dict[str, Any]) -> None:
    """Run code, and exit with code 1 when it raises; its traceback begins with the code, like Python's
    own."""
    try:
        exec(compile(source, name, "exec"), names)
    except QWorkerError:
        raise  # reported in one line
    except Exception as error:  # noqa: BLE001 - it is the user's code
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        sys.stdout.flush()
        print_exception(type(error), error, trace)
        raise SystemExit(1) from None


def _names(choice: AppChoice) -> dict[str, Any]:
    """Return the names in the prompt: the project's tasks by the last part of their name, if unique, and the
    app. A built-in task would hide Python's `map`."""
    names: dict[str, Any] = {"__name__": "__qworker__"}
    for name in own_tasks(choice.app.tasks):
        task = choice.app.tasks[name]
        short = name.rpartition(".")[2]
        names[short] = None if short in names else task
    names = {name: value for name, value in names.items() if value is not None and name.isidentifier()}
    return {**names, "app": choice.app, "tasks": choice.app.tasks, "AsyncResult": choice.app.AsyncResult}


def _prompt(names: dict[str, Any], choice: AppChoice, plain: bool) -> None:
    known = ", ".join(sorted(name for name in names if not name.startswith("_")))
    banner = f"qworker shell of {choice.target}. You have: {known}"
    if not plain:
        try:
            embed = import_module("IPython").embed
        except ImportError:
            pass
        else:
            embed(user_ns=names, header=banner, colors="neutral")
            return
    import code

    try:  # line editing and completion, if available
        import_module("readline").parse_and_bind("tab: complete")
        completer = import_module("rlcompleter").Completer(names)
        import_module("readline").set_completer(completer.complete)
    except ImportError:
        pass
    code.interact(banner, local=names, exitmsg="")
