"""Log messages of clusters about tasks."""

from __future__ import annotations

import logging

import pytest

from qworker.django.clusters import log


@pytest.mark.parametrize("success", [True, False])
def test_newlines_in_task_names_are_escaped(success: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the name of a task could forge log lines."""
    caplog.set_level(logging.INFO, logger="django-q")
    logging.getLogger("django-q").addHandler(caplog.handler)
    name = "mine\n12:00:00 [Q] INFO Processed 'math.sqrt' (forged)"
    log._ended(task={"id": "a" * 32, "name": name, "func": "math.sqrt", "success": success, "result": "boom"})
    logging.getLogger("django-q").removeHandler(caplog.handler)
    message = caplog.records[-1].getMessage()
    assert "\n" not in message
    assert "(mine\\n12:00:00 [Q] INFO" in message
