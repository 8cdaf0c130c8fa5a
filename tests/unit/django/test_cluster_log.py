"""What a cluster's log says of tasks."""

from __future__ import annotations

import logging

import pytest

from qworker.django.clusters import log


@pytest.mark.parametrize("success", [True, False])
def test_a_name_with_newlines_is_one_line(success: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever names a task would write lines of their own into the log."""
    caplog.set_level(logging.INFO, logger="django-q")
    logging.getLogger("django-q").addHandler(caplog.handler)
    name = "mine\n12:00:00 [Q] INFO Processed 'math.sqrt' (forged)"
    log._ended(task={"id": "a" * 32, "name": name, "func": "math.sqrt", "success": success, "result": "boom"})
    logging.getLogger("django-q").removeHandler(caplog.handler)
    said = caplog.records[-1].getMessage()
    assert "\n" not in said
    assert "(mine\\n12:00:00 [Q] INFO" in said
