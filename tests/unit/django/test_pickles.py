"""Pickles in the admin: nothing is imported or called, and no pickle can break a page."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import os
import pickle
import subprocess
import sys
import uuid
import zoneinfo
from typing import Any

import pytest
from django.contrib.auth.models import User
from picklefield.fields import dbsafe_encode, wrap_conflictual_object

from qworker.django.admin import pickles
from qworker.django.admin.pickles import Unreadable, read, read_column, shown

HERE = __name__


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Order:
    number: int
    customer: str = "Ada"


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right


class Calls:
    """Malicious: loading it with pickle calls a function."""

    def __init__(self, func: Any, *args: Any) -> None:
        self.call = func, args

    def __reduce__(self) -> Any:
        return self.call


def function() -> None:
    """A function to refer to."""


def look(value: Any, protocol: int = 5) -> str:
    return shown(read(pickle.dumps(value, protocol)), 10_000)


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        None, True, -3, 2.5, b"\x00a", (), (1,), (1, "two"), [1, [2]], {"a": {"b": None}},
        datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC), datetime.date(2024, 3, 1),
        datetime.timedelta(seconds=3), decimal.Decimal("24.50"), uuid.UUID(int=7),
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values_are_shown_like_repr(value: Any, protocol: int) -> None:
    assert look(value, protocol) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Color.RED, f"{HERE}.Color(1)"),
        (Order(3), f"{HERE}.Order(number=3, customer='Ada')"),
        ([Slotted(1, (2,))], f"[{HERE}.Slotted(left=1, right=(2,))]"),
        (function, f"{HERE}.function"),
        (ValueError("no"), "ValueError('no')"),
        (collections.OrderedDict(a=1), "collections.OrderedDict([('a', 1)])"),
        (collections.deque([1]), "collections.deque([1])"),
        ({1: {2}}, "{1: {2}}"),
        (
            datetime.datetime(2024, 3, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
            "datetime.datetime(2024, 3, 1, 0, 0, tzinfo=ZoneInfo('Europe/Berlin'))",
        ),
        (Calls(os.system, "true"), "posix.system('true')"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_instances_and_calls_are_shown_by_name(value: Any, text: str) -> None:
    assert look(value) == text


def test_model_instance_is_shown_by_its_key_only() -> None:
    assert look((User(pk=3, username="ann", password="hash"),)) == "(auth.User(id=3),)"


def test_secrets_are_masked() -> None:
    order = Order(3)
    order.password = "swordfish"  # type: ignore[attr-defined]
    assert "swordfish" not in look([order, {"api_key": "swordfish", "name": 1}])
    assert "'name': 1" in look({"api_key": "swordfish", "name": 1})


def test_column_is_read_with_and_without_its_wrapper() -> None:
    assert read_column(dbsafe_encode([1, 2])) == [1, 2]
    wrapped = read_column(dbsafe_encode(wrap_conflictual_object(User(pk=3, username="ann")), copy=False))
    assert shown(wrapped, 100) == "auth.User(id=3)"


def test_nothing_is_imported_or_called(tmp_path: Any) -> None:
    made = tmp_path / "made"
    text = look(Calls(os.mkdir, str(made)))
    assert str(made) in text
    assert not made.exists()
    gone = pickle.dumps(Order(3)).replace(b"Order", b"Older")
    assert shown(read(gone), 100).endswith(".Older(number=3, customer='Ada')")


def doubled(times: int, start: Any = ()) -> Any:
    """A value whose pickle is small, and whose text has 2 ** *times* parts."""
    value = start
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize("value", [doubled(60), doubled(60, Order(1)), Calls(dict, doubled(60))])
def test_exponentially_large_values_are_truncated(value: Any) -> None:
    text = shown(read(pickle.dumps(value)), 500)
    assert len(text) <= 500


def test_cycles_are_truncated() -> None:
    ring: list[Any] = []
    ring.append(ring)
    order = Order(1)
    order.customer = order  # type: ignore[assignment]
    assert "…" in look(ring)
    assert "…" in look(order)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x", b"garbage.", pickle.dumps([1])[:-1], b"\x80\x04P1\n.", b"r\xff\xff\xff\x7f.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", b"(" * 200_000 + b".",
        pickle.dumps(Calls(decimal.Decimal, "no number")),
    ],
)  # fmt: skip
def test_malformed_pickles_are_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        read(data)


def test_invalid_base64_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="base64"):
        read_column("no base64!")


def test_number_of_names_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\x80\x04(" + b"".join(b"cm\nn%d\n" % number for number in range(pickles.MOST_NAMES + 1)) + b"l."
    with pytest.raises(Unreadable, match="too many"):
        read(data)


def test_only_long_text_is_truncated() -> None:
    assert shown("x" * 100, 100) == "x" * 100
    assert shown("x" * 101, 100) == "x" * 99 + "…"
    assert look(10**5000).startswith("<int: ")


def test_long_values_are_spread_over_lines() -> None:
    rows = read(pickle.dumps([Order(number) for number in range(3)]))
    assert pickles.spread(rows, 1000).startswith(f"[{HERE}.Order(number=0, customer='Ada'),\n {HERE}.Order(")
    assert pickles.spread([1, 2], 1000) == "[1, 2]"
    assert len(pickles.spread([1] * 1000, 100)) == 100


def nested(depth: int, doubled: bool = False) -> bytes:
    """A deeply nested tuple as a key: hashing it takes an equally deep stack. doubled: each tuple holds the
    inner one twice."""
    step = b"\x94h\x00\x86" if doubled else b"\x85"
    if doubled:
        body = b")" + b"".join(b"\x94j" + number.to_bytes(4, "little") + b"\x86" for number in range(depth))
        return b"\x80\x05}" + body + b"K\x01s."
    return b"\x80\x05})" + step * depth + b"K\x01s."


@pytest.mark.parametrize("depth", [200, 200_000])
def test_deeply_nested_keys_are_rejected(depth: int) -> None:
    """In a separate process: without the check it dies by SIGSEGV."""
    script = """if True:
        import sys
        from django.conf import settings
        import django
        apps = ["contenttypes", "auth", "admin"]
        settings.configure(INSTALLED_APPS=["qworker.django", *("django.contrib." + app for app in apps)])
        django.setup()
        from qworker.django.admin.pickles import read
        read(sys.stdin.buffer.read())
    """
    done = subprocess.run([sys.executable, "-c", script], input=nested(depth), capture_output=True)
    assert (done.returncode, b"its keys are too large" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    "ending",
    [b"K\x01s.", b"(K\x01K\x02d.", b"\x8f(", b"(", b"u."],
)
def test_keys_of_all_opcodes_are_checked(ending: bytes) -> None:
    """SETITEM, DICT, ADDITEMS, FROZENSET and SETITEMS."""
    deep = b")" + b"\x85" * 200
    data = {
        b"K\x01s.": b"}" + deep + b"K\x01s.",
        b"(K\x01K\x02d.": b"(" + deep + b"K\x02d.",
        b"\x8f(": b"\x8f(" + deep + b"\x90.",
        b"(": b"(" + deep + b"\x91.",
        b"u.": b"}(" + deep + b"K\x01u.",
    }[ending]
    with pytest.raises(Unreadable, match="its keys are too large"):
        read(b"\x80\x05" + data)


def test_exponentially_large_keys_are_rejected_before_hashing() -> None:
    with pytest.raises(Unreadable, match="its keys are too large"):
        read(nested(64, doubled=True))


@pytest.mark.parametrize(
    "path",
    [
        "zoneinfo\nZoneInfo",
        "datetime\ndatetime",
        "_codecs\nencode",
        "builtins\ngetattr",
        "x\ny",
        "decimal\nDecimal",
    ],
)
@pytest.mark.parametrize(
    "state",
    [b"}\x8c\x08__repr__cx\ny\ns", b"N}\x8c\x08__repr__cx\ny\ns\x86", b"N}\x8c\x0c__defaults__)s\x86"],
)
def test_classes_and_functions_cannot_be_modified(path: str, state: bytes) -> None:
    good = pickle.dumps(datetime.datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), 5)
    before = shown(read(good), 200)
    assert "ZoneInfo('Europe/Berlin')" in before
    with pytest.raises(Unreadable, match="other than an instance"):
        read(b"\x80\x05c" + path.encode() + b"\n" + state + b"b.")
    assert shown(read(good), 200) == before


def test_uuid_is_read_from_an_integer_only() -> None:
    value = uuid.UUID(int=5)
    assert read(pickle.dumps(value)) == value
    with pytest.raises(Unreadable):
        read(b"\x80\x05cuuid\nUUID\n)\x81}\x8c\x03int" + b")" + b"\x85" * 200 + b"sb.")
