"""The spool server on real sockets: uWSGI's exchanges byte for byte, the client, and malicious clients."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import ConfigurationError, SpoolError
from qworker.spooler.files.packet import encode
from qworker.spooler.files.writing import Writer
from qworker.spooler.network import SpoolConnection, SpoolServer, send, spool_to
from qworker.spooler.network.framing import ENQUEUED, REFUSED, Limits, encode_answer, extended
from qworker.spooler.network.peers import Access
from qworker.spooler.network.server import HURRY
from tests.support.spool_servers import EVERYWHERE, Served, rest, served, talk
from tests.support.spools import files
from tests.support.uwsgi_files import DATA, samples
from tests.support.waiting import readable, until

pytestmark = pytest.mark.timeout(120)

EXCHANGES = json.loads((DATA / "net" / "exchanges.json").read_text(encoding="utf-8"))
DEVIATIONS = {
    "malformed": (REFUSED, "uWSGI says that it is enqueued, and then drops it"),
    "spooler": (REFUSED, "it names a directory of the capture, which does not exist here"),
}
"""Exchanges with another response, and why."""
OK = encode({"k": "v"})
KEY = b"a key of the tests, not of anybody"


def named(exchange: dict[str, Any]) -> str:
    return str(exchange["id"])


# -- compatibility with uWSGI --


@pytest.mark.parametrize("kind", EVERYWHERE)
@pytest.mark.parametrize("exchange", EXCHANGES, ids=named)
def test_recorded_exchange_with_uwsgi_is_the_same(
    tmp_path: Path, exchange: dict[str, Any], kind: str
) -> None:
    request = (DATA / exchange["request"]).read_bytes()
    response = (DATA / exchange["response"]).read_bytes()
    expected, _ = DEVIATIONS.get(exchange["id"], (response, ""))
    with served(tmp_path, kind, limits=Limits(buffer_size=exchange["buffer_size"])) as here:
        assert here.exchange(request) == expected
        assert len(here.jobs()) == (expected == ENQUEUED)
        for pairs, body in here.jobs():
            assert body == b""
            assert pairs.keys() == {key.encode("latin-1") for key in exchange["env"]}
            for key, value in exchange["env"].items():
                found = pairs[key.encode("latin-1")]
                if isinstance(value, dict):
                    found_as = {"len": len(found), "sha256": hashlib.sha256(found).hexdigest()}
                    assert found_as == value
                else:
                    assert found == base64.b64decode(value)


def test_deviations_differ_from_uwsgi() -> None:
    for exchange in EXCHANGES:
        if exchange["id"] in DEVIATIONS:
            assert DEVIATIONS[exchange["id"]][0] != (DATA / exchange["response"]).read_bytes()
    assert DEVIATIONS.keys() <= set(map(named, EXCHANGES))


def test_spooler_variable_selects_an_existing_directory(tmp_path: Path) -> None:
    with served(tmp_path) as here:
        assert here.exchange(encode({"k": "v", "spooler": str(tmp_path / "other")})) == ENQUEUED
        assert files(here.place) == []
        assert len(files(tmp_path / "other")) == 1


def test_priority_and_time_are_stored(tmp_path: Path) -> None:
    with served(tmp_path) as here:
        assert here.exchange((DATA / "net/priority.request.bin").read_bytes()) == ENQUEUED
        assert here.exchange((DATA / "net/at-past.request.bin").read_bytes()) == ENQUEUED
        later, first = sorted(files(here.place), key=lambda name: "/" in name)
        assert first.startswith("3/")
        assert os.stat(here.place / later).st_mtime == 1_000_000_000


def test_malformed_requests_are_refused(tmp_path: Path) -> None:
    """Sent like by a client; truncated ones get no response."""
    taken = {"duplicate-key", "two-packets", "modifier2-1"}
    with served(tmp_path, limits=Limits(extension=False)) as here:
        for sample in samples("malformed"):
            with here.connect() as client:
                client.sendall(sample.image)
                client.shutdown(socket.SHUT_WR)
                answer = rest(client)
            assert (answer == ENQUEUED) == (sample.id in taken), sample.id
        assert len(here.jobs()) == len(taken)


def test_server_without_a_spooler_refuses_all_jobs(tmp_path: Path) -> None:
    server = SpoolServer([str(tmp_path / "socket")], [])
    server.start()
    try:
        with pytest.raises(SpoolError, match="refused"):
            send(server.addresses[0], {"k": "v"})
    finally:
        server.stop()
    assert server.join(30)


# -- the client --


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_client_sends_jobs_and_gets_their_names(tmp_path: Path, kind: str) -> None:
    body = os.urandom(3_000_000)
    with served(tmp_path, kind) as here:
        assert send(here.address, {"hello": "world", b"\xff": 5}) is None
        assert here.jobs() == [({b"hello": b"world", b"\xff": b"5"}, b"")]
        name = send(here.address, {"k": "v"}, body, at=time.time() + 60, priority=7)
        assert name is not None
        assert name.startswith("7/uwsgi_spoolfile_on_")
        assert (here.place / name).read_bytes().endswith(body)
        assert os.stat(here.place / name).st_mtime > time.time() + 50
        name = send(here.address, {"k": "v"}, b"b", spooler=str(tmp_path / "other"))
        assert files(tmp_path / "other") == [name]
        spool_to(here.address, {"k": "v", "body": "a pair"})
        send(here.address, {"later": "v"}, at=datetime(2100, 1, 1, microsecond=1, tzinfo=UTC))
        assert ({b"later": b"v", b"at": b"4102444801"}, b"") in here.jobs(), "uWSGI would be too early"
        assert ({b"k": b"v", b"body": b"a pair"}, b"") in here.jobs()


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_several_jobs_on_one_connection_get_names(tmp_path: Path, kind: str) -> None:
    with served(tmp_path, kind) as here, SpoolConnection(here.address) as connection:
        names = [connection.send({"n": number}, b"x" * number) for number in range(50)]
        with pytest.raises(SpoolError, match="priority is the name"):
            connection.send({"k": "v", b"priority": b"../x"})
        connection.close()
        connection.close()
        with pytest.raises(SpoolError, match="closed"):
            connection.send({})
        assert sorted(names) == files(here.place)


def test_refused_job_keeps_the_connection(tmp_path: Path) -> None:
    with served(tmp_path) as here, SpoolConnection(here.address) as connection:
        for _ in range(2):
            with pytest.raises(SpoolError, match=r"no spool directory '/nowhere'|no spool directory b'"):
                connection.send({"k": "v"}, spooler="/nowhere")
        assert connection.send({"k": "v"})


def test_client_refuses_invalid_jobs() -> None:
    for options in (
        {"at": float("nan")}, {"at": "soon"}, {"at": 1e300}, {"priority": "../x"}, {"priority": "high"},
    ):  # fmt: skip
        with pytest.raises(SpoolError):
            send("@nobody", {"k": "v"}, **options)  # type: ignore[arg-type]
    with pytest.raises(SpoolError, match="an argument and a pair"):
        send("@nobody", {"k": "v", b"at": 5}, at=6)
    with pytest.raises(SpoolError, match="65,535"):
        send("@nobody", {"k": "v" * 65_536})
    with pytest.raises(ConfigurationError):
        send("host:port", {"k": "v"})


def test_client_raises_server_errors(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="cannot connect"):
        send(str(tmp_path / "nobody"), {"k": "v"})
    limits = Limits(buffer_size=100, max_body=100)
    with served(tmp_path, limits=limits) as here:
        with pytest.raises(SpoolError, match="buffer-size"):
            send(here.address, {"k": "v" * 200})
        with pytest.raises(SpoolError, match="refused"):
            send(here.address, {"k": "v", "priority": "high"})
        with pytest.raises(SpoolError, match=r"5,000,000 bytes: the maximum is 100"):
            send(here.address, {"k": "v"}, b"x" * 5_000_000)
        with pytest.raises(SpoolError, match="pickled"):
            send(here.address, {"ud_spool_func": "f", "args": "p"}, b"x")
        assert files(here.place) == []


def test_client_raises_for_other_servers(tmp_path: Path) -> None:
    """A silent server, one with another protocol, one that closes, and uWSGI."""
    says = {
        b"": "without an answer",
        b"HTTP/1.1 400 Bad Request\r\n": "is not a spooler",
        b"\xff\xff\xff\1abc": "without an answer",
        b"\xff\3\0\1abc": "cannot be read",
        ENQUEUED: "not a server of qworker",
        b"\xff\0": "without an answer",
    }
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def serve() -> None:
            for answer in says:
                client, _ = listening.accept()
                with client:
                    client.recv(65536)
                    client.sendall(answer)
            client, _ = listening.accept()
            with client:
                done.wait(30)

        done = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        for reason in says.values():
            with pytest.raises(SpoolError, match=reason):
                send(address, {"k": "v"}, b"body")
        with pytest.raises(SpoolError, match="not answered within"):
            send(address, {"k": "v"}, timeout=0.05)
        done.set()
        thread.join()


# -- keys, networks, users --


def test_key_is_required_over_tcp(tmp_path: Path) -> None:
    access = Access(key=KEY)
    pickled = {"ud_spool_func": "f", "args": "p", "kwargs": "p"}
    with served(tmp_path, access=access) as here:
        assert here.exchange(OK) == REFUSED
        with pytest.raises(SpoolError, match="not signed"):
            send(here.address, {"k": "v"}, b"x")
        with pytest.raises(SpoolError, match="signature is wrong"):
            send(here.address, {"k": "v"}, b"x", key=KEY[::-1])
        assert files(here.place) == []
        assert send(here.address, pickled, key=KEY)
        ((pairs, _),) = here.jobs()
        assert pairs == {key.encode(): value.encode() for key, value in pickled.items()}


def test_key_is_required_for_pickles_on_unix_sockets(tmp_path: Path) -> None:
    with served(tmp_path, "socket", access=Access(key=KEY)) as here:
        assert here.exchange(OK) == ENQUEUED
        assert here.exchange(encode({"ud_spool_func": "f", "args": "p"})) == REFUSED
        assert send(here.address, {"ud_spool_func": "f", "args": "p"}, key=KEY)
        assert here.exchange(encode({"k": "v", "qw_sig": "1:9999999999:00"})) == REFUSED


@pytest.mark.parametrize("address", ["0.0.0.0:0", "*:0", "[::]:0"])
def test_public_address_without_networks_is_refused(tmp_path: Path, address: str) -> None:
    server = SpoolServer([str(tmp_path / "first"), address], [Writer(tmp_path / "jobs")])
    with pytest.raises(ConfigurationError, match="other machines"):
        server.start()
    assert os.listdir(tmp_path) == ["jobs"], "the first socket is removed, too"
    server.stop()


def test_public_address_with_networks_is_allowed(tmp_path: Path) -> None:
    with served(tmp_path, "0.0.0.0:0", access=Access(networks=("192.0.2.0/24",))) as here:
        assert send(here.address.replace("0.0.0.0", "127.0.0.1"), {"k": "v"}) is None


def test_unlisted_users_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("socket", "@"):
        caplog.clear()
        with served(tmp_path, kind, access=Access(users={os.getuid() + 1})) as here:
            assert here.exchange(OK) == b""
            until(lambda: "its user may not send jobs" in caplog.text)
            assert files(here.place) == []


# -- the sockets --


def test_unix_socket_permissions(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with served(tmp_path, "socket"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with (
            pytest.raises(ConfigurationError, match="another process already listens"),
            served(tmp_path, "socket"),
        ):
            pass
        assert path.exists()
    assert not path.exists()
    with served(tmp_path, "socket", access=Access(users={os.getuid(), 12345})):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "socket"))
    with served(tmp_path, "socket") as here:
        assert here.exchange(OK) == ENQUEUED


def test_other_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="not a socket"), served(tmp_path, "socket"):
        pass
    assert path.read_text() == "precious"


def test_socket_of_another_server_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with served(tmp_path, "socket"):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "/no/such/directory/socket", "192.0.2.1:3031"])
def test_unusable_address_raises_configuration_error(tmp_path: Path, address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = address.format(port=taken.getsockname()[1])
        server = SpoolServer(
            [address], [Writer(tmp_path / "jobs")], access=Access(networks=("192.0.2.0/24",))
        )
        with pytest.raises(ConfigurationError, match="cannot listen on"):
            server.start()


def test_server_with_many_addresses(tmp_path: Path) -> None:
    addresses = ["127.0.0.1:0", "localhost:0", ":0", str(tmp_path / "a"), str(tmp_path / "b"), f"@{tmp_path}"]
    server = SpoolServer(addresses, [Writer(tmp_path / "jobs")])
    server.start()
    server.start()
    try:
        for address in server.addresses:
            send(address, {"k": "v"})
    finally:
        server.stop()
        server.stop()
    assert server.join(30)
    assert len(files(tmp_path / "jobs")) == len(addresses)
    server.start()
    assert not server.alive
    assert not list(tmp_path.glob("[ab]"))


def test_stop_does_not_wait_for_clients(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with served(tmp_path) as here:
            clients = [stack.enter_context(here.connect()) for _ in range(3)]
            clients[0].sendall(OK[:5])
            clients[1].sendall(extended(OK, b""))
            until(lambda: files(here.place))
        assert rest(clients[0]) == rest(clients[2]) == b""
        assert rest(clients[1])[:1] == b"\xff"


def test_crash_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Writer):
        def write(self, *args: object, **options: object) -> str:
            raise ZeroDivisionError("a bug")

    server = SpoolServer([str(tmp_path / "socket")], [Broken(tmp_path / "jobs")])
    server.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(server.addresses[0])
        client.sendall(OK)
        until(lambda: "the spool-server has crashed" in caplog.text)
    server.stop()
    assert server.join(30)
    assert not (tmp_path / "socket").exists()


# -- slow, silent, many or disconnected clients --


def test_incomplete_requests_do_not_block_others(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(timeout=2)) as here, ExitStack() as stack:
        begun = time.monotonic()
        halves = [stack.enter_context(here.connect()) for _ in range(4)]
        for half, part in zip(halves, (b"", b"\x11", OK[:-1], extended(OK, b"body")[:-1]), strict=True):
            half.sendall(part)
        assert here.exchange(OK) == ENQUEUED
        assert [rest(half) for half in halves] == [b""] * 4
        assert time.monotonic() - begun >= 2
        assert len(files(here.place)) == 1


def test_dripping_bytes_does_not_extend_the_timeout(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(timeout=0.4)) as here, here.connect() as client:

        def drip() -> bool:
            try:
                client.sendall(b"\x11" if not sent else b"\0")
            except ConnectionError:
                return True
            sent.append(time.monotonic())
            return False

        sent: list[float] = []
        client.sendall(b"\x11\xff\xff\0")
        sent.append(0)
        until(drip)
        assert files(here.place) == []


def test_slow_client_is_served(tmp_path: Path) -> None:
    with served(tmp_path) as here, here.connect() as client:
        for byte in OK[:-1]:
            client.sendall(bytes((byte,)))
            time.sleep(0.002)
        assert here.exchange(OK) == ENQUEUED
        client.sendall(OK[-1:])
        client.shutdown(socket.SHUT_WR)
        assert rest(client) == ENQUEUED


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_job_of_a_disconnected_client_is_stored(tmp_path: Path, kind: str) -> None:
    with served(tmp_path, kind) as here:
        for _ in range(20):
            client = here.connect()
            client.sendall(OK)
            client.close()
        until(lambda: len(files(here.place)) == 20)


def test_connection_resets_are_harmless(tmp_path: Path) -> None:
    with served(tmp_path) as here:
        for _ in range(20):
            client = here.connect()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(extended(OK, b"") * 50)
            client.close()
        assert here.exchange(OK) == ENQUEUED


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_data_after_the_packet_does_not_lose_the_response(tmp_path: Path, kind: str) -> None:
    """And the client gets EOF instead of an error."""
    with served(tmp_path, kind) as here, here.connect() as client:
        client.sendall(OK + b"x" * 100)
        assert client.recv(4) == ENQUEUED
        assert client.recv(1) == b""
        client.sendall(b"x" * 100_000)
        client.shutdown(socket.SHUT_WR)
        assert len(files(here.place)) == 1


def test_response_before_the_end_of_the_body_is_received(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(10)
                client.sendall(encode_answer(False, "too much"))

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(SpoolError, match="has refused the job: too much"):
            send(str(tmp_path / "socket"), {"k": "v"}, b"x" * 20_000_000)
        thread.join()


def test_200_connections_at_once(tmp_path: Path) -> None:
    with served(tmp_path) as here, ExitStack() as stack:
        clients = [stack.enter_context(here.connect()) for _ in range(200)]
        for client in clients:
            client.sendall(OK[:3])
        for client in reversed(clients):
            client.sendall(OK[3:])
        assert [rest(client) for client in clients] == [ENQUEUED] * 200
        assert len(files(here.place)) == 200


def test_connections_over_the_limit_wait(tmp_path: Path) -> None:
    with served(tmp_path, limits=Limits(max_connections=4)) as here, ExitStack() as stack:
        clients = [stack.enter_context(here.connect()) for _ in range(30)]
        for client in clients:
            client.sendall(OK)
        assert [rest(client) for client in clients] == [ENQUEUED] * 30


def test_connection_limit_is_not_exceeded(tmp_path: Path) -> None:
    limits = Limits(max_connections=2, timeout=3600)
    with served(tmp_path, limits=limits) as here, ExitStack() as stack:
        silent = [stack.enter_context(here.connect()) for _ in range(2)]
        with here.connect() as client:
            client.sendall(OK)
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(4)
            silent[0].close()
            client.settimeout(30)
            assert rest(client) == ENQUEUED


def test_silent_connections_are_closed_when_the_limit_is_reached(tmp_path: Path) -> None:
    limits = Limits(max_connections=4, timeout=HURRY * 0.5, keep_alive=3600)
    with served(tmp_path, limits=limits) as here, ExitStack() as stack:
        kept = [stack.enter_context(SpoolConnection(here.address)) for _ in range(2)]
        for connection in kept:
            connection.send({"k": "v"})
        for _ in range(10):
            stack.enter_context(here.connect())
        assert here.exchange(OK) == ENQUEUED


def is_stuck(client: socket.socket, data: bytes) -> bool:
    """Send, and return whether the socket is blocked."""
    try:
        client.sendall(data * 100)
    except OSError:
        return True
    return False


def test_client_that_never_reads_does_not_block_others(tmp_path: Path) -> None:
    with served(tmp_path, "socket") as here, here.connect() as client:
        client.settimeout(0.2)
        refused = extended(encode({"priority": "x" * 900}), b"")
        until(lambda: is_stuck(client, refused))
        assert here.exchange(OK) == ENQUEUED


def test_total_size_of_bodies_is_limited(tmp_path: Path) -> None:
    """The limit is four bodies, and a buffer for each connection."""
    limits = Limits(max_body=1_000_000, max_connections=8)
    with served(tmp_path, limits=limits) as here, ExitStack() as stack:
        image = extended(OK, b"x" * 1_000_000)
        answers = []
        for _ in range(7):
            client = stack.enter_context(here.connect())
            client.sendall(image[:-1])
            answers.append(client)
        assert readable(*answers), "one of them is refused before any is complete"
        assert here.exchange(OK) == ENQUEUED
        refused = 0
        for client in answers:
            try:
                client.sendall(image[-1:])
                client.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            refused += b"too many large bodies" in rest(client)
        assert refused
        assert len(files(here.place)) == 1 + len(answers) - refused


def test_pipelined_packets_are_answered_in_order_until_a_refusal(tmp_path: Path) -> None:
    with served(tmp_path) as here:
        image = extended(OK, b"b") + extended(encode({"priority": "x"}), b"") + OK + OK
        with here.connect() as client:
            client.sendall(image)
            client.shutdown(socket.SHUT_WR)
            answer = rest(client)
        assert answer[3] == 1
        assert answer.endswith(ENQUEUED)
        assert b"priority" in answer
        assert len(files(here.place)) == 2


def test_many_pipelined_packets_are_accepted(tmp_path: Path) -> None:
    with served(tmp_path) as here, here.connect() as client:
        client.sendall(extended(OK, b"") * 100)
        client.shutdown(socket.SHUT_WR)
        assert rest(client).count(b"uwsgi_spoolfile_on_") == 100
        assert len(files(here.place)) == 100


def test_logging_of_refusals_is_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path) as here:
        for _ in range(100):
            here.exchange(encode({"priority": "../x"}))
        until(lambda: "more refusals were not logged" in caplog.text)
    assert len([line for line in caplog.records if line.levelno == logging.WARNING]) < 20


def test_missing_directory_refuses_jobs_until_it_exists(tmp_path: Path) -> None:
    with served(tmp_path) as here:
        here.place.rmdir()
        assert here.exchange(OK) == REFUSED
        here.place.mkdir()
        assert here.exchange(OK) == ENQUEUED


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("fuzz")
    with served(path, str(path / "socket")) as here:
        yield here


@given(
    st.lists(
        st.one_of(st.binary(max_size=200), st.sampled_from([OK, OK[:5], extended(OK, b"x")])), max_size=5
    ),
    st.sampled_from([b"", b"\x11", b"\x11\4\0\1", b"\x11\5\0\0\1\0"]),
    st.booleans(),
)
def test_random_input_does_not_affect_the_next_client(
    fuzzed: Served, parts: list[bytes], begin: bytes, reads: bool
) -> None:
    with fuzzed.connect() as client:
        try:
            client.sendall(begin)
            for part in parts:
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if reads:
            answer = rest(client)
            assert answer == b"" or answer[0] == 255
    with fuzzed.connect() as client:
        assert talk(client, OK) == ENQUEUED
