"""Result stores without joins, and validation of parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from qworker.backends import open_backend
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import EncodeError, NotSupported
from qworker.transports.join_parts import by_join, check_join
from qworker.transports.lease import Part


@pytest.mark.parametrize("url", ["cache+memcached://127.0.0.1:11211/", "rpc://", "disabled://"])
def test_store_without_joins_is_refused_with_advice(url: str, tmp_path: Path) -> None:
    conf = Settings({"broker_url": "amqp://"}, environ={}, directory=tmp_path)
    backend = open_backend(url, conf, SYSTEM_CLOCK)
    with pytest.raises(NotSupported, match=r"has no joins.*set result_backend to sqlite:///, redis://, db\+"):
        _ = backend.joins
    backend.close()


def test_parts_are_grouped_by_join_and_sorted() -> None:
    parts = [Part(join, number, "t", "SUCCESS") for join in "ba" for number in (1, 0)]
    again = Part("a", 1, "another", "FAILURE")
    found = by_join([*parts, again, Part("a", -1, "t", ""), Part("", 0, "t", ""), Part("x ", 0, "t", "")])
    assert list(found) == ["a", "b"]
    assert list(found["a"].items()) == [(0, parts[3]), (1, parts[2])]


@pytest.mark.parametrize("invalid", [None, "1", 1.0, True])
def test_invalid_ids_and_numbers_of_parts_are_ignored(invalid: object) -> None:
    assert by_join([Part("a", invalid, "t", ""), Part("a", 2**31, "t", "")]) == {}  # type: ignore[arg-type]
    if not isinstance(invalid, str):
        assert by_join([Part(invalid, 0, "t", "")]) == {}  # type: ignore[arg-type]
        with pytest.raises(EncodeError, match="not the id of a join"):
            check_join(invalid, 1)  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="members"):
        check_join("a", invalid)  # type: ignore[arg-type]
