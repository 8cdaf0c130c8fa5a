"""Names and groups that no table keeps are refused where they are given."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.django.execution.calls import package_of
from qworker.django.execution.running import note, values_of
from qworker.django.transports.packages import envelope_of
from qworker.message.protocol import parse_headers


@pytest.mark.parametrize("option", ["group", "task_name", "cluster"])
@pytest.mark.parametrize("text", ["x" * 101, "a\0b", "\ud800"])
def test_a_text_that_no_table_takes(cluster: Any, option: str, text: str) -> None:
    cluster()
    with pytest.raises(ValueError, match=option):
        package_of("math.sqrt", (4,), {}, {option: text})
    package_of("math.sqrt", (4,), {}, {option: "x" * 100})


def test_what_a_package_has_all_the_same_is_cut(cluster: Any) -> None:
    cluster()
    package = package_of("math.sqrt", (4,), {}, {})
    package |= {"group": "g\0" * 100, "name": "\ud800", "hook": "h" * 300}
    note(package, True, 2)
    values = values_of(package)
    assert values["group"] == ("g\\x00" * 100)[:100]
    assert values["name"] == "\\ud800"
    assert len(values["hook"]) == 256


@pytest.mark.parametrize("name", ["le\0n", "\ud800", "tasks.\tmail", "x" * 5000])
def test_whatever_a_function_is_called_its_message_can_be_read(cluster: Any, name: str) -> None:
    """Then it is a failure that says so. As a dead letter it was never told to who waits for it."""
    cluster()
    headers = parse_headers(envelope_of("signed", package_of(name, (), {}, {}), "q").headers)
    assert headers["shadow"].isprintable()
