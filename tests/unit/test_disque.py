"""Disque's URL and options, and what its jobs say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.errors import ConfigurationError
from qworker.transports.disque.broker import options_of
from qworker.transports.disque.queue import once
from qworker.transports.disque.url import Address, parsed


@pytest.mark.parametrize(
    ("url", "addresses", "password"),
    [
        ("disque://", ["127.0.0.1:7711"], None),
        ("disque://a,b:7712/", ["a:7711", "b:7712"], None),
        ("disque://:p%40ss@a:1,[::1]:2", ["a:1", "[::1]:2"], "p@ss"),
        ("disque://a,a", ["a:7711"], None),
    ],
)
def test_urls(url: str, addresses: list[str], password: str | None) -> None:
    found = parsed(url)
    assert [str(address) for address in found.addresses] == addresses
    assert found.password == password


@pytest.mark.parametrize("url", ["disque://:sesame@a:0", "disque://:sesame@a:x", "disque://:sesame@a,,b"])
def test_what_is_no_url_is_said_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a node") as caught:
        parsed(url)
    assert "sesame" not in str(caught.value)


def test_an_address_is_written_as_in_urls() -> None:
    assert str(Address("::1", 7711)) == "[::1]:7711"


@pytest.mark.parametrize(
    "given_options", [{"retry": 0}, {"retry": "9"}, {"ttl": 60}, {"replicate": True}, {"maxlen": -1}]
)
def test_wrong_options_are_one_clear_error(given_options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="broker_transport_options"):
        options_of(given_options, 30)


def test_a_lease_is_not_shorter_than_the_workers() -> None:
    assert options_of({"retry": 5}, 30).retry == 30


def test_the_last_digit_says_whether_a_job_comes_again() -> None:
    assert once("D-34d1b4e6-WOOmpmBw8DAHB7do6CSzs25D-05a0")
    assert not once("D-34d1b4e6-vEw1NckBAQTv7zF3NzlGRlx1-05a1")
