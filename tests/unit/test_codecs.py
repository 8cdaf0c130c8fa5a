"""Codecs: values to plain data and back, by annotation, and what is refused."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NewType, Optional, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import register_type

from qworker.message.kombu_json import dumps, loads
from qworker.tasks.codecs import ANYTHING, Codecs, ConversionError, ModelOptions

if TYPE_CHECKING:
    from nowhere import Unknown

T = TypeVar("T")
Number = NewType("Number", int)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Unit(StrEnum):
    KILO = "kg"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Day(Enum):
    NEW_YEAR = date(2030, 1, 1)
    NONE = None


class TupleValued(Enum):
    PAIR = (1, 2)


@dataclass
class Line:
    product: UUID
    price: Decimal
    count: int = 1


@dataclass
class Order:
    number: int
    lines: list[Line]
    color: Color | None = None
    wait: timedelta = timedelta(hours=1)
    tags: frozenset[str] = frozenset()
    size: tuple[float, float] = (1.0, 1.0)
    total: Decimal = field(init=False, default=Decimal(0))
    known: ClassVar[int] = 0


@dataclass
class Express(Order):
    hours: int = 1


@dataclass(frozen=True)
class Node:
    name: str
    children: list[Node] = field(default_factory=list)
    parent: Optional[Node] = None  # noqa: UP045 - the older spelling is tested


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


@dataclass
class WithInitVar:
    number: int
    more: InitVar[int]


@dataclass
class Codec:
    number: int

    def __json__(self) -> Any:
        return {"its": self.number}


@dataclass
class PartlyAnnotated:
    known: timedelta
    unknown: Unknown


@dataclass
class Box(Generic[T]):
    inside: T
    wait: timedelta


class Person(pydantic.BaseModel):
    name: str
    born: date | None = None
    waits: list[timedelta] = []


class Boss(Person):
    rank: int = 1


class Renamed(pydantic.BaseModel):
    number: int = pydantic.Field(alias="theNumber")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.number * 2


class Lossy(pydantic.BaseModel):
    kept: int
    dropped: int = pydantic.Field(0, exclude=True)


@pydantic.dataclasses.dataclass
class Checked:
    number: int
    wait: timedelta


NOW = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
ID = UUID(int=7)


def over_the_wire(annotation: Any, value: Any) -> Any:
    codec = Codecs().of(annotation)
    return codec.load(loads(dumps(codec.dump(value))))


# -- round trips --

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False),
    str: st.text(),
    bool: st.booleans(),
    bytes: st.binary(),
    UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False),
    datetime: st.datetimes(timezones=st.none() | st.just(UTC)),
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(timedelta(days=-90_000), timedelta(days=90_000)),
    Color: st.sampled_from(Color),
    Level: st.sampled_from(Level),
    Unit: st.sampled_from(Unit),
    Rights: st.sampled_from([*Rights, Rights(0), Rights(3)]),
    Day: st.sampled_from(Day),
    Node: st.recursive(
        st.builds(Node, st.text()),
        lambda inner: st.builds(Node, st.text(), st.lists(inner, max_size=3), st.none() | inner),
        max_leaves=5,
    ),
    Person: st.builds(
        Person, name=st.text(), born=st.none() | st.dates(), waits=st.lists(st.timedeltas(), max_size=2)
    ),
}
KEYS = {str: st.text(), int: st.integers(), UUID: st.uuids(), Color: st.sampled_from(Color)}


@st.composite
def annotated(draw: st.DrawFn, depth: int = 3) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw an annotation, and a strategy for its values."""
    how = draw(st.sampled_from(["leaf", "list", "tuple", "pair", "set", "dict", "optional", "dataclass"]))
    if how == "leaf" or depth == 0:
        return draw(st.sampled_from(list(LEAVES.items())))
    if how == "set":
        kind, values = draw(
            st.sampled_from([(key, LEAVES[key]) for key in (int, str, UUID, Color, timedelta)])
        )
        return set[kind], st.sets(values, max_size=3)
    if how == "pair":
        (one, ones), (other, others) = draw(annotated(depth - 1)), draw(annotated(depth - 1))
        return tuple[one, other], st.tuples(ones, others)
    if how == "dataclass":
        parts = [draw(annotated(depth - 1)) for _ in range(draw(st.integers(0, 3)))]
        made = dataclasses.make_dataclass("Made", [(f"f{n}", kind) for n, (kind, _) in enumerate(parts)])
        return made, st.builds(made, *(values for _, values in parts))
    kind, values = draw(annotated(depth - 1))
    if how == "list":
        return list[kind], st.lists(values, max_size=3)
    if how == "tuple":
        return tuple[kind, ...], st.lists(values, max_size=3).map(tuple)
    if how == "optional" and kind is not Day:  # a member of Day is None, too
        return Optional[kind], st.none() | values  # noqa: UP045 - `|` would fail for strings
    key, keys = draw(st.sampled_from(list(KEYS.items())))
    return dict[key, kind], st.dictionaries(keys, values, max_size=3)


@given(annotated(), st.data())
def test_values_survive_a_round_trip(made: tuple[Any, st.SearchStrategy[Any]], data: st.DataObject) -> None:
    annotation, values = made
    value = data.draw(values)
    found = over_the_wire(annotation, value)
    assert found == value
    assert type(found) is type(value)
    codec = Codecs().of(annotation)
    plain = codec.dump(value)
    assert codec.dump(plain) == plain  # dumping twice is harmless
    assert codec.load(value) == value  # loading a loaded value is harmless, as in eager calls


@given(annotated(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_arbitrary_values_are_loaded_or_refused(made: tuple[Any, st.SearchStrategy[Any]], plain: Any) -> None:
    codec = Codecs().of(made[0])
    assert codec.dump(plain) == plain
    with suppress(ConversionError):
        codec.load(plain)


def test_nested_dataclass_round_trip() -> None:
    order = Order(
        1,
        [Line(ID, Decimal("9.90"), 3)],
        Color.RED,
        timedelta(minutes=1, microseconds=1),
        frozenset("a"),
        (1.5, 2.0),
    )
    assert Codecs().of(Order).dump(order) == {
        "number": 1,
        "lines": [{"product": ID, "price": Decimal("9.90"), "count": 3}],
        "color": "red",
        "wait": 60.000001,
        "tags": ["a"],
        "size": (1.5, 2.0),
    }
    assert over_the_wire(Order, order) == order


def test_plain_json_of_other_producers_is_loaded() -> None:
    plain = {
        "number": 1,
        "lines": [{"product": str(ID), "price": 9.9}, {"product": ID.hex, "price": "1.10", "count": 2}],
        "wait": "PT1H30M",
        "size": [1, 2],
        "added": "by a later version",
    }
    assert Codecs().of(Order).load(plain) == Order(
        1,
        [Line(ID, Decimal("9.9")), Line(ID, Decimal("1.10"), 2)],
        wait=timedelta(minutes=90),
        size=(1.0, 2.0),
    )


# -- conversion errors --


EXPECTED = "expected a value of Color, one of ['red', 'blue'], not "


@pytest.mark.parametrize(
    ("annotation", "plain", "path", "reason"),
    [
        (Order, [], "", "expected an object with the fields of Order, not a list"),
        (Order, {"lines": []}, "", "Order needs the field 'number', which is missing"),
        (Order, {"number": "1", "lines": []}, ".number", "expected a whole number, not '1'"),
        (Order, {"number": True, "lines": []}, ".number", "expected a whole number, not True"),
        (list[Line], [{"product": 1, "price": 1}], "[0].product", "expected a UUID, not 1"),
        (Order, {"number": 1, "lines": [], "size": [1]}, ".size", "expected a list of 2, not of 1"),
        (Order, {"number": 1, "lines": [], "tags": "ab"}, ".tags", "expected a list of text, not 'ab'"),
        (Color, "green", "", EXPECTED + "'green'"),
        (list[Color], ["red", None], "[1]", EXPECTED + "None"),
        (dict[str, Color], {"a": 1}, "['a']", EXPECTED + "1"),
        (dict[Color, int], {"a": 1}, "['a']", EXPECTED + "'a'"),
        (dict[int, Even], {"a": {}}, "['a']", "expected a whole number, not 'a'"),
        (Even, {"number": 1}, "", "it cannot be converted to Even: ValueError: '1 is odd'"),
        (Line, {"product": "x", "price": 1}, ".product", "expected a UUID, not 'x'"),
        (Line, {"product": ID, "price": "x"}, ".price", "expected a decimal number, not 'x'"),
        (set[Line], [{"product": ID, "price": 1}], "", "it cannot be converted to set: TypeError: "
         "\"unhashable type: 'Line'\""),
        (list[Line], {"a": 1}, "", "expected a list of Line, not an object"),
        (Checked, {"number": "x", "wait": 1}, ".number", "expected a whole number, not 'x'"),
    ],
    ids=repr,
)  # fmt: skip
def test_conversion_error_has_path_and_reason(annotation: Any, plain: Any, path: str, reason: str) -> None:
    with pytest.raises(ConversionError) as refused:
        Codecs().of(annotation).load(plain)
    assert (refused.value.path, refused.value.reason) == (path, reason)


def test_pydantic_errors_are_reported_without_values() -> None:
    plain = {"born": "yesterday", "waits": [1, "secret", "secret", "secret"]}
    with pytest.raises(ConversionError) as refused:
        Codecs().of(Person).load(plain)
    assert refused.value.reason.startswith("it cannot be converted to Person: name: Field required; born")
    assert refused.value.reason.endswith("; and 2 more")
    assert "secret" not in refused.value.reason
    assert isinstance(refused.value.__cause__, pydantic.ValidationError)


@pytest.mark.parametrize(
    ("kind", "plain"),
    [(date, "2030-01-02T00:00"), (date, NOW), (datetime, date(2030, 1, 1)), (time, "25:00"), (bytes, "text"),
     (float, "1"), (float, 10**400), (type(None), 0), (bool, 1)],
)  # fmt: skip
def test_plain_json_types_are_checked_in_a_dataclass(kind: Any, plain: Any) -> None:
    made = dataclasses.make_dataclass("Made", [("it", kind)])
    with pytest.raises(ConversionError, match="expected"):
        Codecs().of(made).load({"it": plain})


def test_argument_of_a_subclass_is_refused() -> None:
    with pytest.raises(ConversionError, match="not Express, which would be read back as Order"):
        Codecs().of(Order).dump(Express(1, []))
    with pytest.raises(ConversionError) as refused:
        Codecs().of(dict[str, list[Person]]).dump({"a": [Person(name="p"), Boss(name="b")]})
    assert refused.value.path == "['a'][1]"


def test_result_may_be_of_a_subclass() -> None:
    codecs = Codecs(exact=False)
    assert codecs.of(Order).dump(Express(1, [], hours=3))["hours"] == 3
    assert codecs.of(Person).dump(Boss(name="b")) == {"name": "b", "born": None, "waits": [], "rank": 1}
    assert codecs.of(Renamed).dump(Renamed(theNumber=2)) == {"number": 2, "double": 4}


# -- models --


def test_models_are_dumped_by_alias() -> None:
    assert Codecs().of(Renamed).dump(Renamed(theNumber=1)) == {"theNumber": 1}
    assert over_the_wire(list[Renamed], [Renamed(theNumber=1)]) == [Renamed(theNumber=1)]


def test_model_with_a_changed_excluded_field_is_refused() -> None:
    assert over_the_wire(Lossy, Lossy(kept=1)) == Lossy(kept=1)
    with pytest.raises(ConversionError, match="not equal to this Lossy"):
        Codecs().of(Lossy).dump(Lossy(kept=1, dropped=2))


def test_model_options_are_passed_to_pydantic() -> None:
    strict = Codecs(ModelOptions(strict=True, dump={"exclude_unset": True})).of(Person)
    assert strict.dump(Person(name="p")) == {"name": "p"}
    with pytest.raises(ConversionError):
        strict.load({"name": "p", "born": "2030-01-01"})


def test_pydantic_dataclasses_are_converted() -> None:
    assert over_the_wire(Checked, Checked(1, timedelta(1))) == Checked(1, timedelta(1))


# -- unconverted annotations --


@pytest.mark.parametrize(
    "annotation",
    [
        Any, object, T, complex, TupleValued, Enum, WithInitVar, Codec, pydantic.BaseModel, Order | Line,
        Color | Level | None, Order | str, Day | None, list, tuple, dict, dict[float, Order],
        dict[Level, Order], "Order",
    ],
    ids=repr,
)  # fmt: skip
def test_unsupported_annotations_are_ignored(annotation: Any) -> None:
    codec = Codecs().of(annotation)
    value = object()
    assert not codec.typed
    if codec is not ANYTHING:
        return
    assert codec.load(value) is value
    assert codec.dump(value) is value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Annotated[timedelta, "note"], timedelta(1)),
        (Sequence[Color], [Color.RED]),
        (Iterable[Color], [Color.RED]),
        (Mapping[str, Color], {"a": Color.RED}),
        (list[Color] | None, None),
        (Box[int], Box(1, timedelta(1))),
        (tuple[Color, Number], (Color.RED, 1)),
    ],
    ids=repr,
)
def test_equivalent_annotations_are_supported(annotation: Any, value: Any) -> None:
    assert Codecs().of(annotation).typed
    assert over_the_wire(annotation, value) == value


@pytest.mark.parametrize(
    ("annotation", "typed"),
    [
        (int, False), (list[int], False), (dict[str, UUID], False), (set[str], False),
        (tuple[int, str], False), (list[Color], True), (dict[Color, int], True),
        (tuple[int, timedelta], True), (Color | None, True),
    ],
)  # fmt: skip
def test_plain_json_types_need_no_conversion(annotation: Any, typed: bool) -> None:
    assert Codecs().of(annotation).typed is typed


def test_type_registered_with_kombu_is_left_to_kombu() -> None:
    @dataclass
    class Span:
        days: int

    assert Codecs().of(Span).typed
    register_type(Span, "span", lambda span: span.days, Span)
    assert Codecs().of(Span) is ANYTHING
    assert over_the_wire(Span, Span(2)) == Span(2)


def test_values_of_a_union_are_left_unchanged() -> None:
    order = Order(1, [])
    assert Codecs().of(list[Order | Line]).dump([order])[0] is order


def test_unresolvable_annotation_does_not_affect_other_fields() -> None:
    codec = Codecs().of(PartlyAnnotated)
    assert codec.dump(PartlyAnnotated(timedelta(1), {"a": 1})) == {"known": 86400, "unknown": {"a": 1}}
    assert codec.load({"known": 1, "unknown": [1]}) == PartlyAnnotated(timedelta(seconds=1), [1])


def test_models_are_not_converted_without_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pydantic")
    assert Codecs().of(Person) is ANYTHING


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has the statement `type`")
def test_type_aliases_are_resolved() -> None:
    names: dict[str, Any] = {"Color": Color}
    exec("type Colors = list[Color]\ntype Tree = list[Tree] | None\ntype Wrong = list[Nobody]", names)
    assert over_the_wire(names["Colors"], [Color.RED]) == [Color.RED]
    assert not Codecs().of(names["Tree"]).typed
    assert Codecs().of(names["Wrong"]) is ANYTHING
