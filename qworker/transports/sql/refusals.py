"""Distinguishes errors about a value that a database will never accept from temporary failures.

Comes from:  the brokers ``postgresql.py`` and ``mysql.py``; ``backends/sql/database.py``.
Goes to:     the storing code: such a value is reported and left out, everything else is retried.
Thread:      any; pure. Drivers are recognised by the exceptions of PEP 249, and the codes of their servers.
"""

from __future__ import annotations

_CLASSES = ("21", "22", "23", "42", "44", "54", "P0")
"""Classes of PostgreSQL's codes about a value, a constraint, a type, a limit, or a user's trigger."""
_NOT_VALUES = ("42501", "42P01", "42703", "42P05", "42P08")
"""Codes in these classes about permissions, missing tables, and statements."""
_MYSQL = frozenset({
    1048, 1062, 1118, 1153, 1264, 1265, 1292, 1301, 1364, 1366, 1406, 1526, 1644, 1690, 1748, 3140, 3819,
    3988, 4025, 4161,
})  # fmt: skip
_MYSQL_NOT_VALUES = frozenset({1044, 1045, 1049, 1054, 1142, 1143, 1146, 1227})
_SQLITE = frozenset({18, 19, 20, 25})
"""SQLITE_TOOBIG, SQLITE_CONSTRAINT, SQLITE_MISMATCH and SQLITE_RANGE."""
_PASSING = frozenset({"OperationalError", "InternalError", "ProgrammingError"})
_KINDS = frozenset({"DataError", "IntegrityError", "NotSupportedError", "ProgrammingError"})


def passing(error: BaseException | None) -> bool:
    """Whether an immediate retry may help: a deadlock, a lock that was not available, a table created at the
    same time."""
    return not _PASSING.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def refused(error: BaseException | None) -> bool:
    """Whether *error*, of any driver, is about the values: a retry will always fail."""
    if isinstance(error, UnicodeError | OverflowError):
        return True  # it never left this process
    if "Could not decode to UTF-8" in str(error):
        return True  # SQLite has no code for invalid UTF-8 in a column of text
    kinds = {kind.__name__ for kind in type(error).__mro__}
    number = error.args[0] if error is not None and error.args else None
    if isinstance(number, int):
        # MySQL's own number: the class 42 of its states includes revoked permissions and missing databases.
        return number in _MYSQL or (not kinds.isdisjoint(_KINDS) and number not in _MYSQL_NOT_VALUES)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state:
        return state.startswith(_CLASSES) and state not in _NOT_VALUES
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return (code & 0xFF) in _SQLITE
    # Raised by drivers that check values themselves: there is no code from the server.
    return not kinds.isdisjoint(_KINDS) and "closed" not in str(error)
