"""Values: how one that stands alone is made plain, and made again.

Comes from:  ``forms``, with the class that an annotation names.
Goes to:     the same, as a Form.
Thread:      any; pure, but for the user's Enums.

What JSON carries already goes as it is. It is read from what a stranger may write in its stead, too: a UUID
from text, a number of seconds from an int.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from qworker.interrupts import let_pass
from qworker.safe_repr import safe_repr

LONGEST_DURATION = 64
"""Characters of a duration that is text."""


class Unfit(Exception):
    """A value that does not fit. reason: why. path: where it stands, as in ``.lines[2]``."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class Form(NamedTuple):
    """What an annotation says of a value.

    - name: of the annotation, for errors.
    - load: makes the value of plain data; takes one that is made already as it is. Raises Unfit.
    - dump: makes plain data of the value. Gives back the same object where there is nothing to do: it is
      plain already, or is not what was annotated. Raises Unfit for what load() would make something else of.
    - typed: it is one that JSON does not carry, or has such in it.
    """

    name: str
    load: Callable[[Any], Any]
    dump: Callable[[Any], Any]
    typed: bool = False


def same(value: Any) -> Any:
    """Return *value*."""
    return value


ANYTHING = Form("anything", same, same)


def checked(value: Any, kinds: Any, expected: str) -> Any:
    """Return *value*. Raises Unfit, which names what was *expected*, when it is of none of the *kinds*."""
    if not isinstance(value, kinds):
        raise Unfit(f"expected {expected}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return safe_repr(value, 60)


def enum_form(kind: type[Enum]) -> Form:
    """Return the form of an Enum; ANYTHING when JSON does not carry the values of all its members."""
    if not list(kind) or not all(type(member.value) in CARRIED for member in kind):
        return ANYTHING
    values = safe_repr([member.value for member in kind], 200)

    def load(value: Any) -> Any:
        try:
            return kind(value)
        except Exception as error:  # _missing_ is the user's code
            let_pass(error)
            raise Unfit(
                f"expected a value of {kind.__name__}, one of {values}, not {_shown(value)}"
            ) from error

    return Form(
        kind.__name__, load, lambda value: value.value if isinstance(value, kind) else value, typed=True
    )


def _read(expected: str, kinds: Any, read: Callable[[Any], Any]) -> Form:
    """Of a class whose values JSON carries. kinds: of what *read* makes one; a bool is no number."""

    def load(value: Any) -> Any:
        if isinstance(value, bool) and bool not in kinds:
            raise Unfit(f"expected {expected}, not {value}")
        try:
            return read(checked(value, kinds, expected))
        except (ValueError, ArithmeticError) as error:
            raise Unfit(f"expected {expected}, not {_shown(value)}") from error

    return Form(expected, load, same)


def _moment(kind: Any, expected: str) -> Form:
    def read(value: Any) -> Any:
        value = kind.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(value, datetime) and kind is date:  # which is a date, too
            raise ValueError
        return value

    return _read(expected, (kind, str), read)


def _decimal(value: Decimal | float | str) -> Decimal:
    # By the text of a float: that is what was written.
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


CARRIED: dict[type, Form] = {
    types.NoneType: _read("None", (types.NoneType,), same),
    bool: _read("True or False", (bool,), same),
    int: _read("a whole number", (int,), same),
    float: _read("a number", (int, float), float),
    str: _read("text", (str,), same),
    bytes: _read("bytes", (bytes,), same),
    UUID: _read("a UUID", (UUID, str), lambda value: UUID(value) if isinstance(value, str) else value),
    Decimal: _read("a decimal number", (Decimal, int, float, str), _decimal),
    datetime: _moment(datetime, "a datetime"),
    date: _moment(date, "a date"),
    time: _moment(time, "a time of day"),
}

KEYS: dict[Any, Form] = {
    str: CARRIED[str],
    int: _read("a whole number", (int, str), int),
    UUID: CARRIED[UUID]._replace(dump=lambda value: str(value) if isinstance(value, UUID) else value),
}

_NUMBER = r"(\d+(?:[.,]\d+)?)"
_DURATION = re.compile(
    rf"([+-]?)P(?=.)(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=.)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?",
    re.ASCII,
)


def _read_duration(value: float | str | timedelta) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        return timedelta(seconds=value)
    found = _DURATION.fullmatch(value) if len(value) <= LONGEST_DURATION else None
    if found is None:
        raise ValueError
    sign, *numbers = found.groups()
    weeks, days, hours, minutes, seconds = (Decimal((each or "0").replace(",", ".")) for each in numbers)
    whole = (((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds
    length = timedelta(microseconds=round(whole * 1_000_000))
    return -length if sign == "-" else length


def _dump_duration(value: Any) -> Any:
    if not isinstance(value, timedelta):
        return value
    whole, rest = divmod(value, timedelta(seconds=1))
    if not rest:
        return whole
    seconds = value.total_seconds()
    try:
        if timedelta(seconds=seconds) == value:
            return seconds
    except OverflowError:
        pass
    raise Unfit("a timedelta of centuries that has microseconds is not a number of seconds")


TIMEDELTA = _read(
    "a timedelta: seconds, or text of ISO 8601 as PT1H30M", (timedelta, int, float, str), _read_duration
)._replace(dump=_dump_duration, typed=True)
