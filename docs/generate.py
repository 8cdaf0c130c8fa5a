"""Writes the reference pages that are made from code: the command line, the errors, the options of tasks, the
transports, the keys of Django projects.

    python docs/generate.py            write them
    python docs/generate.py --check    say which would change, and fail if any would

The page of settings is made by ``python -m qworker.conf.reference``.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import is_typeddict

import click

from qworker import errors
from qworker.canvas.options import CallOptions
from qworker.cli.main import main as command_line
from qworker.conf import SETTINGS, Setting
from qworker.django.settings.keys import SAME_FOR_ALL, SECTIONS, SPELLINGS, Derived
from qworker.tasks import options
from qworker.tasks.decorators import TaskOptions
from qworker.tasks.task import Task
from qworker.transports.capabilities import (
    Capabilities,
    Capability,
)
from qworker.transports.kombu.broker import OTHER, PLAIN
from qworker.transports.schemes import rows

REFERENCE = Path(__file__).parent / "reference"
NOTICE = "<!-- Made by `python docs/generate.py` from the code. -->\n\n"


def command_line_page() -> str:
    """Every command and every option, as click knows them."""
    parts = [
        "# Command line\n\n"
        + NOTICE
        + "This page lists all commands and options; `qworker --help` and `qworker COMMAND --help` show the "
        "same. Without `--app` a command finds the app by itself: in the variable `QWORKER_APP`, in "
        "`[tool.qworker]` in `pyproject.toml`, or as a single `tasks.py` or package in the working "
        "directory; it prints which one it uses and why.\n\n"
        "`qworker worker` is an alias of `qworker start`, and `-A` may come before the command, as with "
        "Celery. Commands and options that only Celery has print what to use instead.\n\n"
        "Times in `--json` are epoch seconds in `queues`, `tasks`, `workers`, `delayed` and `spool`, and "
        "ISO 8601 text in `failed`, `dead`, `result` and `beat`.\n"
    ]
    parts += [section(path, command) for path, command in walk("qworker", command_line)]
    return "\n".join(parts)


def walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None, name
                if not child.hidden:
                    yield from walk(f"{path} {name}", child)


def section(path: str, command: click.Command) -> str:
    level = "#" * (path.count(" ") + 2)
    usage = " ".join(
        [
            path,
            *(
                argument(param)
                for param in command.params
                if isinstance(param, click.Argument)
            ),
        ]
    )
    if isinstance(command, click.Group):
        usage += " [COMMAND]" if command.invoke_without_command else " COMMAND"
    lines = [
        f"{level} `{path}`\n",
        "\n\n".join(map(paragraph, inspect.cleandoc(command.help or "").split("\n\n")))
        + "\n",
        f"```text\n{usage} [OPTIONS]\n```\n",
    ]
    options = [
        param
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
    ]
    if options:
        lines += ["| option | description |", "|---|---|", *map(option, options), ""]
    if command.epilog:
        lines += [" ".join(command.epilog.split()), ""]
    return "\n".join(lines)


def paragraph(text: str) -> str:
    """One of a command's help. click leaves those as they are that begin so."""
    raw = text.removeprefix("\b\n")
    return text if raw == text else f"```text\n{raw}\n```"


def argument(param: click.Argument) -> str:
    name = (param.metavar or param.name or "").upper()
    name += "..." if param.nargs == -1 and not name.endswith("...") else ""
    return name if param.required or name.startswith("[") else f"[{name}]"


def option(param: click.Option) -> str:
    names = " ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if not param.is_flag and not param.count:
        names += f" `{value_name(param)}`"
    words = " ".join((param.help or "").split()).replace("|", "\\|")
    if param.show_default:
        words += f" Default: {param.default}."
    return f"| {names} | {words} |"


def value_name(param: click.Option) -> str:
    if param.metavar:
        return param.metavar
    if isinstance(param.type, click.Choice):
        return "/".join(str(choice) for choice in param.type.choices)
    return param.type.name.upper()


def errors_page() -> str:
    """The tree of errors, and what each one means."""
    classes = [
        found
        for found in vars(errors).values()
        if inspect.isclass(found)
        and issubclass(found, BaseException)
        and found.__module__ == errors.__name__
    ]
    tree = inspect.getdoc(errors) or ""
    tree = tree[tree.index("    QWorkerError") : tree.index("Comes from:")]
    lines = [
        "# Errors\n",
        NOTICE
        + "All of these are in `qworker.errors`. The message of an error says what is wrong, where, and "
        "what to do. Stored results use Celery's names, so that Celery's readers understand them.\n",
        f"```text\n{inspect.cleandoc(tree)}\n```\n",
        "| error | bases | stored as | meaning |",
        "|---|---|---|---|",
    ]
    for error in dict.fromkeys(classes):
        # Whether kombu's are among them depends on what this process has loaded.
        own = [
            base for base in error.__bases__ if not base.__module__.startswith("kombu.")
        ]
        bases = ", ".join(f"`{base.__name__}`" for base in own)
        stored = errors.CELERY_NAMES.get(error)
        name = f"`{stored[1]}.{stored[0]}`" if stored else ""
        words = (
            " ".join((inspect.getdoc(error) or "").split())
            .replace("``", "`")
            .replace("|", "\\|")
        )
        lines.append(f"| `{error.__name__}` | {bases} | {name} | {words} |")
    return "\n".join(lines) + "\n"


def task_options_page() -> str:
    """Every option of a task with its default or its setting, and every option of a call, with the lines that
    an editor shows."""
    lines = [
        "# Options of tasks and calls\n",
        NOTICE
        + "An editor completes these options and shows their descriptions; a misspelt one is a type error. "
        "To type a function that passes options on, use `**options: Unpack[qworker.CallOptions]`. Type "
        "checkers do not know options declared by a middleware, or stamps by their names: pass them as "
        "`**options`, where `options` is a `dict[str, Any]`.\n",
        "## Task options\n",
        "Pass these to `@app.task(…)` and `@shared_task(…)`, or set them as attributes of a class for "
        "`base=`. If the default names a setting, that setting applies. An unknown option raises an error "
        'when the task is defined. Seconds can also be a `timedelta` or text such as `"10s"`.\n',
        "| option | description | default |",
        "|---|---|---|",
        "| `bind` | Give the task itself to the function, as first argument. | `False` |",
        "| `base` | The class it is made of, a subclass of `Task`; its attributes may be given as options, "
        "too. | the app's, `Task` |",
    ]
    for name, words in option_lines(TaskOptions).items():
        lines.append(f"| `{name}` | {words} | {_default_of_option(name)} |")
    lines += [
        "\n## Call options\n",
        "Pass these to `apply_async`, `send_task`, `apply_many` and `send_many`, to signatures, and, where "
        "they make sense, to `retry`. They override the task's options. An unknown one raises "
        "`PublishError`.\n",
        "| option | description |",
        "|---|---|",
        "| `task_id` | The id of the call; a new one when it is left out. |",
    ]
    lines += [
        f"| `{name}` | {words} |" for name, words in option_lines(CallOptions).items()
    ]
    return "\n".join(lines) + "\n"


def option_lines(kind: type) -> dict[str, str]:
    """What the docstring below each key of *kind*, a TypedDict, says, as a cell of a table. The keys that it
    inherits come after its own."""
    module = sys.modules[kind.__module__]
    (written,) = (
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    lines = {
        key.target.id: " ".join(words.value.value.split())
        .replace("``", "`")
        .replace("|", "\\|")
        for key, words in pairwise(written.body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
    }
    for base in written.bases:
        inherited = getattr(module, ast.unparse(base), None)
        if is_typeddict(inherited):
            lines |= option_lines(inherited)
    return lines


def _default_of_option(name: str) -> str:
    if name in options.FROM_SETTINGS:
        setting = options.FROM_SETTINGS[name]
        return f"`{setting}`: `{SETTINGS[setting].default!r}`"
    if name not in options.OPTIONS:
        return _DEFAULTS.get(name, "")
    default = getattr(Task, name)
    return f"`{dict(default) if isinstance(default, Mapping) else default!r}`"


_DEFAULTS = {
    "name": "`module.function`",
    "pydantic": "`False`",
    "pydantic_strict": "`False`",
}
"""Those of options that are no attributes of a task."""


def transports_page() -> str:
    """What each broker promises."""
    lines = [
        "# Transports\n",
        NOTICE
        + "This page lists what each broker guarantees and does not support; `qworker config check` compares "
        "this with the features that an app uses. Celery can use qworker's own brokers with `qworker+` "
        "before the URL, except RabbitMQ and SQS, which it supports itself: see [Celery and qworker side by "
        "side](../explanation/celery-beside-qworker.md).\n",
        "| broker | URL |",
        "|---|---|",
    ]
    brokers = (*rows(), *PLAIN)
    for row in brokers:
        schemes = ", ".join(f"`{scheme}://`" for scheme in row.schemes)
        lines.append(f"| [{row.name}](#{_anchor(row.name)}) | {schemes} |")
    lines += [
        "\nThese brokers support all features fully, with the following exceptions:\n",
        "| feature | supported in part by | not supported by |",
        "|---|---|---|",
    ]
    for name, words in _PROMISED + _SHOWN:
        in_part, lacking = _without(brokers, Capability(name))
        lines.append(f"| {words} | {in_part} | {lacking} |")
    for row in (*rows(), *PLAIN, OTHER):
        lines += [f"\n## {row.name}\n", "| | |", "|---|---|"]
        for field, words in (
            ("accepted", "accepted means"),
            ("redelivered", "redelivered"),
            *_PROMISED,
        ):
            lines.append(f"| {words} | {getattr(row, field)} |")
        if row.note:
            lines.append(f"\n{row.note}")
    return "\n".join(lines) + "\n"


def _without(
    brokers: Sequence[Capabilities], capability: Capability
) -> tuple[str, str]:
    """Which brokers support *capability* in part, with how far, and which do not, as cells."""
    in_part: dict[str, list[str]] = {}
    lacking = []
    for row in brokers:
        if capability not in row.lacks:
            continue
        if capability in row.in_part:
            in_part.setdefault(row.in_part[capability], []).append(row.name)
        else:
            lacking.append(row.name)
    parts = (f"{', '.join(names)} ({words})" for words, names in in_part.items())
    return "; ".join(parts) or "none", ", ".join(lacking) or "none"


_PROMISED = (
    ("eta", "ETA, countdown, retries"),
    ("priority", "priorities"),
    ("fanout", "revoking"),
    ("dead_letters", "dead letters"),
    ("failed_tasks", "failed tasks"),
    ("delivery_count", "deliveries counted"),
)
_SHOWN = (
    ("counts", "queues counted"),
    ("workers", "workers shown"),
    ("peek", "tasks shown"),
)


def django_settings_page() -> str:
    """Every key of Q_CLUSTER."""
    lines = [
        "# Django settings\n",
        NOTICE
        + "These are the keys of `Q_CLUSTER` in a Django project's settings. All are optional. "
        "`manage.py check` reports unknown keys and invalid values.\n",
        "The environment variable `Q_CLUSTER_NAME` selects the cluster of a process: its queue has that "
        "name, and the keys of `ALT_CLUSTERS` under that name override the others.",
    ]
    for title, keys in SECTIONS.items():
        lines += [
            f"\n## {title}\n",
            "| key | type | default | description |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{key.name}` | {_takes(key)} | {_default(key)} | {key.doc} |"
            for key in keys.values()
        ]
    spelled = ", ".join(f"`{old}` (`{new}`)" for old, new in sorted(SPELLINGS.items()))
    lines.append(f"\nAlso accepted, with a warning of `manage.py check`: {spelled}.")
    same = ", ".join(f"`{key}`" for key in SAME_FOR_ALL)
    lines.append(
        f"\nThese are the same for all clusters, and have no effect in `ALT_CLUSTERS`: {same}."
    )
    return "\n".join(lines) + "\n"


def _takes(key: Setting) -> str:
    return f"{key.kind.label}; or None" if key.nullable else key.kind.label


def _default(key: Setting) -> str:
    return (
        key.default.shown if isinstance(key.default, Derived) else f"`{key.default!r}`"
    )


def _anchor(heading: str) -> str:
    kept = "".join(
        character
        for character in heading.lower()
        if character.isalnum() or character in " -"
    )
    return kept.replace(" ", "-")


PAGES = {
    "transports.md": transports_page,
    "cli.md": command_line_page,
    "errors.md": errors_page,
    "task-options.md": task_options_page,
    "django-settings.md": django_settings_page,
}


def changed() -> list[str]:
    """Names of the pages that do not say what the code says."""
    return [
        name
        for name, make in PAGES.items()
        if not (REFERENCE / name).exists()
        or (REFERENCE / name).read_text(encoding="utf-8") != make()
    ]


if __name__ == "__main__":
    stale = changed()
    if "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(stale)}" if stale else 0)
    for stale_name in stale:
        (REFERENCE / stale_name).write_text(PAGES[stale_name](), encoding="utf-8")
        print(f"wrote {REFERENCE / stale_name}")
