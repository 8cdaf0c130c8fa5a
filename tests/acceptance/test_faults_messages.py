"""Invalid messages: each becomes a dead letter with a reason, and does not block the worker or messages
behind it."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
import time

import pytest

from qworker import QWorker
from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

BODY = b'[[1], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


def headers(**changes: object) -> str:
    return json.dumps({"task": "work", "id": "an-id", **changes})


def properties(**changes: object) -> str:
    return json.dumps({"content_type": "application/json", "content_encoding": "utf-8", **changes})


KEY = "a-key-of-this-site-as-long-as-it-has-to-be"
NOT_TEXT = "CAST(x'7bff' AS TEXT)"


def gzipped_bomb() -> bytes:
    """Called when it is used, because making it takes a second."""
    return gzip.compress(b"[[" + b'"' + b"x" * (80 << 20) + b'"' + b"],{},{}]")


BAD: dict[str, tuple[object, object, object]] = {
    "headers are nothing": ("", None, BODY),
    "headers are no JSON": ("{task: work}", None, BODY),
    "headers are null": ("null", None, BODY),
    "headers are a list": ("[]", None, BODY),
    "headers are empty": ("{}", None, BODY),
    "headers are a number": (7, None, BODY),
    "headers are not UTF-8": (b"\xff\xfe{}", None, BODY),
    "headers hold a zero": ('{"task": "work\\u0000", "id": "x"}', None, BODY),
    "headers are deep": ("[" * 5000 + "]" * 5000, None, BODY),
    "headers are huge": (headers(more="x" * 300_000), None, BODY),
    "no task": (json.dumps({"id": "an-id"}), None, BODY),
    "no id": (json.dumps({"task": "work"}), None, BODY),
    "id is a number": (headers(id=7), None, BODY),
    "id is endless": (headers(id="x" * 10_000), None, BODY),
    "id has a line feed": (headers(id="a\nb"), None, BODY),
    "eta is yesterday": (headers(eta="yesterday"), None, BODY),
    "eta is a number": (headers(eta=12.5), None, BODY),
    "expires is a list": (headers(expires=[]), None, BODY),
    "retries is negative": (headers(retries=-1), None, BODY),
    "retries is text": (headers(retries="1"), None, BODY),
    "time limit is text": (headers(timelimit="10"), None, BODY),
    "time limit is negative": (headers(timelimit=[-1, None]), None, BODY),
    "properties are no JSON": (headers(), "{", BODY),
    "properties are a list": (headers(), "[]", BODY),
    "content type is pickle": (headers(), properties(content_type="application/x-python-serialize"), BODY),
    "content type is yaml": (headers(), properties(content_type="application/x-yaml"), BODY),
    "content type is unknown": (headers(), properties(content_type="application/x-none-such"), BODY),
    "content type is a number": (headers(), properties(content_type=7), BODY),
    "encoding is unknown": (headers(), properties(content_encoding="utf-99"), BODY),
    "encoding is base64": (headers(), properties(content_encoding="base64"), BODY),
    "body is nothing": (headers(), None, b""),
    "body is no JSON": (headers(), None, b"[[1], {}"),
    "body is not UTF-8": (headers(), None, b'[["\xff"], {}, {}]'),
    "body is a number": (headers(), None, b"7"),
    "body is an integer column": (headers(), None, 7),
    "body is short": (headers(), None, b"[[1]]"),
    "body is deep": (headers(), None, b"[" * 100_000 + b"]" * 100_000),
    "body is over the limit": (headers(), None, b'[["' + b"x" * (17 << 20) + b'"],{},{}]'),
    "args are text": (headers(), None, b'["1", {}, {}]'),
    "kwargs are a list": (headers(), None, b"[[1], [], {}]"),
    "callbacks are text": (headers(), None, b'[[1], {}, {"callbacks": "x"}]'),
    "a typed value is false": (headers(), None, b'[[{"__type__": "datetime", "__value__": "x"}], {}, {}]'),
    "compression is unknown": (headers(compression="application/x-none"), None, BODY),
    "compression is false": (headers(compression="application/x-gzip"), None, BODY),
    "compression is a bomb": (headers(compression="application/x-gzip"), None, gzipped_bomb),
}  # fmt: skip


def test_each_invalid_message_becomes_a_dead_letter(site: Site) -> None:
    site.client.broker.admin.queues()  # creates the file
    first = site.send("work", 0)
    for *columns, body in BAD.values():
        site.insert(*columns, body() if callable(body) else body)
    good = [site.send("work", number) for number in range(1, 20)]
    worker = site.start()
    before = worker.wait_pool()
    site.finished(first, *good)
    site.drained()
    assert sorted(worker.pool()) == sorted(before), "no process died of it"
    worker.stop()
    check(site)
    assert "Traceback" not in worker.log
    reasons = [reason for (reason,) in site.query("SELECT reason FROM dead ORDER BY tag")]
    assert len(reasons) == len(BAD)
    for name, reason in zip(BAD, reasons, strict=True):
        assert len(reason) > 15, (name, reason)
        assert len(reason) < 2000, (name, reason[:100])
    reasons_by_name = dict(zip(BAD, reasons, strict=True))
    assert "accept_content" in reasons_by_name["content type is pickle"]
    assert "id" in reasons_by_name["no id"]
    assert "not valid JSON" in reasons_by_name["headers are not UTF-8"]
    assert worker.log.count("cannot be run") == len(BAD), "I-14"
    assert len(site.records(kind=STARTED)) == 20


def test_text_columns_that_are_not_utf_8(site: Site) -> None:
    """SQLite stores any bytes as text; reading such a row must not block the queue."""
    site.client.broker.admin.purge("celery")  # creates the file
    for columns in (f"{NOT_TEXT}, NULL", f"'{headers()}', {NOT_TEXT}"):
        with sqlite3.connect(site.database) as connection:
            connection.execute(
                "INSERT INTO message (queue, sent, body, headers, properties) VALUES ('celery', 0, ?, "
                f"{columns})",
                (BODY,),
            )
        connection.close()
    good = [site.send("work", number) for number in range(5)]
    worker = site.start()
    site.finished(*good)
    site.drained()
    worker.stop()
    check(site)
    assert len(site.query("SELECT reason FROM dead")) == 2


def test_wrong_arguments_fail_the_task(site: Site) -> None:
    worker = site.start()
    ids = [site.send("work", 1, 2, 3, 4, 5), site.client.send_task("work", kwargs={"no_such": 1}).id]
    site.finished(*ids)
    assert {type(site.error(id)).__name__ for id in ids} == {"TypeError"}
    worker.stop()
    assert site.query("SELECT * FROM dead") == []


def test_randomly_damaged_messages(site: Site) -> None:
    """Bytes are changed, removed and duplicated: each message runs or becomes a dead letter; the worker
    continues."""
    site.client.broker.admin.purge("celery")  # creates the file
    chance = random.Random(2)
    good_headers = json.dumps(
        {"lang": "py", "task": "work", "id": "d" * 36, "eta": None, "expires": None, "retries": 0,
        "timelimit": [None, None]}
    ).encode()  # fmt: skip
    for _ in range(300):
        parts = [bytearray(good_headers), bytearray(BODY)]
        part = chance.choice(parts)
        for _ in range(chance.randrange(1, 6)):
            place = chance.randrange(len(part) or 1)
            what = chance.randrange(4)
            if what == 0 and part:
                part[place] = chance.randrange(256)
            elif what == 1:
                del part[place : place + chance.randrange(1, 20)]
            elif what == 2:
                part[place:place] = part[place : place + chance.randrange(1, 20)]
            else:
                part[place:place] = chance.randbytes(3)
        site.insert(bytes(parts[0]), None, bytes(parts[1]))
    good = [site.send("work", number) for number in range(20)]
    worker = site.start(task_unknown_delays="")
    before = worker.wait_pool()
    site.finished(*good)
    site.drained()
    assert sorted(worker.pool()) == sorted(before)
    worker.stop()
    assert len(site.query("SELECT * FROM dead")) > 100


def test_unsigned_messages_are_refused_if_a_key_is_set(site: Site) -> None:
    site.client.broker.admin.purge("celery")  # creates the file
    unsigned = QWorker("unsigned", broker=site.url, set_as_current=False)
    forged = unsigned.send_task("work", (1,)).id
    unsigned.close()
    site.client.conf.update(security_key=KEY)
    good = [site.send("work", number) for number in range(3)]
    worker = site.start(security_key=KEY)
    site.finished(*good)
    site.drained()
    worker.stop()
    check(site)
    assert list(site.dead()) == [forged]
    assert "not signed" in site.dead()[forged]


def test_unknown_task_is_requeued_and_finally_given_up(site: Site) -> None:
    """It is requeued with a delay three times, since a newer worker may know it; other tasks are not
    delayed."""
    worker = site.start(task_unknown_delays="0.3,0.3,0.3", worker_eta_window=0.1)
    unknown = site.client.send_task("wrok", (1,)).id
    good = [site.send("work", number) for number in range(20)]
    site.finished(*good)
    assert site.query("SELECT count(*) FROM message WHERE parked > 0 AND owner IS NULL") == [(1,)]
    begun = time.time()
    site.drained()
    assert time.time() - begun > 0.5
    assert worker.log.count("no task named 'wrok' is registered here") == 3
    assert "did you mean" in site.dead()[unknown].lower()
    assert type(site.error(unknown)).__name__ == "NotRegistered"
    worker.stop()
    check(site)


def test_newer_worker_runs_tasks_unknown_to_the_old_one(site: Site) -> None:
    """A rolling deploy: the old worker requeues tasks that it does not know."""
    (site.path / "old.py").write_text("from qworker import QWorker\napp = QWorker('old')\n")
    old = site.start(name="old", app="old:app", task_unknown_delays="0.5,0.5,30", worker_eta_window=0.1)
    ids = [site.send("work", number) for number in range(10)]
    site.until(
        lambda: site.query("SELECT min(parked) FROM message WHERE state <> 2") == [(1,)], "all to be put back"
    )
    new = site.start(name="new")
    old.stop()
    site.finished(*ids)
    new.stop()
    check(site)
    assert site.dead() == {}
