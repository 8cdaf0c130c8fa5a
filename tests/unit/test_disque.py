"""URLs, options and job ids of Disque."""

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
def test_urls_are_parsed(url: str, addresses: list[str], password: str | None) -> None:
    found = parsed(url)
    assert [str(address) for address in found.addresses] == addresses
    assert found.password == password


@pytest.mark.parametrize("url", ["disque://:sesame@a:0", "disque://:sesame@a:x", "disque://:sesame@a,,b"])
def test_error_for_an_invalid_url_hides_the_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a node") as caught:
        parsed(url)
    assert "sesame" not in str(caught.value)


def test_ipv6_address_is_in_brackets() -> None:
    assert str(Address("::1", 7711)) == "[::1]:7711"


@pytest.mark.parametrize(
    "given_options", [{"retry": 0}, {"retry": "9"}, {"ttl": 60}, {"replicate": True}, {"maxlen": -1}]
)
def test_invalid_options_are_refused(given_options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="broker_transport_options"):
        options_of(given_options, 30)


def test_retry_is_not_shorter_than_the_lease_of_the_worker() -> None:
    assert options_of({"retry": 5}, 30).retry == 30


def test_last_digit_of_a_job_id_shows_at_most_once_delivery() -> None:
    assert once("D-34d1b4e6-WOOmpmBw8DAHB7do6CSzs25D-05a0")
    assert not once("D-34d1b4e6-vEw1NckBAQTv7zF3NzlGRlx1-05a1")
