"""The events of logged records."""

from __future__ import annotations

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events of the records so far, oldest first; records without one are skipped."""
    found = (vars(record).get("event") for record in caplog.records)
    return [event for event in found if event is not None]
