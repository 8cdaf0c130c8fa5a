"""How the command that runs a cluster loads it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from qworker.django.management.commands.qcluster import Command
from qworker.django.management.loading import uncollected
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


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """What a test has frozen must not stay so in this process."""
    yield
    gc.unfreeze()


def test_nothing_is_collected_meanwhile_nor_looked_at_again() -> None:
    gc.unfreeze()
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_checks_of_a_project_collect_nothing() -> None:
    seen: list[bool] = []

    def look(*args: object, **options: object) -> None:
        seen.append(gc.isenabled())

    with patch("django.core.management.base.BaseCommand.check", look):
        Command().check()
    assert seen == [False]


def test_words_are_read_before_the_worker_is_loaded() -> None:
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
def test_what_is_not_needed_is_not_loaded(code: str, unneeded: set[str]) -> None:
    assert not loaded_by(SETUP + code) & unneeded
