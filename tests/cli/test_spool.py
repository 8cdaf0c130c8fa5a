"""spool ls, show and add: their output for real spool files, and their errors."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qworker.errors import InvalidPacket
from qworker.spooler.files.packet import DEAD, PREFIX, Packet, decode, encode
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.uwsgi_files import DATA, samples


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


def add(spool: Path, pairs: dict[str, str] | None = None, **options: object) -> str:
    """Write a job and return its name."""
    writer = Writer(spool)
    return os.path.relpath(writer.write(pairs or {"k": "v"}, **options), writer.path)  # type: ignore[arg-type]


def listed(run, spool: Path, *options: str) -> list[dict[str, object]]:
    result = run("spool", "ls", str(spool), "--json", *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def damage(image: bytes) -> str:
    """Why these bytes are not a packet; '' if they are."""
    try:
        decode(image)
    except InvalidPacket as error:
        return str(error)
    return ""


def test_empty_directory(run, spool):
    assert run("spool", "ls", str(spool)).stdout == "No job waits.\n"
    assert listed(run, spool) == []


def test_files_of_uwsgi_are_listed(run, tmp_path):
    spool = tmp_path / "valid"
    shutil.copytree(DATA / "valid", spool)
    found = listed(run, spool)
    there = {str(path.relative_to(spool)): path for path in spool.rglob(f"{PREFIX}*")}
    words = {name for name in there if name.startswith("high/")}  # a spooler does not look there by itself
    assert {job["name"] for job in found} == there.keys() - words
    for job in found:
        assert job["size"] == there[job["name"]].stat().st_size
        assert job["due"] == there[job["name"]].stat().st_mtime
        assert job["priority"] == job["name"].rpartition("/")[0]
        assert (job["attempts"], job["state"]) == (0, "waiting")
    priorities = [job["priority"] for job in found if job["priority"]]
    assert priorities == sorted(priorities, key=["02", "1", "2", "10"].index)


def test_jobs_are_listed_as_a_table(run, spool):
    name = add(spool, priority=3)
    lines = run("spool", "ls", str(spool)).stdout.splitlines()
    assert lines[0].split() == ["name", "priority", "bytes", "due", "attempts", "state"]
    assert lines[1].split() == [name, "3", str(os.stat(spool / name).st_size), "now", "0", "waiting"]


def test_states_and_attempts_are_listed(run, spool):
    later = add(spool, at=time.time() + 3600)
    directory = SpoolDirectory(spool)
    running = add(spool)
    claim = directory.next()
    assert claim is not None
    claim.begin()
    found = {job["name"]: job for job in listed(run, spool)}
    assert (found[later]["state"], found[later]["attempts"]) == ("delayed", 0)
    assert (found[running]["state"], found[running]["attempts"]) == ("running", 1)
    assert (
        "in 60 min" in run("spool", "ls", str(spool)).stdout
        or "in 1 h" in run("spool", "ls", str(spool)).stdout
    )
    claim.set_aside("it is of no use")
    directory.close()
    assert [job["name"] for job in listed(run, spool)] == [later]
    assert "Set aside: 1 job." in run("spool", "ls", str(spool)).stderr
    job = listed(run, spool, "--all")[-1]
    assert (job["name"], job["state"], job["reason"]) == (running, "set aside", "it is of no use")
    assert (job["attempts"], job["was"]) == (1, running)
    assert abs(job["set_aside_at"] - time.time()) < 600
    assert "it is of no use" in run("spool", "ls", str(spool), "--all").stdout


def test_listing_does_not_read_packets(run, spool):
    huge = spool / f"{PREFIX}huge"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    (spool / f"{PREFIX}empty").touch()
    assert [(job["size"], job["state"]) for job in listed(run, spool)] == [
        (0, "waiting"),
        (1 << 40, "waiting"),
    ]


def test_other_files_are_not_listed(run, spool):
    add(spool)
    (spool / f"{PREFIX}directory").mkdir()
    os.mkfifo(spool / f"{PREFIX}pipe")
    (spool / f"{PREFIX}link").symlink_to("/etc/passwd")
    (spool / "other").touch()
    (spool / "5").symlink_to(spool)
    assert len(listed(run, spool)) == 1


def test_invalid_notes_of_dead_jobs_are_ignored(run, spool):
    (spool / DEAD).mkdir()
    for number, note in enumerate((None, "{", "[]", '{"path": "../../x", "reason": 1}', "[" * 100_000)):
        name = f"{PREFIX}{number}"
        (spool / DEAD / name).write_bytes(encode({"k": "v"}))
        if note is not None:
            (spool / DEAD / f"{name}.json").write_text(note)
    (spool / DEAD / f"{PREFIX}gone.json").write_text("{}")
    found = listed(run, spool, "--all")
    assert [job["name"] for job in found] == [f"{PREFIX}{number}" for number in range(5)]
    assert {(job["reason"], job["set_aside_at"]) for job in found} == {("nothing was noted", None)}
    assert all(job["was"] == job["name"] for job in found)


@pytest.mark.parametrize("sample", samples("valid"), ids=lambda sample: sample.id)
def test_job_written_by_uwsgi_is_shown(run, sample):
    result = run("spool", "show", str(sample.path.parent), sample.path.name, "--json")
    shown = json.loads(result.stdout)
    assert shown.get("damage", "") == damage(sample.image)
    packet = Packet({}, b"") if damage(sample.image) else decode(sample.image)
    assert shown["pairs"] == {
        key.decode("utf-8", "backslashreplace"): value.decode("utf-8", "backslashreplace")
        for key, value in packet.pairs.items()
    }
    assert shown["body_length"] == len(packet.body)
    assert shown["body"] == packet.body[:4096].decode("utf-8", "backslashreplace")
    assert run("spool", "show", str(sample.path.parent), sample.path.name).exit_code == 0


@pytest.mark.parametrize("sample", samples("malformed"), ids=lambda sample: sample.id)
def test_invalid_packet_is_shown(run, spool, sample):
    name = f"{PREFIX}{sample.id}"
    (spool / name).write_bytes(sample.image)
    result = run("spool", "show", str(spool), name)
    assert result.exit_code == 0
    assert (f"damage: {damage(sample.image)}" in result.stdout) == bool(damage(sample.image))


def test_large_body_is_truncated(run, spool):
    body = bytes(range(256)) * 4096
    name = add(spool, {"k" * 40_000: "v" * 25_000}, body=body)
    result = run("spool", "show", str(spool), name)
    assert f"body ({len(body)} bytes): \\x00\\x01" in result.stdout
    assert len(result.stdout) < 100_000
    shown = json.loads(run("spool", "show", str(spool), name, "--json").stdout)
    assert shown["body_length"] == len(body)


def test_show_does_not_unpickle(run, spool, tmp_path):
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(trap),)

    name = add(spool, {"ud_spool_func": "f", "args": pickle.dumps(Trap())}, body=pickle.dumps(Trap()))
    for options in ((), ("--json",)):
        assert run("spool", "show", str(spool), name, *options).exit_code == 0
    assert not trap.exists()


def test_dead_job_is_shown_with_its_note(run, spool):
    name = add(spool, {"hello": "world"}, priority=4)
    directory = SpoolDirectory(spool, ordered=True)
    claim = directory.next()
    assert claim is not None
    claim.set_aside("nobody knows it")
    directory.close()
    for asked in (name, name.rpartition("/")[2]):
        shown = json.loads(run("spool", "show", str(spool), asked, "--json").stdout)
        assert (shown["state"], shown["reason"], shown["was"]) == ("set aside", "nobody knows it", name)
        assert shown["pairs"] == {"hello": "world"}
    assert "reason: nobody knows it" in run("spool", "show", str(spool), name).stdout


def test_escape_sequences_are_not_printed(run, spool):
    evil = "\x1b]0;owned\x07\n"
    name = f"{PREFIX}{evil}"
    (spool / name).write_bytes(encode({evil: evil}) + evil.encode())
    (spool / DEAD).mkdir()
    (spool / DEAD / f"{name}2").write_bytes(b"")
    note = {"path": f"{name}2", "reason": evil, "attempts": 1, "at": "2030-01-01T00:00:00Z"}
    (spool / DEAD / f"{name}2.json").write_text(json.dumps(note))
    for arguments in (
        ("ls", spool, "--all"),
        ("show", spool, name),
        ("show", spool, f"{name}2"),
        ("show", spool, f"{name}3"),
        ("rm", spool, f"{name}3"),
        ("rm", spool, f"{name}3", "--dead"),
        ("add", spool, evil),
        ("add", spool, f"{evil}=1", f"{evil}=2"),
        ("ls", f"{spool}{evil}"),
    ):
        result = run("spool", *map(str, arguments))
        assert "\x1b" not in result.stdout + result.stderr
        assert "\x07" not in result.stdout + result.stderr
        assert "\\x1b" in result.stdout + result.stderr


@pytest.mark.parametrize("command", ["show", "rm", "retry"])
@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "../x",
        f"../{PREFIX}x",
        f"/etc/{PREFIX}x",
        f"1/../{PREFIX}x",
        f"{DEAD}/{PREFIX}x",
        f"high/{PREFIX}x",
        f"{PREFIX}x/y",
        f"{PREFIX}x/",
        f"{PREFIX}\0",
        f"{PREFIX}{'x' * 255}",
        "other",
    ],
)
def test_invalid_job_names_are_refused(run, spool, command, name):
    other = Path(f"{spool}/../{PREFIX}x")
    other.write_bytes(encode({"k": "v"}))
    (spool / "1").mkdir()
    result = run("spool", command, str(spool), name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is not the name of a job" in result.stderr
    assert "\0" not in result.stderr
    assert other.exists()


def test_symbolic_links_are_not_followed(run, spool, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    name = add(outside)
    (spool / "1").symlink_to(outside)
    (spool / name).symlink_to(outside / name)
    for command in ("show", "rm", "retry"):
        for asked in (name, f"1/{name}"):
            result = run("spool", command, str(spool), asked)
            assert result.exit_code == 1
            assert result.stderr.startswith("Error: ")
    assert (outside / name).exists()


@pytest.mark.parametrize("command", [["ls"], ["show", f"{PREFIX}x"], ["add", "a=b"], ["rm", f"{PREFIX}x"]])
def test_missing_or_wrong_directory_is_an_error(run, tmp_path, command):
    file = tmp_path / "file"
    file.touch()
    others = tmp_path / "others"
    others.mkdir()
    (others / "passwd").touch()
    name, *more = command
    for spool, words in (
        (tmp_path / "gone", "No such file"),
        (file, "is not a directory"),
        (others, "no spool files"),
    ):
        result = run("spool", name, str(spool), *more)
        assert (result.exit_code, result.stdout) == (1, "")
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert run("spool", name, f"{tmp_path}\0", *more).exit_code == 1
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("command", [["ls"], ["show", f"{PREFIX}x"], ["add", "a=b"], ["rm", f"{PREFIX}x"]])
def test_unreadable_directory_is_an_error(environment, spool, command):
    """In a process of another user if the tests run as root, who may read everything."""
    spool.chmod(0)
    name, *more = command
    code = (
        "import os, sys\n"
        "from qworker.cli.main import main\n"
        "from qworker.cli.spool import commands\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        f"main(['spool', {name!r}, {spool.name!r}, *{more!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=spool.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    spool.chmod(0o700)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_add_writes_a_job(run, spool):
    result = run("spool", "add", str(spool), "hello=world", "empty=", "equals=a=b", "n=1")
    (name,) = result.stdout.splitlines()
    assert decode((spool / name).read_bytes()) == (
        {b"hello": b"world", b"empty": b"", b"equals": b"a=b", b"n": b"1"},
        b"",
    )
    assert stat.S_IMODE((spool / name).stat().st_mode) == 0o600
    directory = SpoolDirectory(spool)
    claim = directory.next()
    assert claim is not None
    assert claim.pairs[b"hello"] == b"world"
    claim.finish()
    directory.close()


def test_add_writes_priority_and_body(run, spool, tmp_path):
    (tmp_path / "body").write_bytes(b"\x00\xff")
    for source in (str(tmp_path / "body"), "-"):
        result = run("spool", "add", str(spool), "a=b", "--priority", "2", "--body", source, input="typed")
        (name,) = result.stdout.splitlines()
        assert name.startswith(f"2/{PREFIX}")
        assert decode((spool / name).read_bytes()).body == (b"typed" if source == "-" else b"\x00\xff")


def test_add_writes_the_due_time(run, spool):
    def due(*options: str) -> float:
        result = run("spool", "add", str(spool), "a=b", "--json", *options)
        answer = json.loads(result.stdout)
        assert os.stat(spool / answer["name"]).st_mtime == answer["due"]
        return float(answer["due"])

    assert due("--at", "2040-01-31T08:00:00Z") == 2211609600
    assert due("--at", "2211609600") == 2211609600
    assert abs(due("--in", "3600") - time.time() - 3600) < 600
    assert abs(due("--in", "2h") - time.time() - 7200) < 600
    assert due() <= time.time() + 1


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["a"], "KEY=VALUE", 2),
        (["=b"], "KEY=VALUE", 2),
        (["a=1", "a=2"], "given twice", 2),
        ([], "KEY=VALUE", 2),
        (["a=b", "--at", "1", "--in", "1"], "not both", 2),
        (["a=b", "--at", "tomorrow"], "ISO 8601", 2),
        (["a=b", "--in", "-1"], "-1", 2),
        (["a=b", "--priority", "../x"], "digits", 2),
        (["a=b", "--priority", "high"], "digits", 2),
        (["a=b", "--body", "/gone"], "/gone", 2),
        ([f"a={'x' * 65_536}"], "65,535", 1),
        (["a=b", "--at", "99999999999999999999"], "due", 1),
    ],
)
def test_add_refuses_invalid_jobs(run, spool, words, said, code):
    result = run("spool", "add", str(spool), *words)
    assert result.exit_code == code
    assert said in result.stderr
    assert not any(path.is_file() for path in spool.rglob("*"))
