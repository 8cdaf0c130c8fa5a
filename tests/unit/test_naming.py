"""Ids, task names, dotted paths, node names, queue names."""

from __future__ import annotations

import os
import sys
import types
import uuid
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import naming
from qworker.errors import ConfigurationError

HOST = naming.hostname()


def test_ids_are_version_4_uuids() -> None:
    made = {naming.task_id() for _ in range(2000)} | set(islice(naming.task_ids(), 2000))
    assert len(made) == 4000
    for text in made:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing to fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_children_make_different_ids() -> None:
    """Security checklist: processes reseed after a fork."""
    reader, writer = os.pipe()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            os.write(writer, "".join(naming.task_id() for _ in range(20)).encode())
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    os.close(writer)
    with open(reader, encoding="ascii") as pipe:
        text = pipe.read()
    ids = {text[start : start + 36] for start in range(0, len(text), 36)}
    assert len(ids) == 80


def test_task_name_is_module_and_function() -> None:
    def add() -> None: ...

    add.__module__ = "proj.tasks"
    assert naming.task_name(add.__name__, add.__module__) == "proj.tasks.add"
    assert naming.task_name(add.__name__, add.__module__, main="other") == "proj.tasks.add"


@pytest.mark.parametrize(
    ("attributes", "main", "expected"),
    [
        ({"__file__": "/srv/tasks.py"}, "proj", "proj.add"),
        ({"__file__": "/srv/tasks.py"}, None, "tasks.add"),
        ({"__spec__": types.SimpleNamespace(name="proj.tasks")}, None, "proj.tasks.add"),
        ({"__spec__": types.SimpleNamespace(name="proj.__main__")}, None, "proj.add"),
        ({}, None, "__main__.add"),
    ],
)
def test_task_of_a_script_is_named_as_workers_import_it(
    attributes: dict[str, object], main: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add() -> None: ...

    script = types.ModuleType("__main__")
    vars(script).update({"__spec__": None, **attributes})
    monkeypatch.setitem(sys.modules, "__main__", script)
    add.__module__ = "__main__"
    assert naming.task_name(add.__name__, add.__module__, main) == expected


@pytest.mark.parametrize("path", ["os.path:join", "os.path.join"])
def test_import_paths_take_a_colon_or_a_dot(path: str) -> None:
    assert naming.import_object(path) is os.path.join


def test_modules_and_nested_attributes_are_imported() -> None:
    assert naming.import_object("os.path") is os.path
    assert naming.import_object("collections:abc.Mapping.get") is __import__("collections").abc.Mapping.get


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nonexistent_module_x", "no module named 'nonexistent_module_x'"),
        ("nonexistent_module_x:app", "no module named 'nonexistent_module_x'"),
        ("os.nothing_here:x", "no module named 'os.nothing_here'"),
        ("os:getpidd", "os has no 'getpidd' .* did you mean 'getpid'"),
        ("os.path.joinn", "has no 'joinn'"),
        ("", "not a Python path"),
        ("os:", "not a Python path"),
        ("a b", "not a Python path"),
        ("../etc/passwd", "not a Python path"),
        (".relative", "not a Python path"),
    ],
)
def test_invalid_import_paths_are_rejected(path: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        naming.import_object(path)


def test_errors_raised_by_an_imported_module_propagate(project: Callable[..., Path]) -> None:
    project(**{"needs_more.py": "import surely_not_installed", "broken_at_once.py": "1 / 0"})
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        naming.import_object("needs_more:app")
    with pytest.raises(ZeroDivisionError):
        naming.import_object("broken_at_once.app")


@pytest.mark.parametrize(
    ("template", "index", "expected"),
    [
        (None, 0, f"qworker@{HOST}"),
        ("w1", 0, f"w1@{HOST}"),
        ("w1@%h", 0, f"w1@{HOST}"),
        ("w1@%n", 0, f"w1@{HOST.partition('.')[0]}"),
        ("w%i@box", 3, "w3@box"),
        ("w%I@box", 0, "w@box"),
        ("w%I@box", 2, "w-2@box"),
        ("100%%@box", 0, "100%@box"),
        ("50%%i@box", 7, "50%i@box"),
        ("a%%%i@box", 7, "a%7@box"),
    ],
)
def test_node_name_templates(template: str | None, index: int, expected: str) -> None:
    assert naming.node_name(template, index) == expected


@pytest.mark.parametrize("template", ["a b", "a@b@c", "w/1@box", "w\n@box", "@box", "w1@", "x" * 300])
def test_invalid_node_names_are_rejected(template: str) -> None:
    with pytest.raises(ConfigurationError, match="not a node name"):
        naming.node_name(template)


def test_close_matches() -> None:
    assert naming.close_matches("broker_ulr", ["broker_url", "timezone"]) == ["broker_url"]
    assert naming.close_matches("zzz", ["broker_url"]) == []
    assert naming.close_matches("same", ["same"]) == []


@pytest.mark.parametrize(
    "name", ["celery", "a", "video.high-priority_2", "a:b/c", "größe", "q" * 255, "user@box.dq"]
)
def test_valid_queue_names(name: str) -> None:
    assert naming.valid_queue_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a\n", "a\r\nDEL x", "a\x00", "x'; DROP TABLE", 'q"', "*", "a?", "a[1]", "{a}", "q" * 256,
     "é" * 200, "\ud800", "a\u202eb", None, 7, b"celery"],
)  # fmt: skip
def test_invalid_queue_names(name: object) -> None:
    assert not naming.valid_queue_name(name)


@given(st.text())
def test_name_validation_accepts_any_text(text: str) -> None:
    if naming.valid_queue_name(text):
        assert text.isprintable()
        assert not text.isspace()
    if naming.valid_node_name(text):
        assert text.count("@") == 1
