"""Codecs: convert values that JSON does not support, by annotation.

Comes from:  ``typed_calls``, with the annotations of a task's function.
Goes to:     ``typed_calls``, as a Codec for each annotation.
Thread:      any; pure, except for the user's annotations and classes.

===================  =====================================================
a dataclass          an object of its fields
a model (pydantic)   the result of its ``model_dump(mode="json")``
an Enum              the value of the member
a timedelta          its seconds; ISO 8601 text is also read
===================  =====================================================

They may be nested in lists, tuples, sets, dicts and dataclasses, and be optional. Values that our JSON
supports (also UUID, Decimal, datetime, date, time and bytes: see ``message/kombu_json.py``) are unchanged, as
are values with any other annotation, or one that cannot be evaluated.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from qworker.interrupts import reraise_interrupt
from qworker.safe_repr import safe_repr

MOST_SHOWN = 3
"""Maximum number of invalid fields of a model in an error."""


class ModelOptions(NamedTuple):
    """Options for pydantic. strict, context: for ``model_validate``. dump: for ``model_dump``."""

    strict: bool = False
    context: Mapping[str, Any] = types.MappingProxyType({})
    dump: Mapping[str, Any] = types.MappingProxyType({})


class Codecs:
    """Makes the codecs for annotations.

    - models: options for pydantic; None for the defaults.
    - exact (bool): for arguments; a dumped value must load as an equal value. If false, for results; a value
      may be of a subclass of its annotation, and is dumped completely.
    """

    def __init__(self, models: ModelOptions | None = None, exact: bool = True) -> None:
        self._models = models or ModelOptions()
        self._exact = exact
        self._dataclasses: dict[type, Codec] = {}
        """Codecs by class, because dataclasses may be recursive."""
        self._aliases: list[Any] = []
        """The aliases being evaluated, because they may be recursive."""

    def of(self, annotation: Any) -> Codec:
        """Return the codec of the evaluated *annotation*; ANYTHING if it needs no conversion."""
        annotation = _meant(annotation)
        if type(annotation).__name__ == "TypeAliasType":
            return self._alias(annotation)
        origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            return self._union(parts)
        if parts and origin is tuple:
            return self._tuple(parts)
        if parts and origin in _SEQUENCES:
            return _sequence(_SEQUENCES[origin], self.of(parts[0]))
        if parts and origin in _MAPPINGS:
            return self._mapping(*parts)
        return self._class(origin or annotation)

    # -- classes --

    def _class(self, kind: Any) -> Codec:
        if not isinstance(kind, type):
            return ANYTHING
        if kind in CARRIED:
            return CARRIED[kind]
        if _has_a_codec(kind):
            return ANYTHING
        if kind is timedelta:
            return TIMEDELTA
        if issubclass(kind, Enum):
            return enum_form(kind)
        if _is_model(kind):
            return self._model(kind)
        if dataclasses.is_dataclass(kind) and _takes_its_fields(kind):
            return self._dataclasses.get(kind) or self._dataclass(kind)
        return ANYTHING

    def _dataclass(self, kind: type) -> Codec:
        codecs: dict[str, Codec] = {}
        required: set[str] = set()

        def load(value: Any) -> Any:
            if isinstance(value, kind):
                return value
            given = checked(value, dict, f"an object with the fields of {kind.__name__}")
            if missing := sorted(required - given.keys()):
                raise ConversionError(f"{kind.__name__} needs the field {missing[0]!r}, which is missing")
            # Ignore unknown fields, because the sender may be a later version.
            found = {
                name: _within(f".{name}", codecs[name].load, given[name]) for name in codecs if name in given
            }
            return _made(kind.__name__, lambda: kind(**found))

        def dump(value: Any) -> Any:
            if not isinstance(value, kind):
                return value
            if type(value) is not kind:
                return self._subclass(kind, value)
            return {
                name: _within(f".{name}", codec.dump, getattr(value, name)) for name, codec in codecs.items()
            }

        codec = self._dataclasses[kind] = Codec(kind.__name__, load, dump, typed=True)
        hints = hints_of(kind)
        for field in _fields(kind):
            codecs[field.name] = self.of(hints.get(field.name, Any))
            if field.default is field.default_factory is dataclasses.MISSING:
                required.add(field.name)
        return codec

    def _model(self, kind: Any) -> Codec:
        strict, context, options = self._models
        # Arguments must be valid input: with aliases, and without computed fields.
        extent = {"by_alias": True, "round_trip": True} if self._exact else {}
        options = {"mode": "json", **extent, **options}

        def load(value: Any) -> Any:
            return _made(
                kind.__name__, lambda: kind.model_validate(value, strict=strict, context=dict(context))
            )

        def dump(value: Any) -> Any:
            if not isinstance(value, kind):
                return value
            if type(value) is not kind:
                return self._subclass(kind, value)
            plain = value.model_dump(**options)
            if self._exact and load(plain) != value:
                raise ConversionError(f"the value decoded from its JSON is not equal to this {kind.__name__}")
            return plain

        return Codec(kind.__name__, load, dump, typed=True)

    def _subclass(self, kind: type, value: Any) -> Any:
        if self._exact:
            raise ConversionError(
                f"expected {kind.__name__}, not {type(value).__name__}, which would be read back as "
                f"{kind.__name__}"
            )
        return self.of(type(value)).dump(value)

    # -- containers and aliases --

    def _alias(self, alias: Any) -> Codec:
        """Return the codec of ``type X = …``, whose value is evaluated now."""
        if alias in self._aliases:
            return ANYTHING
        self._aliases.append(alias)
        try:
            return self.of(alias.__value__)
        except Exception as error:  # noqa: BLE001 - annotations are the user's code
            reraise_interrupt(error)
            return ANYTHING
        finally:
            self._aliases.pop()

    def _union(self, members: Iterable[Any]) -> Codec:
        """Return the codec of one type or None; ANYTHING for several types, because the type of a plain value
        would be ambiguous."""
        others = [member for member in members if member is not types.NoneType]
        codec = self.of(others[0])
        if len(others) > 1 or codec is ANYTHING or _has_none(others[0]):
            return ANYTHING
        return Codec(
            f"{codec.name} or None",
            lambda value: None if value is None else codec.load(value),
            lambda value: None if value is None else codec.dump(value),
            codec.typed,
        )

    def _tuple(self, members: tuple[Any, ...]) -> Codec:
        if members[-1] is Ellipsis:
            return _sequence(tuple, self.of(members[0]))
        codecs = [self.of(member) for member in members]
        name = f"a list of {len(codecs)}"

        def load(value: Any) -> Any:
            items = checked(value, (list, tuple), name)
            if len(items) != len(codecs):
                raise ConversionError(f"expected {name}, not of {len(items)}")
            return tuple(_each([codec.load for codec in codecs], items))

        def dump(value: Any) -> Any:
            if not isinstance(value, list | tuple) or len(value) != len(codecs):
                return value
            return _unless_same(value, _each([codec.dump for codec in codecs], value))

        return Codec(name, load, dump, any(codec.typed for codec in codecs))

    def _mapping(self, of_key: Any, of_value: Any) -> Codec:
        key, codec = self._key(_meant(of_key)), self.of(of_value)
        if key is None:
            return ANYTHING

        def load(value: Any) -> Any:
            given = checked(value, dict, "an object")
            places = {each: f"[{safe_repr(each, 40)}]" for each in given}
            return {
                _within(places[each], key.load, each): _within(places[each], codec.load, item)
                for each, item in given.items()
            }

        def dump(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            keys = [key.dump(each) for each in value]
            items = [_within(f"[{safe_repr(each, 40)}]", codec.dump, item) for each, item in value.items()]
            if type(value) is dict and _are(keys, value) and _are(items, value.values()):
                return value
            return dict(zip(keys, items, strict=True))

        return Codec("an object", load, dump, key.typed or codec.typed)

    def _key(self, annotation: Any) -> Codec | None:
        """Return the codec of a key, which is text in JSON; None if text cannot be converted back."""
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            is_text = all(isinstance(member.value, str) for member in annotation)
            return self.of(annotation) if is_text else None
        return KEYS.get(annotation)


def _sequence(made: Callable[[Iterable[Any]], Any], codec: Codec) -> Codec:
    """Return the codec of a list, tuple or set; *made* builds it from its members."""
    name = f"a list of {codec.name}"

    def load(value: Any) -> Any:
        items = checked(value, (list, tuple, set, frozenset), name)
        loaded = _each([codec.load] * len(items), items)
        return _made("set", lambda: made(loaded)) if made is not list else loaded

    def dump(value: Any) -> Any:
        if not isinstance(value, list | tuple | set | frozenset):
            return value
        return _unless_same(value, _each([codec.dump] * len(value), value))

    return Codec(name, load, dump, codec.typed)


_SEQUENCES: dict[Any, Callable[[Iterable[Any]], Any]] = {
    **dict.fromkeys((list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((set, abc.Set, abc.MutableSet), set),
    frozenset: frozenset,
}
_MAPPINGS = frozenset([dict, abc.Mapping, abc.MutableMapping])


# -- nested values --


def _within(place: str, step: Callable[[Any], Any], value: Any) -> Any:
    """Return ``step(value)``; add *place* to the path of its errors."""
    try:
        return step(value)
    except ConversionError as error:
        error.path = place + error.path
        raise


def _each(steps: Iterable[Callable[[Any], Any]], items: Iterable[Any]) -> list[Any]:
    pairs = enumerate(zip(steps, items, strict=True))
    return [_within(f"[{number}]", step, item) for number, (step, item) in pairs]


def _unless_same(value: Any, items: list[Any]) -> Any:
    """Return *items*, or *value* itself if it is a list or tuple with the same items."""
    return value if isinstance(value, list | tuple) and _are(items, value) else items


def _are(items: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(items, others, strict=True))


def _made(name: str, make: Callable[[], Any]) -> Any:
    """Return the result of *make*. Raises ConversionError for any error, because ``__post_init__`` and
    validators are user code."""
    try:
        return make()
    except Exception as error:
        reraise_interrupt(error)
        raise ConversionError(f"it cannot be converted to {name}: {_described(error)}") from error


def _described(error: Any) -> str:
    """Describe an error; pydantic's by the place and the reason, without values."""
    invalid = _pydantic("ValidationError")
    if invalid is None or not isinstance(error, invalid):
        return f"{type(error).__name__}: {safe_repr(str(error), 200)}"
    wrong = error.errors(include_url=False, include_context=False, include_input=False)
    some = [f"{'.'.join(map(str, each['loc'])) or 'all'}: {each['msg']}" for each in wrong[:MOST_SHOWN]]
    return "; ".join([*some, *([f"and {len(wrong) - MOST_SHOWN} more"] if len(wrong) > MOST_SHOWN else [])])


# -- classes and annotations --


def _pydantic(name: str) -> Any:
    """Return a class of pydantic; None if pydantic is not imported, so that there are no models."""
    return getattr(sys.modules.get("pydantic"), name, None)


def _is_model(kind: type) -> bool:
    base = _pydantic("BaseModel")
    return base is not None and issubclass(kind, base) and kind is not base


def _has_a_codec(kind: type) -> bool:
    """Return whether the class defines its own JSON, by ``__json__()`` or by registration with kombu."""
    registered = getattr(sys.modules.get("kombu.utils.json"), "_encoders", ())
    return hasattr(kind, "__json__") or any(issubclass(kind, each) for each in registered)


def _has_none(annotation: Any) -> bool:
    """Return whether *annotation* is an Enum with a member whose value is None."""
    return (
        isinstance(annotation, type)
        and issubclass(annotation, Enum)
        and any(member.value is None for member in annotation)
    )


def _fields(kind: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that its constructor takes."""
    return [field for field in dataclasses.fields(kind) if field.init]


def _takes_its_fields(kind: Any) -> bool:
    """Return whether the constructor of a dataclass takes exactly its fields; it may be overridden."""
    code = getattr(kind.__init__, "__code__", None)
    if code is None or code.co_flags & 0x0C:  # *args or **kwargs, as in pydantic's dataclasses
        return True
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return {*names} == {field.name for field in _fields(kind)}


def _meant(annotation: Any) -> Any:
    """Return the type behind an alias with ``__supertype__``, or Annotated."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        else:
            return annotation


# -- Hints: the evaluated annotations of a function or a dataclass --
# Thread: any; evaluating annotations runs user code.


def hints_of(thing: Any) -> dict[str, Any]:
    """Return the evaluated annotations of a function or dataclass, by name.

    Leave out those that cannot be evaluated, because they use names that exist only for type checkers.
    """
    try:
        return typing.get_type_hints(thing)
    except Exception as error:  # noqa: BLE001 - annotations are the user's code
        reraise_interrupt(error)
    if isinstance(thing, type):
        written = {field.name: field.type for field in dataclasses.fields(thing)}
        names = getattr(sys.modules.get(thing.__module__), "__dict__", {})
    else:
        written, names = _annotations(thing), getattr(thing, "__globals__", {})
    hints: dict[str, Any] = {}
    for name, annotation in written.items():
        try:
            one = types.SimpleNamespace(__annotations__={name: annotation})
            hints |= typing.get_type_hints(one, names)
        except Exception as error:  # noqa: BLE001 - as above
            reraise_interrupt(error)
    return hints


def _annotations(function: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return dict(getattr(function, "__annotations__", {}))


# -- Values: the codecs of single values --
# Thread: any; pure, except for the user's Enums. Values that JSON supports are dumped unchanged, but also
# loaded from the forms that other senders use: a UUID from text, a float from an int.

LONGEST_DURATION = 64
"""Maximum characters of a duration given as text."""


class ConversionError(Exception):
    """A value cannot be converted. reason: why. path: its place, such as ``.lines[2]``."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class Codec(NamedTuple):
    """The conversion for an annotation.

    - name: of the annotation, for errors.
    - load: returns the value of plain data, or a value of the type unchanged. Raises ConversionError.
    - dump: returns the plain data of a value, or the same object if it is plain or not of the annotated type.
      Raises ConversionError for a value that load() would change.
    - typed: whether JSON does not support the type, or one nested in it.
    """

    name: str
    load: Callable[[Any], Any]
    dump: Callable[[Any], Any]
    typed: bool = False


def same(value: Any) -> Any:
    """Return *value*."""
    return value


ANYTHING = Codec("anything", same, same)


def checked(value: Any, kinds: Any, expected: str) -> Any:
    """Return *value*. Raises ConversionError, which names *expected*, if it is not of one of *kinds*."""
    if not isinstance(value, kinds):
        raise ConversionError(f"expected {expected}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return safe_repr(value, 60)


def enum_form(kind: type[Enum]) -> Codec:
    """Return the codec of an Enum; ANYTHING if JSON does not support the values of all its members."""
    if not list(kind) or not all(type(member.value) in CARRIED for member in kind):
        return ANYTHING
    values = safe_repr([member.value for member in kind], 200)

    def load(value: Any) -> Any:
        try:
            return kind(value)
        except Exception as error:  # _missing_ is user code
            reraise_interrupt(error)
            raise ConversionError(
                f"expected a value of {kind.__name__}, one of {values}, not {_shown(value)}"
            ) from error

    return Codec(
        kind.__name__, load, lambda value: value.value if isinstance(value, kind) else value, typed=True
    )


def _read(expected: str, kinds: Any, read: Callable[[Any], Any]) -> Codec:
    """Return the codec of a class that JSON supports. kinds: types that *read* accepts; no bool as number."""

    def load(value: Any) -> Any:
        if isinstance(value, bool) and bool not in kinds:
            raise ConversionError(f"expected {expected}, not {value}")
        try:
            return read(checked(value, kinds, expected))
        except (ValueError, ArithmeticError) as error:
            raise ConversionError(f"expected {expected}, not {_shown(value)}") from error

    return Codec(expected, load, same)


def _moment(kind: Any, expected: str) -> Codec:
    def read(value: Any) -> Any:
        value = kind.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(value, datetime) and kind is date:  # datetime is a subclass of date
            raise ValueError
        return value

    return _read(expected, (kind, str), read)


def _decimal(value: Decimal | float | str) -> Decimal:
    # Use the text of a float, which has the digits that were written.
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


CARRIED: dict[type, Codec] = {
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

KEYS: dict[Any, Codec] = {
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
    raise ConversionError(
        "a timedelta of centuries with microseconds cannot be stored exactly as a number of seconds"
    )


TIMEDELTA = _read(
    "a timedelta: seconds, or text of ISO 8601 such as PT1H30M", (timedelta, int, float, str), _read_duration
)._replace(dump=_dump_duration, typed=True)
