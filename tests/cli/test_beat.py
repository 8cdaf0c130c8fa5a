"""qworker beat: its subcommands, usage errors, and the scheduler process."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qworker.beat.leadership import living
from qworker.beat.store import LEASE_SECONDS
from qworker.cli.discovery import find_app
from qworker.conf.unsupported import BEAT_OPTIONS, BEAT_OPTIONS_WITHOUT_EFFECT
from qworker.testing.clock import FakeClock
from tests.support.processes import SLOW, Started
from tests.support.waiting import until

TASKS = """
    from qworker import QWorker
    from qworker.beat import crontab

    app = QWorker("tasks", beat_schedule={
        "nightly": {"task": "tasks.add", "schedule": crontab(hour=4, minute=0), "args": (1, 2)},
        "hourly": {"task": "tasks.add", "schedule": 3600, "args": [1, 2], "options": {"queue": "slow"}},
        "bad": {"task": "tasks.add", "schedule": "no"},
    })


    @app.task
    def add(x: int, y: int) -> int:
        return x + y
"""
EMPTY = """
    from qworker import QWorker

    app = QWorker("tasks")


    @app.task
    def add(x: int, y: int) -> int:
        return x + y
"""
TICKING = """
    from qworker import QWorker

    app = QWorker("tasks")


    @app.task(schedule=0.1)
    def tick() -> None:
        pass
"""
BRIEF = {
    *("name", "task", "when", "state", "source", "changed", "next_due", "last_due", "last_run", "runs"),
    "error",
    "problems",
}


@pytest.fixture
def entries(tasks, project):
    return project(**{"tasks.py": TASKS})


@pytest.fixture
def beat(run):
    """Runs a subcommand of beat that must succeed; returns its standard output."""

    def invoke(*arguments):
        result = run("beat", *arguments, "-A", "tasks")
        assert result.exit_code == 0, result.stderr
        return result.stdout

    return invoke


PYPROJECT = """
    [tool.qworker.beat_schedule.often]
    task = "tasks.add"
    schedule = 2.5
    args = [1, 2]

    [tool.qworker.beat_schedule.nightly]
    task = "tasks.add"
    schedule = "30 4 * * mon-fri"
    expires = 3600
    start = 2027-01-01T00:00:00+01:00
    options = {queue = "night"}
"""


def test_entries_are_read_from_pyproject(tasks, project, run):
    project(**{"tasks.py": EMPTY, "pyproject.toml": PYPROJECT})
    listed = {each["name"]: each for each in json.loads(run("beat", "list", "--json").stdout)["entries"]}
    often, nightly = listed["often"], listed["nightly"]
    assert (often["when"], often["source"]) == ("every 2.5 seconds", "settings")
    assert nightly["next_due"].startswith("2027-01-01T")
    shown = json.loads(run("beat", "show", "nightly", "--json").stdout)
    assert (shown["fields"]["expires"], shown["fields"]["options"]) == (3600.0, {"queue": "night"})


@pytest.fixture
def entry(beat):
    """An entry as `show --json` has it."""
    return lambda name: json.loads(beat("show", name, "--json"))


@pytest.fixture
def start(environment):
    started = []

    def begin(*arguments, **more):
        started.append(Started({**environment, **more}, "beat", *arguments))
        return started[-1]

    yield begin
    for each in started:
        try:
            os.killpg(each.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        each.process.wait(SLOW)


# -- listing --


def test_list_shows_every_entry_and_that_no_scheduler_runs(entries, run):
    result = run("beat", "list", "-A", "tasks")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert lines["nightly"].endswith("0  active  settings")
    assert "tasks.add  at 04:00 every day" in lines["nightly"]
    assert lines["bad"].endswith("0  wrong   settings")
    assert "entry 'bad': 'no' is not a crontab" in result.stderr
    assert "No scheduler is running." in result.stderr


def test_list_as_json_has_all_keys(entries, beat):
    found = json.loads(beat("list", "--json"))
    assert (found["leader"], found["shared"]) == (None, True)
    assert found["store"].startswith("sqlite:///")
    assert [each["name"] for each in found["entries"]] == ["bad", "hourly", "nightly"]
    for each in found["entries"]:
        assert set(each) == BRIEF
    bad, hourly, _ = found["entries"]
    assert (bad["state"], bad["task"], bad["next_due"]) == ("wrong", None, None)
    assert "is not a crontab" in bad["error"]
    assert (hourly["state"], hourly["when"], hourly["runs"], hourly["error"]) == (
        "active",
        "every hour",
        0,
        None,
    )
    assert datetime.fromisoformat(hourly["next_due"]) > datetime.now(UTC)


def test_help_describes_each_json_key(entries, run, beat, entry):
    text = run("beat", "list", "--help").stdout
    for key in (*json.loads(beat("list", "--json")), *BRIEF):
        assert f"`{key}`" in text
    shown = run("beat", "show", "--help").stdout
    for key in set(entry("nightly")) - BRIEF:
        assert f"`{key}`" in shown


def test_list_names_the_leader(entries, run, leader):
    service = leader(find_app("tasks").app)
    result = run("beat", "list", "-A", "tasks")
    holder = find_app("tasks").app.schedules.leader().holder
    assert f"{holder} is the leader of the schedulers." in result.stderr
    assert json.loads(run("beat", "list", "--json").stdout)["leader"] == holder
    service.stop()
    assert service.join(SLOW)
    assert "No scheduler is running" in run("beat", "list").stderr


def test_leader_that_stopped_renewing_is_not_reported(entries):
    store, clock = find_app("tasks").app.schedules.store, FakeClock()
    assert living(store, clock) is None
    taken = store.take("gone:1", store.look())
    assert taken.holder == "gone:1"
    assert living(store, clock) is None
    assert sum(clock.slept) >= LEASE_SECONDS

    class Counting(FakeClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            store.renew(taken)

    assert living(store, Counting()).holder == "gone:1"


def test_list_without_entries(tasks, project, run):
    project(**{"tasks.py": EMPTY})
    assert run("beat", "list").stdout == "There are no entries.\n"
    assert json.loads(run("beat", "list", "--json").stdout)["entries"] == []


def test_app_option_is_accepted_before_and_after_the_command(tasks, project, run):
    project(**{"other.py": TASKS})
    for arguments in (
        "beat -A other list",
        "-A other beat list",
        "beat list -A other",
        "-A tasks beat -A other list",
    ):
        result = run(*arguments.split())
        assert "nightly" in result.stdout, result.stderr


def test_show_shows_every_field_of_an_entry(entries, beat, entry):
    text = beat("show", "nightly")
    for words in ("task: tasks.add", "when: at 04:00 every day", "state: active", "source: settings",
                  "args: [1, 2]", 'overlap: "allow"', "next due times:"):  # fmt: skip
        assert words in text
    assert sum(" 04:00:00 UTC" in line for line in text.split("next due times:")[1].splitlines()) == 5
    found = entry("nightly")
    assert set(found) == BRIEF | {"fields", "task_id", "next", "last"}
    assert found["fields"]["schedule"] == {"crontab": "0 4 * * *"}
    assert found["fields"]["args"] == [1, 2]
    assert len(found["next"]) == 5
    assert found["last"] == []
    assert "error: entry 'bad'" in beat("show", "bad")
    assert entry("bad")["fields"] == {}


def test_show_lists_the_last_runs(tasks, project, beat, entry, leader):
    project(**{"tasks.py": TICKING})
    leader(find_app("tasks").app)
    until(lambda: len(entry("tasks.tick")["last"]) == 10)
    found = entry("tasks.tick")
    assert [set(each) for each in found["last"]] == [{"due", "at", "task_id", "outcome"}] * 10
    assert found["last"] == sorted(found["last"], key=lambda each: each["due"], reverse=True)
    assert found["runs"] >= 10
    text = beat("show", "tasks.tick")
    assert "last runs:\n  due 20" in text
    assert "source: task" in text


def test_custom_schedule_is_shown(tasks, project, beat, entry):
    project(
        **{
            "tasks.py": """
            from datetime import timedelta
            from qworker import QWorker

            class Odd:
                def next(self, after): return after + timedelta(hours=1)
                def previous(self, before): return before - timedelta(hours=1)
                def __repr__(self): return "oddly"

            app = QWorker("tasks", beat_schedule={"odd": {"task": "tasks.add", "schedule": Odd()}})
            """
        }
    )
    assert "oddly" in beat("list")
    assert entry("odd")["fields"]["schedule"] == {"other": "oddly"}
    assert "schedule:" in beat("show", "odd")
    beat("pause", "odd")
    assert entry("odd")["state"] == "paused"


@pytest.mark.parametrize("answer", ["1 / 0", "'soon'", "datetime(2030, 1, 1)"])
def test_failing_custom_schedule_does_not_affect_other_entries(
    tasks, project, beat, run, entry, leader, answer
):
    project(
        **{
            "tasks.py": f"""
            from datetime import datetime
            from qworker import QWorker

            class Odd:
                def next(self, after): return {answer}
                def previous(self, before): return {answer}
                def __repr__(self): return 1 / 0

            app = QWorker("tasks", beat_schedule={{
                "odd": {{"task": "tasks.tick", "schedule": Odd()}},
                "good": {{"task": "tasks.tick", "schedule": 0.1}},
            }})

            @app.task
            def tick(): ...
            """
        }
    )
    assert "wrong" in beat("list")
    assert "entry 'odd': its schedule " in entry("odd")["error"]
    assert "error: entry 'odd'" in beat("show", "odd")
    assert run("beat", "preview", "odd").exit_code == 1
    assert "entry 'odd': its schedule " in run("doctor").stdout
    assert "entry 'odd': its schedule " in run("config", "check").stdout
    service = leader(find_app("tasks").app)
    until(lambda: service.fired >= 2)
    assert service.alive


def test_unknown_entry_is_refused_with_a_suggestion(entries, run):
    for command in ("show", "pause", "resume", "reset", "remove", "run", "preview"):
        result = run("beat", command, "nihgtly")
        assert result.exit_code == 1
        assert "Error: there is no entry 'nihgtly'; did you mean 'nightly'?" in result.stderr
    assert run("beat", "set", "nihgtly", "--every", "5").exit_code == 1


# -- previews --


def test_preview_of_an_entry(entries, beat):
    lines = beat("preview", "nightly", "--count", "3", "--after", "2026-05-30T12:00").splitlines()
    assert lines == ["2026-05-31 04:00:00 UTC", "2026-06-01 04:00:00 UTC", "2026-06-02 04:00:00 UTC"]
    found = json.loads(beat("preview", "nightly", "-n", "1", "--after", "2026-05-30T12:00+02:00", "--json"))
    assert found == {"name": "nightly", "when": "at 04:00 every day", "next": ["2026-05-31T04:00:00+02:00"]}


def test_preview_counts_intervals_as_the_scheduler_does(entries, beat, entry, leader):
    leader(find_app("tasks").app)
    until(lambda: find_app("tasks").app.schedules.get("hourly").state)
    since = find_app("tasks").app.schedules.get("hourly").state.since
    first = datetime.fromisoformat(json.loads(beat("preview", "hourly", "-n", "1", "--json"))["next"][0])
    assert first.timestamp() == pytest.approx(since + 3600, abs=0.001)
    assert entry("hourly")["next_due"] == first.isoformat()


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (["--cron", "0 4 * * *", "--tz", "Europe/Berlin"], "2026-06-01T04:00:00+02:00"),
        (["--cron", "@daily"], "2026-06-01T00:00:00+00:00"),
        (["--every", "1h30m"], "2026-05-31T13:30:00+00:00"),
        (["--at", "2026-06-01T09:00", "--tz", "America/New_York"], "2026-06-01T13:00:00+00:00"),
        (["--rrule", "FREQ=DAILY;BYHOUR=7;BYMINUTE=0;BYSECOND=0"], "2026-06-01T07:00:00+00:00"),
    ],
)
def test_preview_of_a_schedule_given_by_options(tasks, beat, options, first):
    found = json.loads(beat("preview", *options, "--after", "2026-05-31T12:00:00Z", "--json"))
    assert found["next"][0] == first
    assert found["name"] is None


def test_preview_of_solar_events(tasks, beat):
    pytest.importorskip("ephem", reason="needs ephem: pip install 'qworker-queue[solar]'")
    found = json.loads(beat("preview", "--sun", "sunset,52,13", "--after", "2026-05-31T12:00Z", "--json"))
    days = [datetime.fromisoformat(each).day for each in found["next"]]
    assert days == [31, *range(1, 10)]


def test_preview_of_a_schedule_that_is_over(tasks, run):
    result = run("beat", "preview", "--at", "2020-01-01T00:00Z")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "It will not be due again." in result.stderr


# -- changing --


def test_add_show_and_remove(entries, beat, run, entry):
    said = beat("add", "report", "tasks.add", "--cron", "30 6 * * mon", "--tz", "Europe/Berlin",
                "-a", "[1, 2]", "--option", "queue=slow", "--option", "priority=3",
                "--start", "2026-01-01T00:00",
                "--end", "2099-01-01", "--max-runs", "5", "--expires", "1h", "--jitter", "10",
                "--catch-up", "3", "--overlap", "skip")  # fmt: skip
    assert said.startswith("Added report: tasks.add, at 06:30 on Monday (Europe/Berlin); next: ")
    fields = entry("report")["fields"]
    assert fields == {
        "task": "tasks.add",
        "schedule": {"crontab": "30 6 * * mon", "tz": "Europe/Berlin"},
        "args": [1, 2],
        "kwargs": {},
        "options": {"queue": "slow", "priority": 3},
        "start": "2025-12-31T23:00:00+00:00",
        "end": "2098-12-31T23:00:00+00:00",
        "max_runs": 5,
        "expires": 3600.0,
        "jitter": 10.0,
        "catch_up": 3,
        "overlap": "skip",
        "enabled": True,
    }
    assert entry("report")["source"] == "hand"
    again = run("beat", "add", "report", "tasks.add", "--every", "5")
    assert (again.exit_code, again.stdout) == (1, "")
    assert (
        "Error: the entry 'report' already exists: change it with `qworker beat set` or set()" in again.stderr
    )
    assert beat("remove", "report") == "Removed report.\n"
    assert run("beat", "show", "report").exit_code == 1


def test_add_prints_json(entries, beat):
    found = json.loads(beat("add", "x", "tasks.add", "--every", "90s", "-a", "[1,2]", "--disabled", "--json"))
    assert set(found) == BRIEF
    assert (found["state"], found["when"], found["next_due"]) == ("paused", "every 90 seconds", None)


def test_add_warns_of_unknown_tasks_and_wrong_arguments(entries, run):
    result = run("beat", "add", "x", "tasks.ad", "--every", "5")
    assert result.exit_code == 0
    assert "Warning: this app does not know the task 'tasks.ad'. Did you mean 'tasks.add'?" in result.stderr
    result = run("beat", "add", "y", "tasks.add", "--every", "5", "-k", '{"z": 1}')
    assert result.exit_code == 0
    assert "Warning: it cannot be called: " in result.stderr
    assert "Warning" not in run("beat", "add", "z", "tasks.add", "--every", "5", "-a", "[1, 2]").stderr


@pytest.mark.parametrize(
    "schedule",
    ["--at 2020-01-01", "--every 60 --start 2097-01-02 --end 2097-01-01", "--every 60 --end 2020-01-01"],
)
def test_add_and_set_warn_of_schedules_that_are_over(entries, run, schedule):
    warning = "Warning: it will never be due: its time has passed"
    assert warning in run("beat", "add", "x", "tasks.add", *schedule.split(), "-a", "[1, 2]").stderr
    assert warning in run("beat", "set", "hourly", *schedule.split()).stderr


def test_set_overrides_the_settings_until_reset(entries, beat, entry):
    assert beat("set", "hourly", "--every", "2h", "--option", "priority=5").startswith("Changed hourly: ")
    found = entry("hourly")
    assert found["changed"] == ["options", "schedule"]
    assert found["fields"]["options"] == {"queue": "slow", "priority": 5}
    text = beat("show", "hourly")
    assert "state: active, changed by hand" in text
    assert 'schedule: {"every": 7200.0}  (changed by hand)' in text
    assert "active, changed by hand" in beat("list")
    beat("set", "hourly", "--option", "queue=null", "--max-runs", "3", "--catch-up", "skip")
    assert entry("hourly")["fields"]["options"] == {"priority": 5}
    beat("set", "hourly", "--max-runs", "none", "--task", "tasks.add")
    assert entry("hourly")["fields"]["max_runs"] is None
    assert beat("reset", "hourly") == "Reset hourly to its definition in settings or code.\n"
    assert entry("hourly")["changed"] == []


def test_set_changes_only_the_time_zone(entries, beat, run, entry):
    beat("set", "nightly", "--tz", "Asia/Tokyo")
    assert entry("nightly")["fields"]["schedule"] == {"crontab": "0 4 * * *", "tz": "Asia/Tokyo"}
    result = run("beat", "set", "hourly", "--tz", "Asia/Tokyo")
    assert result.exit_code == 2
    assert "--tz needs --cron, --at, --rrule or --sun" in result.stderr


def test_pause_and_resume_of_several_entries(entries, beat, run, entry):
    assert beat("pause", "nightly", "hourly", "nightly") == "Paused nightly.\nPaused hourly.\n"
    assert [entry(name)["state"] for name in ("nightly", "hourly")] == ["paused", "paused"]
    assert entry("nightly")["next_due"] is None
    assert run("beat", "resume", "nightly", "nowhere").exit_code == 1
    assert entry("nightly")["state"] == "paused"  # nothing was done
    beat("resume", "nightly", "hourly")
    assert entry("nightly")["state"] == "active"


def test_remove_and_reset_of_an_entry_from_the_settings(entries, beat, run, entry):
    beat("remove", "nightly")
    assert entry("nightly")["state"] == "removed"
    assert "removed" in beat("list")
    result = run("beat", "pause", "nightly")
    assert result.exit_code == 1
    assert "has been removed" in result.stderr
    beat("reset", "nightly")
    assert entry("nightly")["state"] == "active"
    beat("add", "mine", "tasks.add", "--every", "5")
    result = run("beat", "reset", "mine")
    assert result.exit_code == 1
    assert "was added by hand" in result.stderr


def test_run_sends_the_task_now(entries, beat, run):
    result = run("beat", "run", "hourly", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["name"], found["task"]) == ("hourly", "tasks.add")
    assert "No worker consumes queue 'slow' now." in result.stderr
    assert {info.queue: info.ready for info in find_app("tasks").app.broker.admin.queues()} == {"slow": 1}
    assert len(beat("run", "nightly").strip()) == 36
    assert run("beat", "run", "bad").exit_code == 1
    beat("add", "misfit", "tasks.add", "--every", "5")
    misfit = run("beat", "run", "misfit")
    assert misfit.exit_code == 1
    assert misfit.stderr.splitlines()[-1].startswith("Error: ")


def test_changes_need_a_shared_store(entries, run, monkeypatch):
    monkeypatch.setenv("QWORKER_BEAT_STORE", "memory://")
    result = run("beat", "pause", "nightly")
    assert result.exit_code == 1
    assert "Error: there is no schedule store" in result.stderr
    assert "There is no shared schedule store" in run("beat", "list").stderr
    assert json.loads(run("beat", "list", "--json").stdout)["shared"] is False


# -- errors --


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["add", "x", "tasks.add"], 2, "Give a schedule: --every"),
        (["add", "x", "tasks.add", "--every", "5", "--cron", "@daily"], 2, ", not both."),
        (["add", "x", "tasks.add", "--every", "soon"], 2, "'soon'"),
        (["add", "x", "tasks.add", "--every", "0"], 1, "is not an interval"),
        (["add", "x", "tasks.add", "--every", "9" * 300], 2, "must be a duration"),
        (["add", "x", "tasks.add", "--every", "1e300"], 1, "an interval of 1e+300 seconds is too long"),
        (["add", "x", "tasks.add", "--every", "999999w"], 1, "is not an interval"),
        (["add", "x", "tasks.add", "--every", "5", "--tz", "UTC"], 2, "--tz cannot be used with --every"),
        (["add", "x", "tasks.add", "--cron", "61 * * * *"], 1, "61"),
        (["add", "x", "tasks.add", "--cron", "0 0 30 2 *"], 1, "never matches"),
        (["add", "x", "tasks.add", "--cron", "@daily", "--tz", "Mars/Olympus"], 1, "is not a time zone"),
        (["add", "x", "tasks.add", "--cron", "@daily", "--tz", "../../etc/passwd"], 1, "is not a time zone"),
        (["add", "x", "tasks.add", "--cron", "@daily", "--tz", ""], 1, "is not a time zone"),
        (["add", "x", "tasks.add", "--at", "tomorrow"], 2, "'tomorrow' is not a time"),
        (["add", "x", "tasks.add", "--every", "5", "--start", "0001-01-01T00:00+14:00"], 2, "is not a time"),
        (["preview", "--rrule", "FREQ=DAILY", "--after", "9999-12-31T23:59"], 2, "is not a time"),
        (["add", "x", "tasks.add", "--at", "2027-01-01", "--tz", "x\0y"], 1, "is not a time zone"),
        (["add", "x", "tasks.add", "--rrule", "FREQ=NEVER"], 1, "is not an RFC 5545 rule"),
        (["add", "x", "tasks.add", "--rrule", "FREQ=DAILY;" * 1000], 1, "too long"),
        (["add", "x", "tasks.add", "--sun", "noon"], 2, "is not an event and place"),
        (["add", "x", "tasks.add", "--sun", "sunset,nan,nan"], 1, "is not a place"),
        (["add", "x", "tasks.add", "--sun", "lunch,1,2"], 1, "is not a solar event"),
        (["add", "x", "tasks.add", "--every", "5", "--args", "[1"], 2, "this is not JSON"),
        (["add", "x", "tasks.add", "--every", "5", "--args", "[" * 100_000], 2, "this is not JSON"),
        (["add", "x", "tasks.add", "--every", "5", "--args", "{}"], 2, "write it as '[2, 3]'"),
        (["add", "x", "tasks.add", "--every", "5", "--args", "[NaN]"], 2, "it has no NaN"),
        (["add", "x", "tasks.add", "--every", "5", "--args", json.dumps(["x" * 2**20])], 1, "too large"),
        (["add", "x", "tasks.add", "--every", "5", "--option", "queue"], 2, "is not an option of a call"),
        (["add", "x", "tasks.add", "--every", "5", "--option", "qeueu=x"], 1, "Did you mean queue?"),
        (["add", "x", "tasks.add", "--every", "5", "--max-runs", "0"], 2, "--max-runs"),
        (["add", "x", "tasks.add", "--every", "5", "--catch-up", "5000"], 1, "catch_up=5000"),
        (["add", "x", "tasks.add", "--every", "5", "--overlap", "maybe"], 2, "--overlap"),
        (["add", "x", "tasks.add", "--every", "5", "--start", "never"], 2, "is not a time"),
        (["add", "x", "tasks.add", "--every", "5", "--jitter", "1e400"], 2, "--jitter"),
        (["add", "", "tasks.add", "--every", "5"], 2, "is not a valid entry name"),
        (["add", "x" * 256, "tasks.add", "--every", "5"], 2, "is not a valid entry name"),
        (["add", "\x1b[2J", "tasks.add", "--every", "5"], 1, "cannot be printed"),
        (["add", "\udcff", "tasks.add", "--every", "5"], 2, "is not UTF-8 text"),
        (["add", " x", "tasks.add", "--every", "5"], 1, "without spaces"),
        (["add", "x", "", "--every", "5"], 1, "task=''"),
        (["show", "a\0b"], 2, "is not a valid entry name"),
        (["show", "\x1b[2J\n"], 1, "there is no entry '\\x1b[2J\\n'"),
        (["set", "nightly"], 2, "Say what to change"),
        (["set", "nightly", "--every", "5", "--at", "2027-01-01"], 2, ", not both."),
        (["set", "bad", "--every", "5"], 1, "is not a crontab"),
        (["preview"], 2, "Name an entry, or give a schedule"),
        (["preview", "nightly", "--every", "5"], 2, "not both"),
        (["preview", "nightly", "--count", "0"], 2, "--count"),
        (["preview", "nightly", "--count", "100000"], 2, "--count"),
        (["preview", "bad"], 1, "is not a crontab"),
        (["pause"], 2, "Missing argument"),
        (["lst"], 2, "Did you mean 'list'?"),
        (["--pidfile", "x", "list"], 2, "--pidfile cannot be used with 'list'"),
        (["-l", "loud"], 2, "--loglevel"),
    ],
)
def test_usage_errors_are_one_line(entries, run, arguments, code, words):
    result = run("beat", *arguments)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.output
    assert result.stdout == ""


def test_lone_surrogates_are_printed_as_escapes(entries, beat, run):
    beat("add", "odd", "t\udcff", "--every", "5", "-a", '["\\ud800", "\\u001b[2J"]')
    for arguments in (["list"], ["list", "--json"], ["show", "odd"], ["show", "odd", "--json"]):
        text = beat(*arguments)
        assert "udcff" in text
        assert "\x1b" not in text


def test_damaged_stored_entries_are_shown_as_wrong(entries, beat, entry):
    store = find_app("tasks").app.schedules.store
    for name, edit in (("a\x1b[2J", b"{"), ("list", b"[]"), ("deep", b"[" * 100_000),
                       ("odd", b'{"fields": {"schedule": {"crontab": 5}, "task": 7}}')):  # fmt: skip
        assert store.edit(name, edit, 0)
    found = {each["name"]: each for each in json.loads(beat("list", "--json"))["entries"]}
    assert {found[name]["state"] for name in ("a\x1b[2J", "list", "deep", "odd")} == {"wrong"}
    assert "\x1b" not in beat("list")
    assert entry("odd")["error"]
    assert beat("remove", "a\x1b[2J") == "Removed a\\x1b[2J.\n"


@pytest.mark.parametrize("names", BEAT_OPTIONS)
def test_unsupported_celery_options_are_refused(run, names):
    for name in names.split("/"):
        result = run("beat", name, "x")
        assert result.exit_code == 2
        assert f"There is no {names} in qworker: {BEAT_OPTIONS[names]}." in result.stderr


@pytest.mark.parametrize("name", BEAT_OPTIONS_WITHOUT_EFFECT)
def test_celery_options_without_effect_are_accepted(run, tasks, name):
    assert "there is no module 'nowhere_at_all'" in run("beat", name, "5", "-A", "nowhere_at_all").stderr


# -- the process --


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_scheduler_sends_due_tasks_and_stops_on_a_signal(tasks, project, start, run, number):
    project(**{"tasks.py": TICKING})
    process = start("-A", "tasks")
    process.says("1 entry in settings and code; schedules are kept in sqlite:///")
    process.says("is now the leader of the schedulers")
    process.says("sending due task tasks.tick", 2)
    assert process.stop(number) == 0
    process.says("stopped: ")
    assert "Traceback" not in "\n".join(process.lines)
    assert "No scheduler is running" in run("beat", "list").stderr
    assert json.loads(run("beat", "show", "tasks.tick", "--json").stdout)["runs"] >= 2


@pytest.mark.parametrize("by_hand", [False, True])
def test_missing_entries_are_logged_unless_some_were_added_by_hand(tasks, start, run, by_hand):
    if by_hand:
        assert run("beat", "add", "by-hand", "tasks.add", "--every", "60", "-A", "tasks").exit_code == 0
    process = start("-A", "tasks")
    process.says("0 entries in settings and code")
    process.says("is now the leader of the schedulers")
    assert process.stop() == 0
    assert ("there are no entries" in "\n".join(process.lines)) is not by_hand


def test_log_file_json_and_pid_file(entries, start, shell):
    process = start("-A", "tasks", "-f", "%n.log", "--log-json", "--pidfile", "%n.pid", "--max-interval", "5")
    log, pid = Path("beat.log"), Path("beat.pid")
    until(lambda: log.exists() and "beat-leads" in log.read_text())
    assert pid.read_text() == f"{process.process.pid}\n"
    twin = shell("beat", "-A", "tasks", "--pidfile", str(pid))
    assert twin.returncode == 1
    assert f"the scheduler with process id {process.process.pid} is running" in twin.stderr
    assert process.stop() == 0
    events = [json.loads(line).get("event") for line in log.read_text().splitlines()]
    assert "beat-begins" in events
    assert events[-1] == "beat-stopped"
    assert not pid.exists()


def test_unshared_store_logs_a_warning(entries, start):
    process = start("-A", "tasks", QWORKER_BEAT_STORE="memory://")
    assert "WARNING" in process.says("the schedule store is not shared")
    process.says("is now the leader of the schedulers")
    assert process.stop() == 0


def test_passwords_are_masked(entries, start):
    process = start("-A", "tasks", QWORKER_BEAT_STORE="redis://:secret@127.0.0.1:1/0")
    process.says("the schedules are waiting")
    assert process.stop() == 0
    assert "secret" not in "\n".join(process.lines)


def test_startup_errors_are_one_line(entries, shell):
    for environment, words in (
        ({"QWORKER_BEAT_STORE": "mongodb://x"}, "mongodb:// cannot store schedules"),
        ({"QWORKER_TASK_TIME_LIMIT": "x"}, "task_time_limit"),
    ):
        done = shell("beat", "-A", "tasks", env=environment)
        assert done.returncode == 1
        assert words in done.stderr
        assert "Traceback" not in done.stderr


CRASHING = """

    def crash(sender, **more):
        raise RuntimeError("out of luck")

    def step(self, now):
        crash(self)

    from qworker.beat.service import Beat
    Beat.step = step
"""
HANGING = """

    import threading
    def step(self, now):
        print("hangs now")
        threading.Event().wait()

    from qworker.beat.service import Beat
    Beat.step = step
"""


def test_failing_scheduler_ends_the_process(entries, project, start):
    project(**{"tasks.py": TASKS + CRASHING})
    process = start("-A", "tasks")
    assert process.ended() == 1
    process.says("the scheduler failed: RuntimeError: out of luck")
    assert "Traceback" not in "\n".join(process.lines)


def test_second_signal_does_not_wait_for_a_hanging_scheduler(entries, project, start):
    project(**{"tasks.py": TASKS + HANGING})
    process = start("-A", "tasks", "-l", "debug")
    process.says("hangs now")
    process.process.send_signal(signal.SIGTERM)
    process.says("stopping")
    assert process.stop() == 0
    process.says("the scheduler did not stop in time")


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ('"schedule": "0 0 30 2 *"', 1),
        ('"schedule": 10, "start": "2040-01-01T00:00:00Z", "end": "2030-01-01T00:00:00Z"', 1),
        ('"schedule": Never()', 1),
        ('"schedule": 10, "end": "2020-01-01T00:00:00Z"', 0),
    ],
)
def test_entry_that_is_never_due_is_an_error(project, tasks, run, entry, code):
    project(
        **{
            "tasks.py": f"""
            from qworker import QWorker
            from qworker.beat import Schedule


            class Never(Schedule):
                tz = None

                def next(self, after): ...

                def previous(self, before): ...

                def _identity(self):
                    return ()


            app = QWorker("tasks", beat_schedule={{"odd": {{"task": "tasks.add", {entry}}}}})
            @app.task
            def add(): ...
            """
        }
    )
    checked = run("config", "check")
    assert checked.exit_code == code
    assert ("error: " in checked.stdout) == bool(code)
    assert run("doctor").exit_code == code


@pytest.mark.parametrize(
    ("entry", "severity", "words", "what"),
    [
        (
            '"task": "tasks.ad"',
            "warning",
            "unknown task",
            "calls 'tasks.ad', which is not a task of this app",
        ),
        (
            '"task": "tasks.add", "args": [1]',
            "error",
            "cannot be called",
            "cannot be called: add() missing 1 required positional argument: 'y'",
        ),
        (
            '"task": "tasks.add", "args": [1, 2], "options": {"quue": "x"}',
            "error",
            "cannot be called",
            "cannot be called: calling tasks.add: there is no option 'quue'. Did you mean queue?",
        ),
        ('"task": "tasks.loose", "args": [1]', None, "", ""),
    ],
)
def test_problems_of_an_entry_are_shown(project, tasks, run, entry, severity, words, what):
    project(
        **{
            "tasks.py": f"""
            from qworker import QWorker
            app = QWorker("tasks", beat_schedule={{"each": {{{entry}, "schedule": 10}}}})
            @app.task
            def add(x, y): ...
            @app.task(typing=False)
            def loose(x, y): ...
            """
        }
    )
    listed = run("beat", "list")
    assert f"  active{', ' * bool(words)}{words}  settings" in listed.stdout
    assert ("Details of problems: qworker beat show NAME" in listed.stderr) == bool(words)
    found = json.loads(run("beat", "show", "each", "--json").stdout)["problems"]
    assert [(each["severity"], each["words"], each["what"]) for each in found] == (
        [(severity, words, what)] if severity else []
    )
    assert (f"\n{severity}: it {what}\n" in run("beat", "show", "each").stdout) == bool(words)
    checked = run("config", "check")
    assert (f"{severity}: the entry 'each' {what}" in checked.stdout) == bool(words)
    assert checked.exit_code == bool(words)


@pytest.mark.parametrize(
    ("overlap", "settings", "options", "why"),
    [
        ("skip", "", "", None),
        ("replace", "", "", None),
        ("allow", "backend='disabled://'", "ignore_result=True", None),
        ("skip", "", "ignore_result=True", "needs the results of 'tasks.add', which are not stored"),
        ("skip", "backend='disabled://'", "", "needs results, but they are not stored"),
        ("skip", "backend='rpc://'", "", "needs results that every scheduler can read"),
        (
            "replace",
            "broker='disque://127.0.0.1:1', backend='disabled://'",
            "",
            "which this broker does not support",
        ),
    ],
)
def test_overlap_without_the_needed_results_is_an_error(project, tasks, run, overlap, settings, options, why):
    project(
        **{
            "tasks.py": f"""
            from qworker import QWorker
            schedule = {{"each": {{"task": "tasks.add", "schedule": 10, "overlap": "{overlap}"}}}}
            app = QWorker("tasks", beat_schedule=schedule, {settings})
            @app.task({options})
            def add(): ...
            """
        }
    )
    checked = run("config", "check")
    said = [line for line in checked.stdout.splitlines() if "as with overlap='allow'" in line]
    assert len(said) == (why is not None)
    if why is not None:
        assert checked.exit_code == 1
        assert said[0].startswith("error: the entry 'each' ")
        assert why in said[0]
        assert "active, overlap ignored" in run("beat", "list").stdout
        printed = "error: it " + said[0].partition(" 'each' ")[2].partition(" (")[0]
        assert printed in run("beat", "show", "each").stdout


def test_changes_made_before_the_security_key_are_shown_and_signed(entries, project, run, beat):
    beat("set", "nightly", "--args", "[3, 4]")
    beat("add", "mine", "tasks.add", "--every", "60", "--args", "[5, 6]")
    project(**{"keyed.py": TASKS.replace('QWorker("tasks"', 'QWorker("tasks", security_key="k" * 32')})

    def states():
        found = json.loads(run("beat", "list", "--json", "-A", "keyed").stdout)["entries"]
        return {each["name"]: each["state"] for each in found}

    assert states() == {"nightly": "wrong", "mine": "wrong", "hourly": "active", "bad": "wrong"}
    assert "qworker beat sign" in run("beat", "show", "mine", "-A", "keyed").stdout
    assert run("beat", "sign", "-A", "keyed").exit_code == 2
    asked = run("beat", "sign", "mine", "-A", "keyed")
    assert "--yes" in asked.stderr
    assert asked.stdout.startswith('mine: {"args": [5, 6],')
    assert states()["mine"] == "wrong"
    assert run("beat", "sign", "mine", "-y", "-A", "keyed").stdout.endswith("Signed mine.\n")
    text = run("beat", "sign", "--all", "-y", "-A", "keyed").stdout
    assert text.startswith('nightly: {"args": [3, 4],')
    assert text.endswith("Signed mine.\nSigned nightly.\n")
    assert states() == {"nightly": "active", "mine": "active", "hourly": "active", "bad": "wrong"}
    assert run("beat", "sign", "--all", "-A", "tasks").exit_code == 1, "without a key"
