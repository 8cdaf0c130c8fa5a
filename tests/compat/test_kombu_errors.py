"""``except`` clauses for kombu's errors around ``delay()`` catch ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

SETUP = """
from qworker import QWorker
from qworker.errors import BrokerUnavailable
from qworker.testing import FakeClock, MemoryStore
store = MemoryStore(FakeClock())
app = QWorker("caught", broker=store, set_as_current=False, task_publish_retry=False)
add = app.task(name="add")(lambda x, y=0: x + y)
"""
AWAY = """
store.away = True
try:
    add.delay(1)
except {name} as error:
    assert isinstance(error, BrokerUnavailable)
    print("caught")
"""
NOT_JSON = """
try:
    add.delay(object())
except {name}:
    print("caught")
"""


@pytest.mark.parametrize("first", [True, False], ids=["before qworker", "after it"])
@pytest.mark.parametrize(
    ("imported", "name"),
    [
        ("import kombu.exceptions", "kombu.exceptions.{}"),
        ("import kombu", "kombu.exceptions.{}"),
        ("from kombu.exceptions import *", "{}"),
        ("from celery.exceptions import *", "kombu.exceptions.{}"),
        ("from kombu.exceptions import {}", "{}"),
    ],
)
@pytest.mark.parametrize(("kind", "call"), [("OperationalError", AWAY), ("EncodeError", NOT_JSON)])
def test_except_clause_for_a_kombu_error_catches_ours(
    kind: str, call: str, imported: str, name: str, first: bool
) -> None:
    """In a subprocess each, since the order of imports matters."""
    line = imported.format(kind)
    if "celery" in line:
        line += "; import kombu"
    if imported == "import kombu":
        line += "; import kombu.exceptions" if first else ""
    order = [line, SETUP] if first else [SETUP, line]
    code = "\n".join([*order, call.format(name=name.format(kind))])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "caught\n", done.stderr


def test_kombu_is_not_loaded_for_our_errors() -> None:
    code = "import sys, qworker.app, qworker.errors as e; e.BrokerUnavailable(); e.EncodeError()"
    check = "assert 'kombu.exceptions' not in sys.modules and 'amqp' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"{code}; {check}"], check=True, timeout=60)
