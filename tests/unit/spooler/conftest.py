"""Fixtures for spoolers: a spool directory, a clock, a writer, and a configured uwsgi module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.spooler import uwsgi_api
from qworker.spooler.files.writing import Writer
from qworker.spooler.options import SpoolerOptions
from qworker.testing import FakeClock
from tests.support.spools import clock_of_files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def clock() -> FakeClock:
    return clock_of_files()


@pytest.fixture
def writer(place: Path) -> Writer:
    return Writer(place)


@pytest.fixture
def configured(place: Path) -> Iterator[Path]:
    """A configured spool directory, without signal handlers registered by other tests."""
    uwsgi_api.configure(SpoolerOptions((str(place),)))
    yield place
    uwsgi_api.configure(lambda: None)
    uwsgi_api.signal_table.handlers.clear()
    uwsgi_api.signal_table.sources.clear()
