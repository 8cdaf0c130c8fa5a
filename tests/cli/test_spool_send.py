"""spool send to a real server: its output and its errors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.spooler.network.peers import Access
from tests.support.spool_servers import Served, served
from tests.support.spools import files

KEY = b"a key of the tests, not of anybody"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, access=Access(key=KEY)) as here:
        yield here


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, "socket") as here:
        yield here


def test_job_is_sent(run, plain):
    result = run("spool", "send", plain.address, "hello=world", "k=a=b")
    assert (result.exit_code, result.stdout) == (0, "Enqueued.\n")
    assert plain.jobs() == [({b"hello": b"world", b"k": b"a=b"}, b"")]
    result = run("spool", "send", plain.address, "hello=world", "--json")
    assert json.loads(result.stdout) == {"name": None}


def test_job_options_are_those_of_add(run, plain, tmp_path):
    body = tmp_path / "body"
    body.write_bytes(b"\0body")
    options = ("--at", "2100-01-01T00:00:00Z", "--priority", "3", "--body", str(body))
    result = run("spool", "send", plain.address, "k=v", *options, "--spooler", str(tmp_path / "other"))
    assert result.exit_code == 0, result.stderr
    (name,) = files(tmp_path / "other")
    assert result.stdout == f"{name}\n"
    assert name.startswith("3/")
    assert os.stat(tmp_path / "other" / name).st_mtime == 4_102_444_800
    result = run("spool", "send", plain.address, "k=v", "--in", "1h", "--body", str(body), "--json")
    assert json.loads(result.stdout) == {"name": files(plain.place)[0]}


def test_job_is_signed_with_a_key_file(run, server, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(KEY + b"\n")
    key.chmod(0o600)
    assert run("spool", "send", server.address, "k=v").exit_code == 1
    assert run("spool", "send", server.address, "k=v", "--key-file", str(key)).exit_code == 0
    key.chmod(0o644)
    result = run("spool", "send", server.address, "k=v", "--key-file", str(key))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "chmod" in result.stderr
    assert len(server.jobs()) == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("k=v", "--priority", "../x"), 2, "a priority is the name of a directory"),
        (("k=v", "--spooler", "/nowhere"), 1, "refused the job"),
        (("k=v", "priority=../x"), 1, "refused the job"),
        (("k=v", "at=soon"), 1, "refused the job"),
        (("k=v", "at=5", "--at", "6"), 1, "an argument and a pair"),
        (("k=v", "--at", "6", "--in", "1h"), 2, "not both"),
        (("k",), 2, "KEY=VALUE"),
        (("k=v", "k=w"), 2, "twice"),
        ((), 2, "KEY=VALUE"),
    ],
)
def test_invalid_jobs_are_refused(run, plain, words, code, says):
    result = run("spool", "send", plain.address, *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert files(plain.place) == []


def test_unreachable_server_is_an_error(run, tmp_path):
    result = run("spool", "send", str(tmp_path / "nobody"), "k=v")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: cannot connect to ")
    assert run("spool", "send", "host:port", "k=v").exit_code == 1
