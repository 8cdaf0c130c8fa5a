"""Which result stores keep joins, and what the others say."""

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
def test_a_store_without_joins_says_which_have_them(url: str, tmp_path: Path) -> None:
    conf = Settings({"broker_url": "amqp://"}, environ={}, directory=tmp_path)
    backend = open_backend(url, conf, SYSTEM_CLOCK)
    with pytest.raises(NotSupported, match=r"has no joins.*set result_backend to sqlite:///, redis://, db\+"):
        _ = backend.joins
    backend.close()


def test_parts_are_sorted_by_their_joins() -> None:
    parts = [Part(join, number, "t", "SUCCESS") for join in "ba" for number in (1, 0)]
    again = Part("a", 1, "another", "FAILURE")
    found = by_join([*parts, again, Part("a", -1, "t", ""), Part("", 0, "t", ""), Part("x ", 0, "t", "")])
    assert list(found) == ["a", "b"]
    assert list(found["a"].items()) == [(0, parts[3]), (1, parts[2])]


@pytest.mark.parametrize("strange", [None, "1", 1.0, True])
def test_what_is_no_id_and_no_number_is_no_part(strange: object) -> None:
    assert by_join([Part("a", strange, "t", ""), Part("a", 2**31, "t", "")]) == {}  # type: ignore[arg-type]
    if not isinstance(strange, str):
        assert by_join([Part(strange, 0, "t", "")]) == {}  # type: ignore[arg-type]
        with pytest.raises(EncodeError, match="not the id of a join"):
            check_join(strange, 1)  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="members"):
        check_join("a", strange)  # type: ignore[arg-type]
