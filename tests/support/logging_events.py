"""What was logged, by the events that log lines carry."""

from __future__ import annotations

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events of the lines so far, oldest first; lines without one are left out."""
    found = (vars(record).get("event") for record in caplog.records)
    return [event for event in found if event is not None]
