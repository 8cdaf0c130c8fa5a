"""Invalid entries written to the store directly: a real ``qworker beat`` reports each once, calls the
others, and survives."""

from __future__ import annotations

import json
import pickle
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.beats import BeatProcess, Beats
from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.harness import TASKS, Site

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(300)]

PATIENCE = 120.0
"""Timeout for parsing that takes five seconds on an idle machine."""
SCOPE = "faults"
"""Of the app of fault_tasks.py."""
GOOD = {"good": {"task": "periodic", "schedule": 0.2, "catch_up": 1000}}


class Trap:
    """Creates the file ``trapped`` when unpickled."""

    def __reduce__(self) -> Any:
        return open, ("trapped", "w")


def edit(schedule: object, **fields: object) -> bytes:
    """An entry added by hand, as stored."""
    return json.dumps(
        {"added": True, "fields": {"task": "periodic", "schedule": schedule, **fields}}
    ).encode()


def deep(depth: int) -> bytes:
    return edit({"every": 0.2}, args="DEEP").replace(b'"DEEP"', b"[" * depth + b"]" * depth)


HOSTILE = {
    "pickle": pickle.dumps(Trap()),
    "old pickle": b"cbuiltins\nopen\n(S'trapped'\nS'w'\ntR.",
    "ten megabytes": edit({"every": 0.2}, args=["x" * 10_000_000]),
    "never": edit({"crontab": "0 0 30 2 *"}),
    "no zone": edit({"crontab": "* * * * *", "tz": "Mars/Olympus_Mons"}),
    "a file for a zone": edit({"crontab": "* * * * *", "tz": "../../../../etc/passwd"}),
    "a list for a zone": edit({"crontab": "* * * * *", "tz": ["Europe/Berlin"]}),
    "deep": deep(10_000),
    "a deep list": b"[" * 10_000,
    "no text": b"\xff\xfe{\x00}",
    "a rule that never comes": edit({"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}),
    "many rules": edit({"rrule": "\n".join(["RRULE:FREQ=HOURLY;BYMONTH=2;BYMONTHDAY=30"] * 80)}),
    "a list for a rule": edit({"rrule": ["FREQ=DAILY"]}),
    "no interval": edit({"every": 0}),
    "no number": b'{"added":true,"fields":{"task":"periodic","schedule":{"every":NaN}}}',
    "an endless number": b'{"added":true,"fields":{"task":"periodic","schedule":{"every":1%s}}}'
    % (b"0" * 9000),
    "nothing": b"",
    "no kind": edit({"eval": "__import__('os')"}),
    "no task": edit({"every": 0.2}, task=None),
    "no field": edit({"every": 0.2}, __class__="x"),
    "a name\nof two lines \x1b[2J": edit({"every": 0.2}),
}
"""Invalid stored edits by entry name."""
UNSENDABLE = {
    "half a character": edit({"every": 0.2}, task="\ud800"),
    "an unknown option": edit({"every": 0.2}, options={"nonsense": 1}),
}
"""Valid entries that cannot be called."""
EVERY = HOSTILE | UNSENDABLE


class Store(ABC):
    """The schedule store of *site*, written directly without qworker."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @abstractmethod
    def write(self, name: str, edit: bytes) -> None:
        """Store *edit* as the changes of the entry *name*."""


class File(Store):
    """The embedded file."""

    def write(self, name: str, edit: bytes) -> None:
        with closing(sqlite3.connect(self.site.path / "broker.db", timeout=30)) as file, file:
            file.execute("UPDATE qworker_beat SET version = version + 1")
            file.execute(
                "INSERT INTO qworker_entry (scope, name, version, edit, runs) "
                "SELECT scope, ?, version, ?, 0 FROM qworker_beat",
                (name, edit),
            )


class PostgreSQLStore(Store):
    """A PostgreSQL database."""

    def write(self, name: str, edit: bytes) -> None:
        import psycopg

        with psycopg.connect(self.site.url) as connection:
            connection.execute("UPDATE qworker_beat SET version = version + 1")
            connection.execute(
                "INSERT INTO qworker_entry (scope, name, version, edit, runs) "
                "SELECT scope, %s, version, %s, 0 FROM qworker_beat",
                (name, edit),
            )


class RedisStore(Store):
    """Redis keys."""

    def write(self, name: str, edit: bytes) -> None:
        import redis

        prefix = f"qworker.beat.{SCOPE}."
        with redis.Redis.from_url(self.site.url) as client:
            version = int(client.hget(f"{prefix}lease", "version") or 0) + 1  # type: ignore[arg-type]
            with client.pipeline() as together:
                together.hset(f"{prefix}edits", name, edit)
                together.zadd(f"{prefix}versions", {name: version})
                together.hset(f"{prefix}lease", "version", version)
                together.execute()


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, _private_servers: Callable[[str, str], Broken]
) -> Iterator[Store]:
    given = {"beat_schedule": json.dumps(GOOD)}
    if request.param == "sqlite":
        with RemoteSite(tmp_path, *[f"sqlite:///{tmp_path}/broker.db"] * 2, **given) as site:
            yield File(site)
        return
    server = _private_servers(request.param, "broker")
    with server.exposed(), RemoteSite(tmp_path, server.direct, server.direct, **given) as site:
        yield {"redis": RedisStore, "postgresql": PostgreSQLStore}[request.param](site)


@pytest.fixture
def beats(store: Store) -> Iterator[Beats]:
    beats = Beats(store.site)
    yield beats
    beats.close()


def calls(beat: BeatProcess) -> int:
    return beat.log.count("sending due task good ")


def reports(beat: BeatProcess) -> dict[str, int]:
    """How often each entry is reported as invalid, or as impossible to call."""
    log = beat.log.replace("\n    ", "\n")  # further lines of a message
    return {
        name: log.count(f"the entry {name} {'cannot be' if name in UNSENDABLE else 'is not'} called: ")
        for name in (shown(name) for name in EVERY)
    }


def shown(name: str) -> str:
    return name.replace("\x1b", "\\x1b")


def command(site: Site, *arguments: str) -> str:
    """The output of a ``qworker beat`` command, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "qworker", "beat", *arguments, "-A", TASKS],
        cwd=site.path,
        env=site.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_invalid_entries_are_reported_once_and_do_not_affect_others(store: Store, beats: Beats) -> None:
    """Half of them exist at the start, half are added while it runs."""
    site, names = store.site, list(EVERY)
    first = beats.start()
    site.until(lambda: calls(first) > 0, "a call")
    assert first.end() == 0
    for name in names[::2]:
        store.write(name, EVERY[name])
    beat = beats.start()
    site.until(lambda: calls(beat) > 3, "calls beside what was there")
    for name in names[1::2]:
        store.write(name, EVERY[name])
    site.until(lambda: all(reports(beat).values()), "each to be told of")
    seen = calls(beat)
    site.until(lambda: calls(beat) > seen + 5, "calls beside what has come")
    states = {each["name"]: each for each in json.loads(command(site, "list", "--json"))["entries"]}
    assert {name: states[name]["state"] for name in (*EVERY, "good")} == {
        **dict.fromkeys(HOSTILE, "wrong"),
        **dict.fromkeys((*UNSENDABLE, "good"), "active"),
    }
    assert [name for name in EVERY if not states[name]["error"]] == []
    beats.running.clear()
    assert beat.end() == 0
    assert reports(beat) == dict.fromkeys(map(shown, EVERY), 1)
    assert "Traceback" not in beat.log
    assert len(beat.log) < 30_000, "what is wrong is told in few words"
    assert not (site.path / "trapped").exists()
    shows = json.loads(command(site, "show", "good", "--json"))
    assert shows["runs"] == calls(first) + calls(beat)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_slow_parsing_does_not_prevent_leadership(store: Store, beats: Beats) -> None:
    """Finding that a rule never occurs takes longer than a lease. Another scheduler leads meanwhile, and
    parses the same rule; each does so once."""
    site, three = store.site, [beats.start() for _ in range(3)]
    site.until(lambda: sum(map(calls, three)) > 3 and beats.all_wait(), "calls")
    store.write("rule", edit({"rrule": "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"}))
    site.until(
        lambda: any("the entry rule is not called" in each.log for each in three),
        "it to be told of",
        PATIENCE,
    )
    seen = sum(map(calls, three))
    site.until(lambda: sum(map(calls, three)) > seen + 10, "calls to go on", PATIENCE)
    beats.running.clear()
    assert [each.end() for each in three] == [0, 0, 0]
    shows = json.loads(command(site, "show", "good", "--json"))
    assert shows["runs"] == sum(map(calls, three))
