"""Pickles stored by older Celery versions: plain data is read, all else is rejected before it can run."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import tracemalloc
from base64 import b64decode
from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.backends import open_backend
from qworker.backends.sql import backend
from qworker.backends.sql.backend import is_pickle, load_plain
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BackendError
from qworker.message import plain_pickle
from qworker.message.plain_pickle import RefusedPickle

PLAIN = [
    None, True, 5, 2.5, "text", b"bytes", [1, [2]], (1, 2), {"a": {"b": 1}}, {1, 2}, frozenset({3}), 1j,
    datetime(2030, 1, 2, 3, tzinfo=UTC), date(2030, 1, 2), time(3, 4), timedelta(days=1), Decimal("1.5"),
    UUID(int=5), [UUID(int=6)] * 2, {(1, (2, "x")): 1}, bytearray(b"xy" * 9), bytearray(), b"", set(),
    time(3, 4, tzinfo=UTC), timezone(timedelta(hours=2), "here"), Decimal("-Infinity"),
    {"exc_type": "KeyError", "exc_message": ["no"], "exc_module": "builtins"}, OrderedDict(a=1),
]  # fmt: skip


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [2, 4, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_is_loaded(value: Any, protocol: int) -> None:
    payload = pickle.dumps(value, protocol)
    assert is_pickle(payload)
    assert load_plain(payload, "here") == value


@pytest.mark.parametrize(
    "value", [KeyError("no"), Path("/x"), print, Trap(Path("/x"))], ids=lambda value: type(value).__name__
)
def test_other_objects_are_rejected(value: Any) -> None:
    with pytest.raises(BackendError, match=r"here was pickled by Celery 5\.6 or before.*it names"):
        load_plain(pickle.dumps(value), "here")


def test_pickles_cannot_execute_code(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    with pytest.raises(BackendError):
        load_plain(pickle.dumps([1, Trap(trap)]), "here")
    assert not trap.exists()


def _global(name: bytes) -> bytes:
    return b"c%b\n%b\n" % tuple(name.rsplit(b".", 1))


def _long(number: int) -> bytes:
    data = pickle.encode_long(number)
    return b"\x8b" + struct.pack("<i", len(data)) + data


TEXT = b"X" + struct.pack("<I", 9000) + b"x" * 9000
MUCH_MEMORY = {
    "a memo of 3 GB": b"Nr" + struct.pack("<I", 200_000_000) + b".",
    "a bytearray of a size": _global(b"builtins.bytearray") + b"J\x00\xca\x9a\x3b\x85R.",
    "a frame": b"\x95" + struct.pack("<Q", 2**40) + b"N.",
    "bytes": b"\x8e" + struct.pack("<Q", 2**40) + b"N.",
    "a bytearray": b"\x96" + struct.pack("<Q", 2**40) + b"N.",
    "copies": b"]q\x00(" + b"B" + struct.pack("<I", 9000) + b"x" * 9000 + b"q\x01"
    + (_global(b"builtins.bytearray") + b"h\x01\x85R") * 9000 + b"e.",
    "copies as sets": b"]q\x00((" + b"".join(struct.pack("<cH", b"M", n) for n in range(2000)) + b"lq\x01"
    + (_global(b"builtins.set") + b"h\x01\x85R") * 2000 + b"e.",
    "digits": _global(b"decimal.Decimal") + b"K\x00(" + b"K\x01" + b"2" * 9000 + b"tK\x00\x87\x85R.",
}  # fmt: skip
NESTED = b")" + b"2\x86" * 40
"""Tuples of which each contains the one before twice."""
EQUAL = b"".join(
    b")q%c" % n + b"".join(b"(h%cK\x00\x86h%cK\x01\x86\x91q%c0" % (n, n, n) for _ in range(40))
    for n in (0, 1)
)
"""Two frozensets that are equal in all depths."""
MUCH_TIME = {
    "set": b"\x8f(" + NESTED + b"\x90.",
    "frozenset": b"(" + NESTED + b"\x91.",
    "set of a list": _global(b"builtins.set") + b"](" + NESTED + b"e\x85R.",
    "OrderedDict": _global(b"collections.OrderedDict") + b"](" + NESTED + b"N\x86e\x85R.",
    "OrderedDict of lists": _global(b"collections.OrderedDict") + b"](](" + NESTED + b"Nee\x85R.",
    "key": b"}" + NESTED + b"Ns.",
    "keys": b"}(N)" + NESTED + b"Nu.",
    "dict": b"(" + NESTED + b"Nd.",
    "large keys": b"\x8f((" + b"N" * 900 + b"t" + b"2" * 900 + b"\x90.",
    "long numbers": b"\x8f(" + _long(1 << 800_000) + b"2" * 100_000 + b"\x90.",
    "frozensets": EQUAL + b"\x8f(h\x00h\x01\x90.",
    "long arguments": _global(b"celery.backends.base.unpickle_backend")
    + b"q\x00(" + b"N" * 900 + b"tq\x01" + b"h\x00h\x01R0" * 900 + b"N.",
    "to print": NESTED + b".",
    "nested lists": b"]q\x00" + b"".join(b"(h%ch%clq%c" % (n, n, n + 1) for n in range(40)) + b".",
    "a list in itself": b"]2a.",
    "text": b"](" + TEXT + b"2" * 9000 + b"e.",
}  # fmt: skip
OTHER_CALLS = {
    "frozenset of a tuple": _global(b"builtins.frozenset") + NESTED + b"\x85\x85R.",
    "a UUID": _global(b"uuid.UUID") + b"N]" + NESTED + b"a\x86R.",
    "a tuple": NESTED + b")R.",
    "a decimal of a number": _global(b"decimal.Decimal") + _long(1 << 8_000) + b"\x85R.",
}


@pytest.mark.parametrize("code", MUCH_MEMORY.values(), ids=MUCH_MEMORY)
def test_pickles_cannot_take_much_memory(code: bytes) -> None:
    """Eight bytes took 3 GB and 16 s."""
    tracemalloc.start()
    with suppress(BackendError):
        load_plain(b"\x80\x04" + code, "here")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000 + 300 * len(code)


@pytest.mark.parametrize("code", MUCH_TIME.values(), ids=MUCH_TIME)
def test_pickles_cannot_take_much_time(code: bytes) -> None:
    """A hundred bytes took years to hash or to print."""
    with pytest.raises(RefusedPickle, match="repeats its parts too often"):
        plain_pickle.load_plain(b"\x80\x04" + code, backend._CLASSES, room=20_000)


def test_time_is_limited_by_default() -> None:
    with pytest.raises(BackendError, match="repeats its parts too often"):
        load_plain(b"\x80\x04" + MUCH_TIME["set"], "here")


@pytest.mark.parametrize("code", OTHER_CALLS.values(), ids=OTHER_CALLS)
def test_classes_are_only_called_as_by_pickle(code: bytes) -> None:
    before = set(sys.modules)
    with pytest.raises(BackendError, match=r"calls .*in an unsupported way"):
        load_plain(b"\x80\x04" + code, "here")
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (b"date", b"\x00\x00\x01\x00"),
        (b"datetime", b"\x07\xd0\x01\x01\xff" + b"\x00" * 5),
        (b"time", b"\x05\xff\x00\x00\x00\x00"),
    ],
)
def test_dates_with_invalid_fields_are_rejected(name: bytes, fields: bytes) -> None:
    """Formatting them ended the process."""
    with pytest.raises(BackendError, match=r"must be|out of range"):
        load_plain(
            b"\x80\x04" + _global(b"datetime." + name) + b"C%c" % len(fields) + fields + b"\x85R.", "here"
        )


def test_encodings_are_not_looked_up() -> None:
    before = set(sys.modules)
    code = _global(b"builtins.bytearray") + b"\x8c\x02\xc3\xa4\x8c\x08punycode\x86R."
    assert load_plain(b"\x80\x04" + code, "here") == bytearray(b"\xe4")
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "code",
    [
        b"F" + b"\x01" * 9000 + b"\n.",
        _global(b"celery.app.base._unpickle_appattr") + b")" + b"2\x86" * 22 + b")\x86R.",
    ],
)
def test_errors_are_short(code: bytes) -> None:
    with pytest.raises(BackendError) as caught:
        load_plain(b"\x80\x04" + code, "here")
    assert len(str(caught.value)) < 1000


def test_shared_parts_are_loaded() -> None:
    tags, row = ["a", "b", "c"] * 3, {"k": list(range(1000))}
    for value in (
        [(n, tags) for n in range(9000)],
        [row] * 2000,
        {tuple(range(5000)): 1},
        ["status"] * 99_999,
    ):
        assert load_plain(pickle.dumps(value), "here") == value


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        # The defaults of a function, and a method of a class.
        (_global(b"_codecs.encode") + b"N}\x8c\x0c__defaults__)s\x86b.", "UUID"),
        (_global(b"uuid.UUID") + b"N}\x8c\x07__str__Ns\x86b.", "UUID"),
        (_global(b"builtins.set") + b")\x81.", "UUID"),
        (_global(b"uuid.UUID") + b")\x81}\x8c\x03int]sb.", "list"),
        (_global(b"uuid.UUID") + b")\x81}\x8c\x03intK\x01sb}\x8c\x03intK\x02sb.", "not a new UUID"),
        (_global(b"uuid.UUID") + b")\x81}\x8c\x03int\x8a\x12" + b"\xff" * 17 + b"\x00sb.", "128"),
        (_global(b"builtins.set") + b".", "contains"),
        (b"]" + _global(b"_codecs.encode") + b"a.", "contains"),
    ],
)
def test_pickles_cannot_change_or_return_classes_and_functions(code: bytes, reason: str) -> None:
    with pytest.raises(BackendError, match=reason):
        load_plain(b"\x80\x04" + code, "here")
    assert load_plain(pickle.dumps([b"\xff", UUID(int=7)], 2), "here") == [b"\xff", UUID(int=7)]


@given(st.binary())
def test_arbitrary_bytes_raise_only_backend_errors(data: bytes) -> None:
    try:
        load_plain(b"\x80" + data, "here")
    except BackendError:
        pass


def test_rows_of_older_celery_versions_are_read(tmp_path: Path) -> None:
    backend = open_backend(f"db+sqlite:///{tmp_path}/r.db", Settings({}, environ={}), SYSTEM_CLOCK)
    backend.store("new", backend.meta("new", "SUCCESS", {"a": 1}))
    import sqlite3

    with sqlite3.connect(tmp_path / "r.db") as connection:
        insert = "INSERT INTO celery_taskmeta (task_id, status, result, children) VALUES (?, 'SUCCESS', ?, ?)"
        connection.execute(insert, ("old", pickle.dumps({"a": [1]}), pickle.dumps([[["c", None], None]])))
        connection.execute(insert, ("trap", pickle.dumps(Trap(tmp_path / "sprung")), None))
    connection.close()
    old = backend.get("old")
    assert old is not None
    assert (old["result"], old["children"]) == ({"a": [1]}, [[["c", None], None]])
    with pytest.raises(BackendError, match="system"):
        backend.get("trap")
    assert not (tmp_path / "sprung").exists()
    backend.close()


def test_table_without_newer_columns_is_used(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "r.db") as connection:
        connection.execute(
            "CREATE TABLE celery_taskmeta (id INTEGER PRIMARY KEY AUTOINCREMENT, task_id VARCHAR(155) "
            "UNIQUE, "
            "status VARCHAR(50), result BLOB, date_done DATETIME, traceback TEXT)"
        )
    connection.close()
    conf = Settings({"result_extended": True}, environ={})
    backend = open_backend(f"db+sqlite:///{tmp_path}/r.db", conf, SYSTEM_CLOCK)
    assert backend.store("x", backend.meta("x", "SUCCESS", 5, children=[[["c", None], None]]))
    meta = backend.get("x")
    assert meta is not None
    assert (meta["result"], meta["children"], "name" in meta) == (5, [], False)
    backend.close()


# Stored by Celery 5.6.3 for store_result("s", …, "STARTED"), mark_as_failure(…) and GroupResult("g",
# …).save().
RECORDED = {
    "gAWVHAAAAAAAAAB9lCiMA3BpZJRLAYwIaG9zdG5hbWWUjAFolHUu": {"pid": 1, "hostname": "h"},
    "gAWVSAAAAAAAAAB9lCiMCGV4Y190eXBllIwIS2V5RXJyb3KUjAtleGNfbWVzc2FnZZSMAm5vlIWUjApleGNfbW9kdWxllIwI"
    "YnVpbHRpbnOUdS4=": {
        "exc_type": "KeyError",
        "exc_message": ("no",),
        "exc_module": "builtins",
    },
    "gAWVXwEAAAAAAACMD2NlbGVyeS5hcHAuYmFzZZSMEV91bnBpY2tsZV9hcHBhdHRylJOUjAtHcm91cFJlc3VsdJSMAWeUXZQoaAKMC0FzeW5jUmVz"
    "dWx0lCiMAWGUjBRjZWxlcnkuYmFja2VuZHMuYmFzZZSMEHVucGlja2xlX2JhY2tlbmSUk5SMGGNlbGVyeS5iYWNrZW5kcy5kYXRhYmFzZZSMD0RhdGFi"
    "YXNlQmFja2VuZJSTlCl9lCiMBWRidXJplIwUc3FsaXRlOi8vL3Jlc3VsdHMuZGKUjAdleHBpcmVzlIwIZGF0ZXRpbWWUjAl0aW1lZGVsdGGUk5RLAUsA"
    "SwCHlFKUjA5lbmdpbmVfb3B0aW9uc5R9lCiMDXBvb2xfcHJlX3BpbmeUiIwMcG9vbF9yZWN5Y2xllE0QDnV1h5RSlE5OTnSUhpRSlGgCaAYojAFilGgc"
    "Tk5OdJSGlFKUZYaUhpRSlC4=": [["g", None], [[["a", None], None], [["b", None], None]]],
}


@pytest.mark.parametrize("payload", RECORDED, ids=["state", "failure", "group"])
def test_recorded_celery_pickles_are_read(payload: str) -> None:
    assert load_plain(b64decode(payload), "here") == RECORDED[payload]


def test_celery_objects_other_than_results_are_rejected() -> None:
    task = b"\x80\x02ccelery.app.base\n_unpickle_appattr\n(X\x04\x00\x00\x00Task)tR."
    with pytest.raises(BackendError, match="it holds a 'Task'"):
        load_plain(task, "here")
