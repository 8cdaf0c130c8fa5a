"""The recorded messages are those of the installed Celery."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("celery", reason="the test extra installs it")

from tests.compat.canvas_cases import ALL
from tests.compat.canvas_recorder import FILE, Recorder, recorder
from tests.servers import require
from tests.support.beside_celery import BESIDE_CELERY

pytestmark = BESIDE_CELERY


@pytest.fixture(scope="module")
def recording() -> Iterator[Recorder]:
    require("redis")
    with recorder() as made:
        yield made


@pytest.mark.parametrize("name", ALL)
def test_recording_is_up_to_date_with_celery(recording: Recorder, name: str) -> None:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    assert recording.record(name) == kept[name], "see canvas_recorder, and what has changed"


def test_every_case_is_recorded() -> None:
    assert list(json.loads(FILE.read_text(encoding="utf-8"))) == list(ALL)
