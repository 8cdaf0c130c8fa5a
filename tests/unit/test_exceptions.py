"""Exceptions as data: in Celery's format, without importing modules or calling other classes."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import errors
from qworker.message.exceptions import MAX_ARGUMENT, exception_from_dict, exception_to_dict
from qworker.message.kombu_json import dumps, loads


class Outer:
    class Inner(Exception):
        pass


class Fussy(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


class CustomGroup(ExceptionGroup):
    """A group with the usual constructor."""


class OwnConstructorGroup(ExceptionGroup):
    """A group with its own constructor."""

    def __new__(cls, code: int) -> OwnConstructorGroup:
        return super().__new__(cls, f"code {code}", [ValueError(code)])


class Counting(Exception):
    made = 0

    def __init__(self, *args: Any) -> None:
        type(self).made += 1
        if args and args[0] == "explode":
            raise RuntimeError("constructor")
        if args and args[0] == "exit":
            sys.exit(1)
        super().__init__(*args)


def stored(name: str, module: str, *args: Any) -> dict[str, Any]:
    return {"exc_type": name, "exc_module": module, "exc_message": list(args)}


@pytest.mark.parametrize(
    "error",
    [ValueError("x", 1, None), KeyError("k"), ZeroDivisionError(), Outer.Inner("deep"),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
     OSError(2, "No such file"), errors.WorkerLost("gone"), errors.TaskRevoked("revoked"),
     errors.TaskExpired(),
     errors.TimeLimitExceeded(30), errors.SoftTimeLimitExceeded(), errors.NotRegistered("a.b"),
     errors.ChordError("x"),
     errors.MaxRetriesExceeded("m"), errors.Reject("why", True)],
)  # fmt: skip
def test_exception_round_trip(error: Exception) -> None:
    data = loads(dumps(exception_to_dict(error)))
    again = exception_from_dict(data)
    assert type(again) is type(error)
    assert (again.args, str(again)) == (error.args, str(error))


def test_format_and_names_are_those_of_celery() -> None:
    assert exception_to_dict(Outer.Inner("x")) == {
        "exc_type": "Outer.Inner",
        "exc_message": ["x"],
        "exc_module": __name__,
    }
    assert exception_to_dict(errors.WorkerLost("x"))["exc_type"] == "WorkerLostError"
    assert exception_to_dict(errors.TaskExpired()) == stored(
        "TaskRevokedError", "celery.exceptions", "expired"
    )


def test_unserialisable_or_huge_arguments_become_text() -> None:
    data = exception_to_dict(ValueError(object, {1}, "x" * 100_000, ["y" * 100_000], 10**5000))
    assert data["exc_message"][:2] == ["<class 'object'>", "{1}"]
    assert len(data["exc_message"][2]) == MAX_ARGUMENT
    assert all(len(json.dumps(value)) <= MAX_ARGUMENT + 10 for value in data["exc_message"])


def test_many_deep_or_raising_arguments_are_limited() -> None:
    class Broken(Exception):
        @property
        def args(self) -> Any:  # type: ignore[override]
            raise OSError("gone")

    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert len(exception_to_dict(Exception(*range(10_000)))["exc_message"]) == 100
    assert exception_to_dict(Exception(deep))["exc_message"] == ["[[[[[[[...]]]]]]]"]
    assert exception_to_dict(Broken())["exc_message"] == []


def test_exception_is_restored_without_its_constructor() -> None:
    again = exception_from_dict(exception_to_dict(Fussy(3, detail="d")))
    assert type(again) is Fussy
    assert str(again) == "3: d"
    for argument in ("explode", "exit"):
        assert type(exception_from_dict(stored("Counting", __name__, argument))) is Counting


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("system", "os"),
        ("eval", "builtins"),
        ("Popen", "subprocess"),
        ("Outer", __name__),
        ("Outer.Inner.__init__", __name__),
        ("exceptions.WorkerLostError", "billiard"),
        ("int", "builtins"),
        ("SystemExit", "builtins"),
        ("KeyboardInterrupt", "builtins"),
        ("BaseException", "builtins"),
        ("WorkerShutdown", "qworker.errors"),
        ("Anything", "antigravity"),
        ("", ""),
        ("a\x00b", "\ud800"),
        ("x" * 100_000, "y" * 100_000),
    ],
)
def test_cve_2021_23727_only_loaded_exception_classes_are_used(name: str, module: str) -> None:
    before = set(sys.modules)
    error = exception_from_dict(stored(name, module, "echo pwned"))
    assert isinstance(error, Exception)
    assert error.args == ("echo pwned",)
    assert set(sys.modules) == before


def test_missing_class_gets_a_substitute() -> None:
    error = exception_from_dict(stored("deep.PaymentError", "shop.errors", "card", 7))
    kind = type(error)
    assert (kind.__name__, kind.__module__, error.args) == ("PaymentError", "shop.errors", ("card", 7))
    with pytest.raises(kind):
        raise exception_from_dict(stored("deep.PaymentError", "shop.errors", "other"))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert exception_to_dict(again) == stored("deep.PaymentError", "shop.errors", "card", 7)


@pytest.mark.parametrize(
    "value", [None, "text", 7, [], {}, {"exc_type": 7, "exc_module": [], "exc_message": {}}]
)
def test_arbitrary_stored_value_becomes_an_exception(value: object) -> None:
    assert isinstance(exception_from_dict(value), Exception)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.fixed_dictionaries({}, optional={"exc_type": JSON, "exc_module": JSON, "exc_message": JSON}))
def test_reading_never_raises(value: dict[str, Any]) -> None:
    error = exception_from_dict(value)
    assert isinstance(error, Exception)
    assert exception_to_dict(error)["exc_type"].isprintable()


@given(st.lists(JSON, max_size=4))
def test_writing_never_raises_and_gives_json(args: list[Any]) -> None:
    assert isinstance(loads(dumps(exception_to_dict(Exception(*args)))), dict)


def shape(error: BaseException) -> Any:
    """Return the type, message, members and notes of an exception, for comparisons."""
    members = (
        [shape(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else error.args
    )
    message = error.message if isinstance(error, BaseExceptionGroup) else ""
    return type(error).__qualname__, message, members, getattr(error, "__notes__", [])


def round_trip(error: BaseException) -> BaseException:
    return exception_from_dict(loads(dumps(exception_to_dict(error))))


LEAVES = st.builds(ValueError, st.text(max_size=5)) | st.builds(KeyError, st.integers())
GROUPS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda kind, message, members: kind(message, members),
        st.sampled_from([ExceptionGroup, CustomGroup]),
        st.text(max_size=5),
        st.lists(inner, min_size=1, max_size=3),
    ),
)


@given(GROUPS, st.lists(st.text(max_size=5), max_size=2))
def test_round_trip_of_groups_and_notes(error: Exception, notes: list[str]) -> None:
    for note in notes:
        error.add_note(note)
    found = round_trip(error)
    assert shape(found) == shape(error)
    assert type(found) is type(error)
    assert shape(pickle.loads(pickle.dumps(found)))[:3] == shape(error)[:3]


def test_fields_of_a_group_that_celery_reads() -> None:
    error = ExceptionGroup("two", [ValueError("one"), KeyError("two")])
    data = exception_to_dict(error)
    assert {name: data[name] for name in data if name.startswith("exc_")} == {
        "exc_type": "ExceptionGroup",
        "exc_message": ["two", "[ValueError('one'), KeyError('two')]"],
        "exc_module": "builtins",
    }
    assert exception_to_dict(ValueError(1)).keys() == {"exc_type", "exc_message", "exc_module"}


def test_restored_group_is_caught_by_except_star() -> None:
    caught: list[Any] = []
    try:
        raise round_trip(ExceptionGroup("two", [ValueError("one"), KeyError("two")]))
    except* ValueError as group:
        caught += group.exceptions
    except* KeyError as group:
        caught += group.exceptions
    assert list(map(repr, caught)) == ["ValueError('one')", "KeyError('two')"]


def test_unrestorable_members_and_groups_are_substituted() -> None:
    class Local(ExceptionGroup):
        pass

    class Unserialisable(Exception):
        def __init__(self, socket: object, *, more: int) -> None:
            super().__init__(socket)

    found = round_trip(
        Local("all", [Unserialisable(object(), more=1), OwnConstructorGroup(5), Local("", [ValueError()])])
    )
    assert isinstance(found, ExceptionGroup)
    assert type(found).__name__ == "Local"
    unserialisable, others, inner = found.exceptions
    assert type(unserialisable).__name__ == "Unserialisable"
    assert "<object object at" in unserialisable.args[0]
    assert (others.message, repr(others.exceptions)) == ("code 5", "(ValueError(5),)")
    assert isinstance(inner, ExceptionGroup)
    assert shape(pickle.loads(pickle.dumps(found))) == shape(found)
    base = round_trip(BaseExceptionGroup("base", [KeyboardInterrupt(), ValueError(1)]))
    assert isinstance(base, ExceptionGroup), "members that would end a process become ordinary exceptions"
    assert [type(each).__name__ for each in base.exceptions] == ["KeyboardInterrupt", "ValueError"]


def test_depth_and_width_of_a_group_are_limited() -> None:
    deep: Exception = ValueError("at the bottom")
    for _ in range(300):
        deep = ExceptionGroup("level", [deep])
    assert isinstance(round_trip(deep), ExceptionGroup)
    wide = round_trip(ExceptionGroup("wide", [ValueError(number) for number in range(250)]))
    assert isinstance(wide, ExceptionGroup)
    assert len(wide.exceptions) == 101
    assert str(wide.exceptions[-1]) == "150 more of the group are not kept"


@pytest.mark.parametrize(
    "group",
    [
        None,
        [],
        5,
        {},
        {"exceptions": None},
        {"exceptions": []},
        {"exceptions": [5, None, {}], "message": [1]},
    ],
)
def test_arbitrary_stored_group_becomes_an_exception(group: Any) -> None:
    stored = {"exc_type": "ExceptionGroup", "exc_message": ["x"], "exc_module": "builtins"}
    assert isinstance(
        exception_from_dict({**stored, "qworker_group": group, "qworker_notes": group}), Exception
    )


def test_total_size_of_a_nested_group_is_limited() -> None:
    group: Exception = ValueError("one that stands at many places")
    for _ in range(18):
        group = ExceptionGroup("twice", [group, group])
    assert len(repr(exception_to_dict(group))) < 100_000


class RaisingAttributes(ExceptionGroup[Exception]):
    """Raises KeyError when the attribute *missing* is read."""

    def __new__(cls, missing: str) -> RaisingAttributes:
        made = super().__new__(cls, "group", [ValueError("member")])
        made.missing = missing
        return made

    def __init__(self, missing: str) -> None:
        self.missing: str

    def __getattribute__(self, name: str) -> Any:
        if name == super().__getattribute__("__dict__").get("missing"):
            raise KeyError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("missing", ["args", "message", "exceptions", "__notes__"])
def test_exception_whose_attributes_raise_is_stored_by_name(missing: str) -> None:
    assert exception_to_dict(RaisingAttributes(missing))["exc_type"] == "RaisingAttributes"
