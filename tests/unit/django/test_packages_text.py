"""Names and groups that do not fit the database columns are rejected by the caller."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.django.execution.calls import package_of
from qworker.django.execution.running import note, values_of
from qworker.django.transports.packages import envelope_of
from qworker.message.protocol import parse_headers


@pytest.mark.parametrize("option", ["group", "task_name", "cluster"])
@pytest.mark.parametrize("text", ["x" * 101, "a\0b", "\ud800"])
def test_unstorable_text_options_are_rejected(cluster: Any, option: str, text: str) -> None:
    cluster()
    with pytest.raises(ValueError, match=option):
        package_of("math.sqrt", (4,), {}, {option: text})
    package_of("math.sqrt", (4,), {}, {option: "x" * 100})


def test_unstorable_text_in_a_package_is_sanitized(cluster: Any) -> None:
    cluster()
    package = package_of("math.sqrt", (4,), {}, {})
    package |= {"group": "g\0" * 100, "name": "\ud800", "hook": "h" * 300}
    note(package, True, 2)
    values = values_of(package)
    assert values["group"] == ("g\\x00" * 100)[:100]
    assert values["name"] == "\\ud800"
    assert len(values["hook"]) == 256


@pytest.mark.parametrize("name", ["le\0n", "\ud800", "tasks.\tmail", "x" * 5000])
def test_message_of_any_function_name_is_readable(cluster: Any, name: str) -> None:
    """So the task fails with an error, and its caller gets it. A dead letter would not reach the caller."""
    cluster()
    headers = parse_headers(envelope_of("signed", package_of(name, (), {}, {}), "q").headers)
    assert headers["shadow"].isprintable()
