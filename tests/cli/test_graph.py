"""qworker graph: how workflows are drawn, output formats, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qworker.cli.discovery import find_app
from qworker.cli.graph import plain
from qworker.message.exceptions import exception_to_dict
from qworker.results import outline
from tests.support.waiting import until


@pytest.fixture
def work(tasks: Path, succeed):
    """A chord of which 15 of 20 members have run, 14 successfully."""
    app = find_app("tasks").app
    members = [f"m{number}" for number in range(20)]
    line = [["g", None, [[[each, "tasks.add"]] for each in members]], ["body", "tasks.fail"]]
    outline.keep(app.backend, line, None)
    for place, each in enumerate(members):
        if place == 15:
            succeed(each, status="FAILURE", result=exception_to_dict(ValueError("no")), group_id="g")
        elif place < 14:
            succeed(each, status="SUCCESS", result=1, group_id="g")
    return app


def test_whole_workflow_is_drawn(work, run):
    result = run("graph", "body")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "group  g  FAILURE  15 of 20 ended"
    assert lines[1] == "├─ tasks.add  m0  SUCCESS"
    assert lines[10] == "├─ tasks.add  m15  FAILURE"
    assert lines[11] == "└─ … 10 more: 5 PENDING, 5 SUCCESS"
    assert lines[12:] == [
        "↓ tasks.fail  body  PENDING  ←",
        "Not known: the calls made by a task are not known until it has ended.",
    ]
    assert len(run("graph", "--all", "body").stdout.splitlines()) == 23


def test_child_calls_are_drawn_below_their_caller(tasks, run, succeed):
    succeed("a", status="SUCCESS", result=1, children=[[["b", None], None], [["c", None], None]])
    succeed("b", status="SUCCESS", result=1, children=[[["d", None], None]])
    for each in "cd":
        succeed(each, status="SUCCESS", result=1)
    result = run("graph", "a")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "task  a  SUCCESS",
        "├─ task  b  SUCCESS",
        "│  ↓ task  d  SUCCESS",
        "└─ task  c  SUCCESS",
    ]


def test_json_lists_every_step(work, run):
    drawn = json.loads(run("graph", "--json", "m3").stdout)
    assert (drawn["id"], drawn["root"], drawn["counts"]) == (
        "m3", "g", {"SUCCESS": 14, "FAILURE": 1, "PENDING": 6},
    )  # fmt: skip
    steps = {step["id"]: step for step in drawn["steps"]}
    assert len(steps["g"]["calls"]) == 20
    assert steps["g"]["then"] == ["body"]
    assert steps["m15"] == {
        "id": "m15", "name": "tasks.add", "state": "FAILURE", "is_group": False, "calls": [], "then": [],
        "node": None, "after": [],
    }  # fmt: skip


def test_dot_output_quotes_names(work, run, succeed):
    lines = run("graph", "--dot", "g").stdout.splitlines()
    assert (lines[0], lines[-1]) == ("digraph workflow {", "}")
    assert '    "g" -> "m0" [style=dashed];' in lines
    assert '    "g" -> "body";' in lines
    assert '    "g more" [label="… 10 more: 5 PENDING, 5 SUCCESS", fillcolor=white];' in lines
    succeed('"\\', status="SUCCESS\n", result=1)
    quoted = run("graph", "--dot", '"\\').stdout
    assert '"\\"\\\\" [label="task\\n\\"\\\\\\nSUCCESS\\\\n", fillcolor=khaki];' in quoted


@pytest.fixture
def nodes(tasks: Path, succeed):
    """A graph of three nodes: the second is a chain that waits for the first, the third waits for both."""
    lines = [[["a", "tasks.add"]], [["b1", "tasks.add"], ["b2", "tasks.mul"]], [["c", "tasks.sum"]]]
    after = {"sales": [], "costs": ["sales"], "sum": ["sales", "costs"]}
    outline.keep(find_app("tasks").app.backend, [["g", None, lines, after], ["end", "qworker.graph"]], None)
    succeed("a", status="SUCCESS", result=1, group_id="g")


def test_graph_nodes_are_drawn_with_their_dependencies(nodes, run):
    assert run("graph", "end").stdout.splitlines()[:6] == [
        "graph  g  STARTED  1 of 3 ended",
        "├─ sales: tasks.add  a  SUCCESS",
        "├─ costs: tasks.add  b1  PENDING  after sales",
        "│  ↓ tasks.mul  b2  PENDING",
        "└─ sum: tasks.sum  c  PENDING  after sales, costs",
        "↓ qworker.graph  end  PENDING  ←",
    ]
    lines = run("graph", "--dot", "end").stdout.splitlines()
    assert {'    "a" -> "b1";', '    "a" -> "c";', '    "b2" -> "c";'} <= {*lines}
    assert '    "c" [label="sum: tasks.sum\\nc\\nPENDING", fillcolor=white];' in lines
    steps = {step["id"]: step for step in json.loads(run("graph", "--json", "end").stdout)["steps"]}
    assert (steps["c"]["node"], steps["c"]["after"]) == ("sum", ["a", "b1"])


@pytest.mark.parametrize(
    "after",
    [
        {"sales": [], "costs": ["sales"]},
        {"sales": [], "costs": ["nobody"], "sum": []},
        {"sales": 1, "costs": [], "sum": []},
        [1, 2, 3],
        {"sales": [], "costs": [], "sum": [["sales"]]},
    ],
)
def test_damaged_graph_outline_counts_as_unknown(tasks, run, after):
    lines = [[["a", "tasks.add"]], [["b", "tasks.add"]], [["c", "tasks.sum"]]]
    outline.keep(find_app("tasks").app.backend, [["g", None, lines, after]], None)
    assert run("graph", "g").exit_code == 3


def test_nodes_with_the_same_id_are_drawn_once(tasks, run):
    lines = [[["a", "tasks.add"]], [["a", "tasks.add"]]]
    outline.keep(find_app("tasks").app.backend, [["g", None, lines, {"x": [], "y": ["x", "y"]}]], None)
    assert run("graph", "g").stdout.splitlines()[1] == "└─ y: tasks.add  a  PENDING  after y, y"


def test_long_chain_is_drawn_completely(tasks, run, succeed):
    app = find_app("tasks").app
    outline.keep(app.backend, [[f"s{number}", "tasks.add"] for number in range(5000)], None)
    lines = run("graph", "s4999").stdout.splitlines()
    assert lines[4999] == "↓ tasks.add  s4999  PENDING  ←"
    json.loads(run("graph", "--json", "s4999").stdout)
    assert len(run("graph", "--dot", "s4999").stdout.splitlines()) == 2 + 5000 + 4999 + 1


def test_unknown_id_is_explained(existing_broker, run):
    result = run("graph", "nobody")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.splitlines()[-1] == (
        "Error: nothing is stored for 'nobody': it is waiting or running, its result was ignored or has "
        "expired, its message is a dead letter (see qworker dead list), or the id is wrong"
    )


def test_two_output_formats_are_refused(tasks, run):
    assert run("graph", "--dot", "--json", "a").exit_code == 2


@pytest.mark.parametrize("variable", ["", "sqlite:///elsewhere.db"])
def test_result_backend_can_be_given_as_an_option(
    existing_broker, run, shell, tmp_path, monkeypatch, variable
):
    from qworker import QWorker

    url = f"sqlite:///{tmp_path}/other.db"
    other = QWorker("other", backend=url, set_as_current=False)
    other.backend.store("a", other.backend.meta("a", "SUCCESS", 1))
    other.close()
    assert shell("graph", "a").returncode == 3
    if variable:
        monkeypatch.setenv("QWORKER_RESULT_BACKEND", variable)
    alone = run("graph", "-b", url, "a")
    assert (alone.exit_code, alone.stdout) == (0, "task  a  SUCCESS\n")
    assert run("graph", "-A", "tasks", "--result-backend", url, "a").exit_code == 0


@pytest.mark.parametrize("app", [(), ("-A", "tasks")])
def test_invalid_result_backend_option_is_named_in_the_error(tasks, run, app):
    result = run("graph", *app, "-b", "nonsense", "a")
    assert result.exit_code == 1
    assert "but is 'nonsense' (option -b)" in result.stderr


def test_disabled_result_backend_is_a_plain_error(tasks, run):
    result = run("graph", "-b", "disabled://", "a")
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr


def test_drawing_characters_have_an_ascii_form():
    assert plain("│  ├─ ↓ … ←└─") == "|  +- v ... <-`-"


# -- watching --


def test_watch_prints_each_change_until_the_workflow_ends(work, run, shell, succeed, tasks, environment):
    command = [sys.executable, "-m", "qworker", "graph", "--watch", "body"]
    with subprocess.Popen(command, env=environment, cwd=tasks, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "group  g  FAILURE  15 of 20 ended\n"
        for each in ["m14", "m16", "m17", "m18", "m19", "body"]:
            succeed(each, status="SUCCESS", result=1)
        rest = watching.stdout.read()
    assert watching.returncode == 1
    assert "group  g  FAILURE  20 of 20 ended\n" in rest
    assert "\x1b" not in rest


def test_watch_waits_for_a_workflow_that_is_not_stored_yet(tasks, succeed, environment):
    command = [sys.executable, "-m", "qworker", "graph", "--watch", "late"]
    with subprocess.Popen(command, env=environment, cwd=tasks, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "nothing is stored for 'late' yet\n"
        succeed("late", status="SUCCESS", result=1)
        assert watching.stdout.read() == "\ntask  late  SUCCESS\n"
    assert watching.returncode == 0


def test_watch_ends_on_interrupt(work, tasks, environment):
    command = [sys.executable, "-m", "qworker", "graph", "--watch", "body"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=tasks, **pipes) as watching:
        watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate()
    assert watching.returncode == 130
    assert errors.endswith("Interrupted.\n")
    assert "Traceback" not in errors


@pytest.mark.parametrize("colors", [True, False])
def test_watch_redraws_in_a_terminal_with_colors_unless_disabled(work, tasks, succeed, environment, colors):
    succeed("m14", status="SUCCESS", result=1)
    environment = {**environment, "PYTHONIOENCODING": "utf-8"} | ({} if colors else {"NO_COLOR": "1"})
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "qworker", "graph", "--watch", "body"]
    with subprocess.Popen(command, env=environment, cwd=tasks, stdout=theirs, stderr=subprocess.DEVNULL):
        os.close(theirs)
        seen = b""

        def read() -> bool:
            nonlocal seen
            seen += os.read(ours, 65536)
            return b"Not known" in seen

        until(read)
        for each in ["m16", "m17", "m18", "m19", "body"]:
            succeed(each, status="SUCCESS", result=1)
        try:
            while more := os.read(ours, 65536):
                seen += more
        except OSError:
            pass  # the end, on Linux
    os.close(ours)
    assert b"\x1b[14F\x1b[J" in seen
    assert (b"\x1b[31m" in seen) is colors
