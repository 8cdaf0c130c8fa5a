"""Imports and garbage collection when the cluster command starts."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from qworker.components.component import Component
from qworker.django.clusters.engine import Later
from qworker.django.management.commands.qcluster import Command, uncollected
from tests.support.loaded import loaded_by

SETUP = """
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="a key that only tests know, and nobody else does, so it is long",
    INSTALLED_APPS=["django.contrib.contenttypes", "qworker.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "project.db"}},
)
django.setup()
"""


@pytest.fixture
def _thawed() -> Iterator[None]:
    """Undo the gc.freeze() of a test, but keep frozen what was frozen before, see
    tests/conftest.py."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("_thawed")
def test_uncollected_disables_gc_and_freezes_objects() -> None:
    gc.unfreeze()
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("_thawed")
def test_uncollected_keeps_gc_disabled() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_gc_is_disabled_during_checks() -> None:
    seen: list[bool] = []

    def look(*args: object, **options: object) -> None:
        seen.append(gc.isenabled())

    with patch("django.core.management.base.BaseCommand.check", look):
        Command().check()
    assert seen == [False]


def test_command_line_is_parsed_before_the_worker_is_imported() -> None:
    loaded = loaded_by(SETUP + "import qworker.django.management.commands.qcluster")
    assert not loaded & {"qworker.worker", "qworker.app", "qworker.components"}


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("", {"dateutil", "importlib.metadata", "qworker.app", "qworker.transports.lease"}),
        ("import qworker.django.tasks", {"dateutil", "qworker.worker", "qworker.transports.sql.broker"}),
        (
            "from qworker.django.management import serving\nserving.app().broker",
            {"dateutil", "importlib.metadata", "redis", "sqlalchemy", "qworker.transports.sql.broker"},
        ),
    ],
    ids=["installed", "publishing", "serving"],
)
def test_unneeded_modules_are_not_imported(code: str, unneeded: set[str]) -> None:
    assert not loaded_by(SETUP + code) & unneeded


TAKING = """
from qworker.django.management import serving
from qworker.django.cluster import extra_parts
from qworker.components import assembly
from qworker.components.pool import process_pool, zygote

app = serving.app()
app.load_tasks()
parts = [make(print) for make in extra_parts(serving.get_broker(), lambda: None)]
app.broker, app.results_with_broker
"""
"""Imports everything that a cluster needs for its first task."""
UNNEEDED = (
    "ctypes", "qworker.beat", "qworker.canvas.checking", "qworker.components.receiving.replays",
    "qworker.components.status.queue_depths", "qworker.components.waiting.task_bucket",
    "qworker.django.brokers.aws_sqs", "qworker.django.brokers.custom",
    "qworker.django.brokers.redis_broker", "qworker.django.clusters.retention",
    "qworker.django.clusters.scheduling", "qworker.django.tasks", "qworker.django.transports.mongo_url",
    "qworker.django.waiting", "qworker.tasks.eager", "qworker.tasks.execution",
    "qworker.transports.ironmq", "qworker.transports.sql.link",
)  # fmt: skip
MOST_MODULES = 227
"""Modules of qworker. Each costs half a millisecond, so add one only if every first task needs it."""


def test_first_task_imports_no_optional_modules() -> None:
    loaded = loaded_by(SETUP + TAKING)
    assert [name for name in UNNEEDED if name in loaded] == []
    assert len([name for name in loaded if name.startswith("qworker")]) <= MOST_MODULES


class Part(Component):
    """Records the calls of its methods."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start(self) -> None:
        self.asked.append("start")

    def quiet(self) -> None:
        self.asked.append("quiet")

    def stop(self, deadline: float = 0.0) -> None:
        self.asked.append(f"stop {deadline}")

    def problems(self) -> list[str]:
        return ["odd"]

    def join(self, seconds: float) -> bool:
        return "stop 5.0" in self.asked


def test_later_component_is_created_once_on_start() -> None:
    made: list[Part] = []

    def make() -> Part:
        made.append(Part())
        return made[-1]

    later = Later("part", make)
    assert (later.name, made, later.problems(), later.join(0.0)) == ("part", [], (), True)
    later.start()
    later.start()
    (part,) = made
    assert (later.problems(), later.join(0.0)) == (["odd"], False)
    later.quiet()
    later.stop(5.0)
    assert part.asked == ["start", "quiet", "stop 5.0"]
    assert later.join(0.0)


@pytest.mark.parametrize("end", [Later.quiet, Later.stop])
def test_stopped_later_component_is_not_created(end: Callable[[Later], None]) -> None:
    later = Later("part", Part)
    end(later)
    later.start()
    assert later.problems() == ()


def test_missing_extra_names_the_package_to_install(tmp_path: Path) -> None:
    program = f"import sys\nsys.modules['picklefield'] = None\n{SETUP}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == (
        "django.core.exceptions.ImproperlyConfigured: qworker.django needs django-picklefield: "
        'pip install "qworker-queue[django]"'
    )
