"""spool ls, show and add: what they print of real spool files, and what they refuse."""

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
def place(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


def add(place: Path, pairs: dict[str, str] | None = None, **options: object) -> str:
    """Write a job, and return its name."""
    writer = Writer(place)
    return os.path.relpath(writer.write(pairs or {"k": "v"}, **options), writer.path)  # type: ignore[arg-type]


def listed(run, place: Path, *options: str) -> list[dict[str, object]]:
    result = run("spool", "ls", str(place), "--json", *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def damage(image: bytes) -> str:
    """Why these bytes are no packet; '' when they are one."""
    try:
        decode(image)
    except InvalidPacket as error:
        return str(error)
    return ""


def test_nothing_waits(run, place):
    assert run("spool", "ls", str(place)).stdout == "No job waits.\n"
    assert listed(run, place) == []


def test_the_files_of_uwsgi(run, tmp_path):
    place = tmp_path / "valid"
    shutil.copytree(DATA / "valid", place)
    found = listed(run, place)
    there = {str(path.relative_to(place)): path for path in place.rglob(f"{PREFIX}*")}
    words = {name for name in there if name.startswith("high/")}  # where no spooler looks by itself
    assert {job["name"] for job in found} == there.keys() - words
    for job in found:
        assert job["size"] == there[job["name"]].stat().st_size
        assert job["due"] == there[job["name"]].stat().st_mtime
        assert job["priority"] == job["name"].rpartition("/")[0]
        assert (job["attempts"], job["state"]) == (0, "waiting")
    priorities = [job["priority"] for job in found if job["priority"]]
    assert priorities == sorted(priorities, key=["02", "1", "2", "10"].index)


def test_a_table(run, place):
    name = add(place, priority=3)
    lines = run("spool", "ls", str(place)).stdout.splitlines()
    assert lines[0].split() == ["name", "priority", "bytes", "due", "attempts", "state"]
    assert lines[1].split() == [name, "3", str(os.stat(place / name).st_size), "now", "0", "waiting"]


def test_states_and_attempts(run, place):
    later = add(place, at=time.time() + 3600)
    directory = SpoolDirectory(place)
    running = add(place)
    claim = directory.next()
    assert claim is not None
    claim.begin()
    found = {job["name"]: job for job in listed(run, place)}
    assert (found[later]["state"], found[later]["attempts"]) == ("delayed", 0)
    assert (found[running]["state"], found[running]["attempts"]) == ("running", 1)
    assert (
        "in 60 min" in run("spool", "ls", str(place)).stdout
        or "in 1 h" in run("spool", "ls", str(place)).stdout
    )
    claim.set_aside("it is of no use")
    directory.close()
    assert [job["name"] for job in listed(run, place)] == [later]
    assert "Set aside: 1 job." in run("spool", "ls", str(place)).stderr
    job = listed(run, place, "--all")[-1]
    assert (job["name"], job["state"], job["reason"]) == (running, "set aside", "it is of no use")
    assert (job["attempts"], job["was"]) == (1, running)
    assert abs(job["set_aside_at"] - time.time()) < 600
    assert "it is of no use" in run("spool", "ls", str(place), "--all").stdout


def test_listing_reads_no_packet(run, place):
    huge = place / f"{PREFIX}huge"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    (place / f"{PREFIX}empty").touch()
    assert [(job["size"], job["state"]) for job in listed(run, place)] == [
        (0, "waiting"),
        (1 << 40, "waiting"),
    ]


def test_what_is_no_job_is_not_listed(run, place):
    add(place)
    (place / f"{PREFIX}directory").mkdir()
    os.mkfifo(place / f"{PREFIX}pipe")
    (place / f"{PREFIX}link").symlink_to("/etc/passwd")
    (place / "other").touch()
    (place / "5").symlink_to(place)
    assert len(listed(run, place)) == 1


def test_a_note_that_says_nothing_or_lies(run, place):
    (place / DEAD).mkdir()
    for number, note in enumerate((None, "{", "[]", '{"path": "../../x", "reason": 1}', "[" * 100_000)):
        name = f"{PREFIX}{number}"
        (place / DEAD / name).write_bytes(encode({"k": "v"}))
        if note is not None:
            (place / DEAD / f"{name}.json").write_text(note)
    (place / DEAD / f"{PREFIX}gone.json").write_text("{}")
    found = listed(run, place, "--all")
    assert [job["name"] for job in found] == [f"{PREFIX}{number}" for number in range(5)]
    assert {(job["reason"], job["set_aside_at"]) for job in found} == {("nothing was noted", None)}
    assert all(job["was"] == job["name"] for job in found)


@pytest.mark.parametrize("sample", samples("valid"), ids=lambda sample: sample.id)
def test_what_uwsgi_wrote_is_shown(run, sample):
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
def test_what_is_no_packet_is_shown(run, place, sample):
    name = f"{PREFIX}{sample.id}"
    (place / name).write_bytes(sample.image)
    result = run("spool", "show", str(place), name)
    assert result.exit_code == 0
    assert (f"damage: {damage(sample.image)}" in result.stdout) == bool(damage(sample.image))


def test_a_large_body_is_shown_by_its_beginning(run, place):
    body = bytes(range(256)) * 4096
    name = add(place, {"k" * 40_000: "v" * 25_000}, body=body)
    result = run("spool", "show", str(place), name)
    assert f"body ({len(body)} bytes): \\x00\\x01" in result.stdout
    assert len(result.stdout) < 100_000
    shown = json.loads(run("spool", "show", str(place), name, "--json").stdout)
    assert shown["body_length"] == len(body)


def test_nothing_is_unpickled(run, place, tmp_path):
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(trap),)

    name = add(place, {"ud_spool_func": "f", "args": pickle.dumps(Trap())}, body=pickle.dumps(Trap()))
    for options in ((), ("--json",)):
        assert run("spool", "show", str(place), name, *options).exit_code == 0
    assert not trap.exists()


def test_one_that_was_set_aside_is_shown_with_its_note(run, place):
    name = add(place, {"hello": "world"}, priority=4)
    directory = SpoolDirectory(place, ordered=True)
    claim = directory.next()
    assert claim is not None
    claim.set_aside("nobody knows it")
    directory.close()
    for asked in (name, name.rpartition("/")[2]):
        shown = json.loads(run("spool", "show", str(place), asked, "--json").stdout)
        assert (shown["state"], shown["reason"], shown["was"]) == ("set aside", "nobody knows it", name)
        assert shown["pairs"] == {"hello": "world"}
    assert "reason: nobody knows it" in run("spool", "show", str(place), name).stdout


def test_no_escape_reaches_the_terminal(run, place):
    evil = "\x1b]0;owned\x07\n"
    name = f"{PREFIX}{evil}"
    (place / name).write_bytes(encode({evil: evil}) + evil.encode())
    (place / DEAD).mkdir()
    (place / DEAD / f"{name}2").write_bytes(b"")
    note = {"path": f"{name}2", "reason": evil, "attempts": 1, "at": "2030-01-01T00:00:00Z"}
    (place / DEAD / f"{name}2.json").write_text(json.dumps(note))
    for arguments in (
        ("ls", place, "--all"),
        ("show", place, name),
        ("show", place, f"{name}2"),
        ("show", place, f"{name}3"),
        ("rm", place, f"{name}3"),
        ("rm", place, f"{name}3", "--dead"),
        ("add", place, evil),
        ("add", place, f"{evil}=1", f"{evil}=2"),
        ("ls", f"{place}{evil}"),
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
def test_names_lead_nowhere_else(run, place, command, name):
    other = Path(f"{place}/../{PREFIX}x")
    other.write_bytes(encode({"k": "v"}))
    (place / "1").mkdir()
    result = run("spool", command, str(place), name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is not the name of a job" in result.stderr
    assert "\0" not in result.stderr
    assert other.exists()


def test_no_link_is_followed(run, place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    name = add(outside)
    (place / "1").symlink_to(outside)
    (place / name).symlink_to(outside / name)
    for command in ("show", "rm", "retry"):
        for asked in (name, f"1/{name}"):
            result = run("spool", command, str(place), asked)
            assert result.exit_code == 1
            assert result.stderr.startswith("Error: ")
    assert (outside / name).exists()


@pytest.mark.parametrize("command", [["ls"], ["show", f"{PREFIX}x"], ["add", "a=b"], ["rm", f"{PREFIX}x"]])
def test_no_directory(run, tmp_path, command):
    file = tmp_path / "file"
    file.touch()
    others = tmp_path / "others"
    others.mkdir()
    (others / "passwd").touch()
    name, *more = command
    for place, words in (
        (tmp_path / "gone", "No such file"),
        (file, "is not a directory"),
        (others, "no spool files"),
    ):
        result = run("spool", name, str(place), *more)
        assert (result.exit_code, result.stdout) == (1, "")
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert run("spool", name, f"{tmp_path}\0", *more).exit_code == 1
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("command", [["ls"], ["show", f"{PREFIX}x"], ["add", "a=b"], ["rm", f"{PREFIX}x"]])
def test_no_rights(environment, place, command):
    """In a process of another user when this is root, who may do everything."""
    place.chmod(0)
    name, *more = command
    code = (
        "import os, sys\n"
        "from qworker.cli.main import main\n"
        "from qworker.cli.spool import commands\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        f"main(['spool', {name!r}, {place.name!r}, *{more!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=place.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    place.chmod(0o700)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_job_is_written_as_it_is_read(run, place):
    result = run("spool", "add", str(place), "hello=world", "empty=", "equals=a=b", "n=1")
    (name,) = result.stdout.splitlines()
    assert decode((place / name).read_bytes()) == (
        {b"hello": b"world", b"empty": b"", b"equals": b"a=b", b"n": b"1"},
        b"",
    )
    assert stat.S_IMODE((place / name).stat().st_mode) == 0o600
    directory = SpoolDirectory(place)
    claim = directory.next()
    assert claim is not None
    assert claim.pairs[b"hello"] == b"world"
    claim.finish()
    directory.close()


def test_a_job_of_a_priority_with_a_body(run, place, tmp_path):
    (tmp_path / "body").write_bytes(b"\x00\xff")
    for source in (str(tmp_path / "body"), "-"):
        result = run("spool", "add", str(place), "a=b", "--priority", "2", "--body", source, input="typed")
        (name,) = result.stdout.splitlines()
        assert name.startswith(f"2/{PREFIX}")
        assert decode((place / name).read_bytes()).body == (b"typed" if source == "-" else b"\x00\xff")


def test_when_a_job_is_due(run, place):
    def due(*options: str) -> float:
        result = run("spool", "add", str(place), "a=b", "--json", *options)
        answer = json.loads(result.stdout)
        assert os.stat(place / answer["name"]).st_mtime == answer["due"]
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
def test_what_cannot_be_added(run, place, words, said, code):
    result = run("spool", "add", str(place), *words)
    assert result.exit_code == code
    assert said in result.stderr
    assert not any(path.is_file() for path in place.rglob("*"))
