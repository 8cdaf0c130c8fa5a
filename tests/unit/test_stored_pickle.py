"""Pickles stored by older Celery versions: plain data is read, all else is rejected before it can run."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from base64 import b64decode
from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.backends import open_backend
from qworker.backends.sql.backend import is_pickle, load_plain
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BackendError

PLAIN = [
    None, True, 5, 2.5, "text", b"bytes", [1, [2]], (1, 2), {"a": {"b": 1}}, {1, 2}, frozenset({3}), 1j,
    datetime(2030, 1, 2, 3, tzinfo=UTC), date(2030, 1, 2), time(3, 4), timedelta(days=1), Decimal("1.5"),
    UUID(int=5), [UUID(int=6)] * 2, {(1, (2, "x")): 1}, bytearray(b"xy" * 9),
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
    return b"c" + name.replace(b".", b"\n") + b"\n"


MUCH_MEMORY = {
    "a memo of 3 GB": b"Nr" + struct.pack("<I", 200_000_000) + b".",
    "a bytearray of a size": _global(b"builtins.bytearray") + b"J\x00\xca\x9a\x3b\x85R.",
    "a frame": b"\x95" + struct.pack("<Q", 2**40) + b"N.",
    "bytes": b"\x8e" + struct.pack("<Q", 2**40) + b"N.",
    "a bytearray": b"\x96" + struct.pack("<Q", 2**40) + b"N.",
    "copies": b"]q\x00(" + b"B" + struct.pack("<I", 9000) + b"x" * 9000 + b"q\x01"
    + (_global(b"builtins.bytearray") + b"h\x01\x85R") * 1000 + b"e.",
    "copies as sets": b"]q\x00((" + b"".join(struct.pack("<cH", b"M", n) for n in range(9000)) + b"lq\x01"
    + (_global(b"builtins.set") + b"h\x01\x85R") * 1000 + b"e.",
}  # fmt: skip
NESTED = b")" + b"2\x86" * 40
"""Tuples of which each contains the one before twice."""
MUCH_TIME = {
    "set": b"\x8f(" + NESTED + b"\x90.",
    "frozenset": b"(" + NESTED + b"\x91.",
    "set of a list": _global(b"builtins.set") + b"](" + NESTED + b"e\x85R.",
    "frozenset of a tuple": _global(b"builtins.frozenset") + NESTED + b"\x85\x85R.",
    "OrderedDict": _global(b"collections.OrderedDict") + b"](" + NESTED + b"N\x86e\x85R.",
    "OrderedDict of lists": _global(b"collections.OrderedDict") + b"](](" + NESTED + b"Nee\x85R.",
    "key": b"}" + NESTED + b"Ns.",
    "keys": b"}(N)" + NESTED + b"Nu.",
    "dict": b"(" + NESTED + b"Nd.",
    "keys of other tuples": b"}(" + (NESTED[:24] + b"N") * 9 + b"u.",
    "to print": NESTED + b".",
    "nested lists": b"]q\x00" + b"".join(b"(h%ch%clq%c" % (n, n, n + 1) for n in range(40)) + b".",
    "a list in itself": b"]2a.",
}


@pytest.mark.parametrize("code", MUCH_MEMORY.values(), ids=MUCH_MEMORY)
def test_pickles_cannot_take_much_memory(code: bytes) -> None:
    """Eight bytes took 3 GB and 16 s."""
    tracemalloc.start()
    with suppress(BackendError):
        load_plain(b"\x80\x04" + code, "here")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000 + 100 * len(code)


@pytest.mark.parametrize("code", MUCH_TIME.values(), ids=MUCH_TIME)
def test_pickles_cannot_take_much_time(code: bytes) -> None:
    """A hundred bytes took years to hash or to print."""
    with pytest.raises(BackendError, match="repeats its parts too often"):
        load_plain(b"\x80\x04" + code, "here")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        # The defaults of a function, and a method of a class.
        (_global(b"_codecs.encode") + b"N}\x8c\x0c__defaults__)s\x86b.", "no UUID"),
        (_global(b"uuid.UUID") + b"N}\x8c\x07__str__Ns\x86b.", "no UUID"),
        (_global(b"builtins.set") + b")\x81.", "no UUID"),
        (_global(b"uuid.UUID") + b")\x81}\x8c\x03int]sb.", "list"),
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
    with pytest.raises(BackendError, match="it holds a Task"):
        load_plain(task, "here")
