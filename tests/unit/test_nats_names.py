"""Names of streams, subjects and consumers in NATS, and parsing of its URLs."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qworker.conf import Settings
from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.transports.nats.broker import open_broker
from qworker.transports.nats.url import LONGEST, Layout, read_url, token

SAFE = re.compile(r"[A-Za-z0-9_=-]+")
QUEUES = st.text(max_size=200)


@given(QUEUES)
@example("")
@example(".")
@example("*")
@example("a b>c")
@example("日" * 100)
@example("\ud800")
def test_queue_tokens_are_valid_in_nats(queue: str) -> None:
    assert SAFE.fullmatch(token(queue))
    assert len(token(queue)) <= LONGEST


@given(st.lists(QUEUES, unique=True, min_size=2, max_size=2))
@example(["a.b", "a=2Eb"])
@example(["x" * LONGEST, "x" * (LONGEST + 1)])
@example(["日" * 100, "日" * 101])
def test_queue_tokens_are_unique(queues: list[str]) -> None:
    assert len(set(map(token, queues))) == 2


def test_recreated_stream_gets_another_consumer_name() -> None:
    """An ack of an old message must not ack a new one."""
    layout = Layout("s")
    assert layout.consumer("q", "1") != layout.consumer("q", "2")


@pytest.mark.parametrize(
    ("url", "servers", "login"),
    [
        ("nats://", [("127.0.0.1", 4222)], {}),
        ("nats://h/", [("h", 4222)], {}),
        ("nats://a:1,b", [("a", 1), ("b", 4222)], {}),
        ("nats://u:p%40s@h:1", [("h", 1)], {"user": "u", "password": "p@s"}),
        ("nats://t0ken@h", [("h", 4222)], {"token": "t0ken"}),
        ("nats://[::1]:99", [("::1", 99)], {}),
        ("nats://[::1]", [("::1", 4222)], {}),
        ("tls://h", [("h", 4222)], {}),
    ],
)
def test_urls_are_parsed(url: str, servers: list[tuple[str, int]], login: dict[str, str]) -> None:
    place = read_url(url)
    assert ([host[:2] for host in place.servers], place.login) == (servers, login)
    assert (place.tls is not None) == url.startswith("tls")


@pytest.mark.parametrize("url", ["nats://h:x", "nats://h:0", "nats://,", "nats://h/0", "nats://h?a=1"])
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(ConfigurationError, match="broker_url"):
        read_url(url)


def test_secrets_are_masked() -> None:
    for url in ("nats://u:s3cr3t@h", "nats://s3cr3t@h", "tls://s3cr3t@a,b"):
        assert "s3cr3t" not in read_url(url).shown + mask_urls(f"broker_url: {url} is wrong")
    assert mask_urls("nats://h:4222,g") == "nats://h:4222,g"


@pytest.mark.parametrize(
    "options",
    [{"replica": 3}, {"replicas": "many"}, {"replicas": 0}, {"stream": "a.b"}, {"stream": ""}],
)
def test_invalid_transport_options_are_rejected(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="broker_transport_options"):
        open_broker("nats://h", Settings({"broker_transport_options": options}))
