"""Names in pages exist: commands and options, settings and defaults, modules, extras."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from celery.app.defaults import SETTING_KEYS

from qworker import signals
from qworker.cli.main import main
from qworker.conf import SETTINGS, Settings
from qworker.conf.compat import WITHOUT_EFFECT
from tests.architecture.test_distribution import PROJECT
from tests.docs.pages import blocks, pages
from tests.docs.test_docs import name

EVERY_PAGE = pytest.mark.parametrize("page", pages(), ids=name)
SPAN = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"(?:^|[;|&(] ?)(?:[A-Z_]+=\S+ )*qworker ([a-z-][^`;|&()<>#]*)")
VARIABLE = re.compile(r"(?<![A-Z_])QWORKER_([A-Z_]+)")
MODULE = re.compile(r"qworker(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?(?=$|\()")
DEFAULT = re.compile(r"`([a-z_]+)`,? \(?(\d+(?:\.\d+)?) ?(ms|s|min|h)?\b")
UNITS = {"ms": 0.001, "s": 1, "": 1, "min": 60, "h": 3600}

SETTING_LIKE = re.compile(
    r"(?:accept|beat|broker|canvas|database|dead_letter|embedded|failed_task|message|redis_backend|result|revoke"
    r"|security|task|worker)_[a-z_]+"
)
BESIDES = {
    "task_id", "task_name", "task_cls", "task_args", "task_kwargs",  # arguments, and log fields
    "broker_class", "message_expiration", "revoke_by_stamped_headers",  # of Django-Q, IronMQ, Celery
    "result_group", "worker_main",  # functions
}  # fmt: skip
VARIABLES = {"APP", "SCHEDULE_ALLOW"}
NO_MODULES = {
    "qworker.brokers",  # entry points
    "qworker.dead", "qworker.delayed", "qworker.failed", "qworker.revoked",  # queues and streams
    "qworker.worker", "qworker.workers",  # likewise
    "qworker.spooler.run",  # a task
}  # fmt: skip


def texts(page: Path) -> Iterator[str]:
    """The text in backquotes on a page, and the commands in its blocks."""
    text = page.read_text(encoding="utf-8")
    yield from SPAN.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for block in blocks(text):
        if block.language in ("console", "sh"):
            yield from re.findall(r"^(?:\$ )?(.*\bqworker .*)$", block.text.replace("\\\n", ""), re.MULTILINE)


@EVERY_PAGE
def test_commands_and_options_exist(page: Path) -> None:
    typed = [words for text in texts(page) for words in COMMAND.findall(text)]
    assert [problem for words in typed if (problem := unknown(words))] == []


def unknown(words: str) -> str | None:
    """Why a command line (without "qworker") is wrong; None if it is not."""
    command: click.Command = main
    context = click.Context(main)
    left = iter(shlex.split(words.replace("'", "").replace('"', "")))
    for word in left:
        option, _, value = word.partition("=")
        if re.fullmatch(r"--[a-z][a-z-]*|-[a-zA-Z]", option):
            params = {
                each: param for param in command.params for each in (*param.opts, *param.secondary_opts)
            }
            if option not in {*params, "--help", "--version"}:
                return f"qworker {words}: {command.name} has no {option}"
            if not value and not getattr(params.get(option), "is_flag", True):
                next(left, None)
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            found = command.get_command(context, word)
            if found is None:
                return f"qworker {words}: {command.name} has no {word}"
            command = found
    return None


@EVERY_PAGE
def test_settings_exist(page: Path) -> None:
    """Or are Celery's, or signals."""
    known = {*SETTINGS, *WITHOUT_EFFECT, *SETTING_KEYS, *vars(signals), *BESIDES}
    named = [word for text in texts(page) for word in re.findall(r"^[a-z_]+", text)]
    assert [word for word in named if SETTING_LIKE.fullmatch(word) and word not in known] == []
    variables = VARIABLE.findall(page.read_text(encoding="utf-8"))
    assert [each for each in variables if each.lower() not in SETTINGS and each not in VARIABLES] == []


@EVERY_PAGE
def test_settings_are_shown_where_they_are_read(page: Path) -> None:
    """In the code that creates the app: no settings module is read by itself, except Django's and
    pyproject.toml."""
    found = (block for block in blocks(page.read_text(encoding="utf-8")) if block.language == "python")
    names = "|".join(SETTINGS)
    lines = [line for block in found for line in re.findall(rf"^(?:{names}) = .*", block.text, re.MULTILINE)]
    assert lines == []


@EVERY_PAGE
def test_defaults_of_settings_are_right(page: Path) -> None:
    defaults = Settings()
    wrong = []
    for setting, number, unit in DEFAULT.findall(page.read_text(encoding="utf-8")):
        default = getattr(defaults, setting) if setting in SETTINGS else None
        if isinstance(default, int | float) and float(number) * UNITS[unit] != pytest.approx(default):
            wrong.append(f"{setting} is {default}, not {number} {unit}")
    assert wrong == []


@EVERY_PAGE
def test_modules_and_their_attributes_exist(page: Path) -> None:
    named = {match[0] for text in texts(page) if (match := MODULE.match(text)) and "://" not in text}
    named = {each for each in named - NO_MODULES if not each.startswith("qworker.django.")}  # needs a project
    assert [each for each in sorted(named) if not is_there(each)] == []


def is_there(dotted: str) -> bool:
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


@EVERY_PAGE
def test_extras_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {each for found in re.findall(r"qworker-queue\[([\w,]+)\]", text) for each in found.split(",")}
    assert named <= set(PROJECT["optional-dependencies"])
    # The package is not on an index.
    assert not named or page.name in ("install.md", "tutorial.md") or "install.md)" in text


@pytest.mark.parametrize("words", ["strat -A proj", "start --ap proj", "dead lst", "dead list --jsn"])
def test_unknown_commands_and_options_are_found(words: str) -> None:
    assert unknown(words) is not None
