"""Unreachable servers and missing drivers: a one-line error with advice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

from qworker.conf import Settings
from qworker.errors import BrokerUnavailable
from qworker.transports import SCHEMES, open_broker
from qworker.transports.schemes import names
from tests.support.messages import message

SERVERLESS = {"sqlite", "spool"}
ADDRESSES = {
    scheme: f"{scheme}://127.0.0.1:1/x" for scheme in {*SCHEMES, *names()} - SERVERLESS - {"sqs", "ironmq"}
} | {
    "redis": "redis://127.0.0.1:1/0", "rediss": "rediss://127.0.0.1:1/0", "valkey": "valkey://127.0.0.1:1/0",
    "valkeys": "valkeys://127.0.0.1:1/0", "unix": "unix:///nowhere/redis.sock",
    "sentinel": "sentinel://127.0.0.1:1", "mongodb": "mongodb://127.0.0.1:1/x?serverSelectionTimeoutMS=200",
    "ironmq": "ironmq+http://p:t@127.0.0.1:1", "disque": "disque://127.0.0.1:1", "nats": "nats://127.0.0.1:1",
    "tls": "tls://127.0.0.1:1",
}  # fmt: skip
"""An unreachable URL for each scheme. (sqs:// always connects to Amazon.)"""

DRIVERS = (
    "psycopg", "psycopg2", "pymysql", "MySQLdb", "redis", "hiredis", "pymongo", "bson", "boto3",
    "botocore", "urllib3", "pymemcache",
)  # fmt: skip
BUILT_IN = {"sqlite", "amqp", "amqps", "pyamqp", "spool", "nats", "tls"}
"""Schemes without optional dependencies."""
STORES = ("redis", "rediss", "db+postgresql", "db+mysql", "mongodb", "cache+memcached")
WITHOUT_DRIVERS = """
import json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
from qworker import QWorker
from qworker.cli.servers import _ASK, facts
said = {}
for scheme in json.loads(sys.argv[2]):
    host = {"spool": "/x", "sqlite": "/x", "nats": "h", "tls": "h"}.get(scheme, "h/x")
    app = QWorker("x", broker=f"{scheme}://{host}", set_as_current=False)
    try:
        said[scheme] = ["opened", str(app.broker.url)]
    except Exception as error:
        said[scheme] = [type(error).__name__, str(error)]
for scheme in json.loads(sys.argv[3]):
    app = QWorker("x", backend=f"{scheme}://h/x", set_as_current=False)
    try:
        said["result " + scheme] = ["opened", repr(app.backend)]
    except Exception as error:
        said["result " + scheme] = [type(error).__name__, str(error)]
for scheme in _ASK:
    try:
        list(facts(f"{scheme}://127.0.0.1:1/x", "broker_url", app.conf))
    except Exception as error:
        said["ask " + scheme] = [type(error).__name__, str(error)]
print(json.dumps(said))
"""


@pytest.mark.parametrize("scheme", sorted(ADDRESSES))
def test_doctor_gives_advice_for_an_unreachable_server(
    tasks: Path, run: Callable[..., Result], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWORKER_BROKER_URL", ADDRESSES[scheme])
    monkeypatch.setenv("QWORKER_BROKER_CONNECTION_TIMEOUT", "1")
    if scheme == "sentinel":
        monkeypatch.setenv("QWORKER_BROKER_TRANSPORT_OPTIONS", '{"master_name": "mymaster"}')
    said = run("doctor").stdout
    assert any(
        step in said
        for step in (
            "start the server",
            "Is it running?",
            "check whether the server is running",
            "speaks TLS",
            "no sentinel",
            "slip in",
        )
    ), said
    assert "Traceback" not in said


@pytest.mark.parametrize("scheme", sorted({*ADDRESSES} - {"unix"}))
def test_unreachable_server_is_a_one_line_error_without_the_password(scheme: str) -> None:
    name, _, rest = ADDRESSES[scheme].partition("://")
    url = f"{name}://me:hunter2@{rest.rpartition('@')[2]}"
    options = {"master_name": "mymaster"} if scheme == "sentinel" else {}
    conf = Settings({"broker_connection_timeout": 1.0, "broker_transport_options": options}, environ={})
    with closing(open_broker(url, conf)) as store:
        for ask in (
            lambda: store.sender.push([message("a")], timeout=1.0),
            lambda: store.consumer.register("w", ["q"], 1),
        ):
            with pytest.raises(BrokerUnavailable) as caught:
                ask()
            assert "hunter2" not in str(caught.value)
            assert "\n" not in str(caught.value)


def test_missing_driver_is_a_one_line_error_with_the_install_command(environment: dict[str, str]) -> None:
    schemes = sorted({*SCHEMES, *names()})
    lists = [json.dumps(each) for each in (DRIVERS, schemes, STORES)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DRIVERS, *lists],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    for scheme, (kind, text) in json.loads(done.stdout).items():
        plain = scheme.rpartition(" ")[2]
        if plain in BUILT_IN:
            assert kind in ("opened", "BrokerUnavailable"), (scheme, text)
        else:
            assert (kind, "pip install" in text, "\n" in text) == ("ConfigurationError", True, False), (
                scheme,
                text,
            )
