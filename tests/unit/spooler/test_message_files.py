"""spool://: messages as files, and foreign files between them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import QWorker
from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError, InvalidPacket
from qworker.spooler.broker.message_files import (
    QUEUES,
    Stamp,
    from_file,
    queue_folder,
    queue_of,
    sent_at,
    tag_of,
    to_job,
)
from qworker.spooler.broker.spool_broker import SpoolBroker, open_broker
from qworker.spooler.files.packet import decode, encode
from qworker.spooler.files.writing import Sync, Writer
from qworker.testing import FakeClock
from qworker.transports.lease import Ack, Envelope
from tests.support.messages import message

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
NAME = Stamp(1_700_000_000_000_000, 7).name(0)


@given(
    queue=TEXT.filter(bool),
    headers=TEXT,
    properties=st.none() | TEXT,
    body=st.binary(max_size=300),
    priority=st.integers(0, 9),
    due=st.none() | st.floats(2, 4e9),
)
def test_messages_round_trip(
    queue: str, headers: str, properties: str | None, body: bytes, priority: int, due: float | None
) -> None:
    job = to_job(Envelope(queue, headers, properties, body, priority, due), NAME)
    packet = decode(encode(job.pairs) + job.body)
    assert isinstance(job.at, float)
    found = from_file(packet.pairs, packet.body, 5, due=job.at)
    assert found == (5, queue, priority, due, 0, False, 0, headers, properties, body)
    assert job.priority == ("" if priority == 0 else 10 - priority)


@given(
    pairs=st.dictionaries(
        st.sampled_from([b"qw_message", b"qw_queue", b"qw_priority", b"qw_headers", b"qw_properties", b"x"]),
        st.sampled_from([b"1", b"-1", b"0", b"99999", b"x", b"\xff", b"", b"9" * 5000, b"q"]),
    ),
    body=st.binary(max_size=20),
)
def test_arbitrary_pairs_raise_only_invalid_packet(pairs: dict[bytes, bytes], body: bytes) -> None:
    try:
        found = from_file(pairs, body, 1, due=1.0)
    except InvalidPacket:
        return
    assert found.headers.encode() + (found.properties or "").encode() + found.body == body


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_queue_names_map_to_directories(queue: str) -> None:
    folder = queue_folder(queue)
    assert queue_of(folder) == queue
    assert "/" not in folder
    assert not folder.startswith(".")


def test_file_names_contain_time_and_order() -> None:
    first, second = Stamp(1_700_000_000_000_001, 7), Stamp(1_700_000_000_000_002, 8)
    assert sent_at(first.name(3)) == 1_700_000_000.000001
    assert tag_of(first.name(0), 1) < tag_of(second.name(5), 1)
    for odd in ("uwsgi_spoolfile_on_vm_1_2_3", "uwsgi_spoolfile_on_qw_x_1_1_1_a", f"{NAME}_7", "x"):
        assert (sent_at(odd), tag_of(odd, 42)) == (None, 42)


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    opened = SpoolBroker(str(tmp_path / "spool"), sync=Sync.NOTHING)
    yield opened
    opened.close()


def test_foreign_file_is_dead_lettered_and_messages_are_leased(broker: SpoolBroker, tmp_path: Path) -> None:
    broker.sender.push([message("a")])
    folder = tmp_path / "spool" / QUEUES / "q"
    Writer(folder).write({"hello": "world"})
    broker.consumer.register("w", ["q"], 1)
    assert [leased.headers for leased in broker.consumer.lease(["q"], 10).messages] == ["a"]
    (dead,) = broker.admin.dead()
    assert (dead.queue, dead.headers) == ("q", "{}")
    assert "it is not a message: the pair b'qw_message' is missing" in dead.reason


def test_clock_set_back_does_not_delay_messages(tmp_path: Path) -> None:
    clock = FakeClock()
    broker = SpoolBroker(str(tmp_path / "spool"), sync=Sync.NOTHING, clock=clock)
    broker.sender.push([message("a"), message("urgent", priority=9)])
    clock.jump(-86_400)
    broker.consumer.register("w", ["q"], 1)
    assert [each.headers for each in broker.consumer.lease(["q"], 10).messages] == ["urgent", "a"]
    broker.close()


def test_removed_directory_is_recreated(broker: SpoolBroker, tmp_path: Path) -> None:
    broker.sender.push([message("a")])
    os.rename(tmp_path / "spool", tmp_path / "gone")
    with pytest.raises(BrokerUnavailable, match="accepts no messages"):
        broker.sender.push([message("b")])
    broker.sender.push([message("c")])
    generation = broker.consumer.register("w", ["q"], 1)
    (leased,) = broker.consumer.lease(["q"], 10).messages
    assert leased.headers == "c"
    assert broker.consumer.settle(generation, [Ack(leased.tag)]) == set()


@pytest.mark.parametrize("url", ["spool:", "spool://", "spool:///", "spool://host/dir", "spool:relative"])
def test_url_needs_an_absolute_path(url: str) -> None:
    with pytest.raises(ConfigurationError, match="three slashes"):
        open_broker(url, Settings(environ={}))


def test_transport_options(tmp_path: Path) -> None:
    url = f"spool://{tmp_path}/a%20b"
    found = open_broker(url, Settings({"broker_transport_options": {"sync": "nothing"}}, environ={}))
    assert found.url == f"spool://{tmp_path}/a b"
    with pytest.raises(ConfigurationError, match="must be one of: nothing, file, directory"):
        open_broker(url, Settings({"broker_transport_options": {"sync": "maybe"}}, environ={}))


def test_spool_url_opens_a_broker(tmp_path: Path) -> None:
    app = QWorker("files", broker=f"spool://{tmp_path}/spool", set_as_current=False)
    assert app.broker.admin.queues() == []
    app.close()
