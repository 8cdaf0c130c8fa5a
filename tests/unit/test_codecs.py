"""Codecs: what an annotation makes of a value and of plain data, and what it refuses."""

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


class Odd(Enum):
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
    parent: Optional[Node] = None  # noqa: UP045 - one of the ways to write it


@dataclass
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


@dataclass
class Wants:
    number: int
    more: InitVar[int]


@dataclass
class Codec:
    number: int

    def __json__(self) -> Any:
        return {"its": self.number}


@dataclass
class Half:
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


# -- there and back --

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
    """An annotation, and what makes values of it."""
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
    if how == "optional" and kind is not Day:  # of which a member is None, too
        return Optional[kind], st.none() | values  # noqa: UP045 - not of a text
    key, keys = draw(st.sampled_from(list(KEYS.items())))
    return dict[key, kind], st.dictionaries(keys, values, max_size=3)


@given(annotated(), st.data())
def test_everything_comes_out_as_it_went_in(
    made: tuple[Any, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    annotation, values = made
    value = data.draw(values)
    found = over_the_wire(annotation, value)
    assert found == value
    assert type(found) is type(value)
    codec = Codecs().of(annotation)
    plain = codec.dump(value)
    assert codec.dump(plain) == plain  # what is plain stays, so that who dumps twice has dumped once
    assert codec.load(value) == value  # and what is made stays: of a call here and now


@given(annotated(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_whatever_comes_it_fits_or_is_refused(made: tuple[Any, st.SearchStrategy[Any]], plain: Any) -> None:
    codec = Codecs().of(made[0])
    assert codec.dump(plain) == plain
    with suppress(ConversionError):
        codec.load(plain)


def test_a_whole_order() -> None:
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


def test_plain_json_of_a_stranger_will_do() -> None:
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


# -- what does not fit --


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
        (Even, {"number": 1}, "", "no Even can be made of it: ValueError: '1 is odd'"),
        (Line, {"product": "x", "price": 1}, ".product", "expected a UUID, not 'x'"),
        (Line, {"product": ID, "price": "x"}, ".price", "expected a decimal number, not 'x'"),
        (set[Line], [{"product": ID, "price": 1}], "", "no set can be made of it: TypeError: \"unhashable "
         "type: 'Line'\""),
        (list[Line], {"a": 1}, "", "expected a list of Line, not an object"),
        (Checked, {"number": "x", "wait": 1}, ".number", "expected a whole number, not 'x'"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_refused_and_where(annotation: Any, plain: Any, path: str, reason: str) -> None:
    with pytest.raises(ConversionError) as refused:
        Codecs().of(annotation).load(plain)
    assert (refused.value.path, refused.value.reason) == (path, reason)


def test_of_a_model_it_is_told_what_pydantic_says_without_the_values() -> None:
    plain = {"born": "yesterday", "waits": [1, "secret", "secret", "secret"]}
    with pytest.raises(ConversionError) as refused:
        Codecs().of(Person).load(plain)
    assert refused.value.reason.startswith("no Person can be made of it: name: Field required; born: Input ")
    assert refused.value.reason.endswith("; and 2 more")
    assert "secret" not in refused.value.reason
    assert isinstance(refused.value.__cause__, pydantic.ValidationError)


@pytest.mark.parametrize(
    ("kind", "plain"),
    [(date, "2030-01-02T00:00"), (date, NOW), (datetime, date(2030, 1, 1)), (time, "25:00"), (bytes, "text"),
     (float, "1"), (float, 10**400), (type(None), 0), (bool, 1)],
)  # fmt: skip
def test_what_json_carries_is_checked_within_a_dataclass(kind: Any, plain: Any) -> None:
    made = dataclasses.make_dataclass("Made", [("it", kind)])
    with pytest.raises(ConversionError, match="expected"):
        Codecs().of(made).load({"it": plain})


def test_a_subclass_would_lose_what_it_adds() -> None:
    with pytest.raises(ConversionError, match="expected Order, and this Express would come out as one"):
        Codecs().of(Order).dump(Express(1, []))
    with pytest.raises(ConversionError) as refused:
        Codecs().of(dict[str, list[Person]]).dump({"a": [Person(name="p"), Boss(name="b")]})
    assert refused.value.path == "['a'][1]"


def test_a_result_may_be_of_a_subclass() -> None:
    codecs = Codecs(exact=False)
    assert codecs.of(Order).dump(Express(1, [], hours=3))["hours"] == 3
    assert codecs.of(Person).dump(Boss(name="b")) == {"name": "b", "born": None, "waits": [], "rank": 1}
    assert codecs.of(Renamed).dump(Renamed(theNumber=2)) == {"number": 2, "double": 4}


# -- models --


def test_models_are_sent_under_the_names_that_they_are_read_by() -> None:
    assert Codecs().of(Renamed).dump(Renamed(theNumber=1)) == {"theNumber": 1}
    assert over_the_wire(list[Renamed], [Renamed(theNumber=1)]) == [Renamed(theNumber=1)]


def test_a_model_that_hides_something_is_refused_where_it_does() -> None:
    assert over_the_wire(Lossy, Lossy(kept=1)) == Lossy(kept=1)
    with pytest.raises(ConversionError, match="not equal to this Lossy"):
        Codecs().of(Lossy).dump(Lossy(kept=1, dropped=2))


def test_models_get_options() -> None:
    strict = Codecs(ModelOptions(strict=True, dump={"exclude_unset": True})).of(Person)
    assert strict.dump(Person(name="p")) == {"name": "p"}
    with pytest.raises(ConversionError):
        strict.load({"name": "p", "born": "2030-01-01"})


def test_pydantics_dataclasses_are_dataclasses() -> None:
    assert over_the_wire(Checked, Checked(1, timedelta(1))) == Checked(1, timedelta(1))


# -- what is left alone --


@pytest.mark.parametrize(
    "annotation",
    [
        Any, object, T, complex, Odd, Enum, Wants, Codec, pydantic.BaseModel, Order | Line,
        Color | Level | None, Order | str, Day | None, list, tuple, dict, dict[float, Order],
        dict[Level, Order], "Order",
    ],
    ids=repr,
)  # fmt: skip
def test_other_annotations_are_as_good_as_none(annotation: Any) -> None:
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
def test_ways_to_write_it(annotation: Any, value: Any) -> None:
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
def test_what_json_carries_alone_is_not_looked_at(annotation: Any, typed: bool) -> None:
    assert Codecs().of(annotation).typed is typed


def test_what_was_registered_with_kombu_goes_its_own_way() -> None:
    @dataclass
    class Span:
        days: int

    assert Codecs().of(Span).typed
    register_type(Span, "span", lambda span: span.days, Span)
    assert Codecs().of(Span) is ANYTHING
    assert over_the_wire(Span, Span(2)) == Span(2)


def test_a_union_of_several_has_values_of_each_as_they_are() -> None:
    order = Order(1, [])
    assert Codecs().of(list[Order | Line]).dump([order])[0] is order


def test_names_that_cannot_be_evaluated_leave_the_others() -> None:
    codec = Codecs().of(Half)
    assert codec.dump(Half(timedelta(1), {"a": 1})) == {"known": 86400, "unknown": {"a": 1}}
    assert codec.load({"known": 1, "unknown": [1]}) == Half(timedelta(seconds=1), [1])


def test_without_pydantic_there_are_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pydantic")
    assert Codecs().of(Person) is ANYTHING


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has the statement `type`")
def test_aliases_are_what_they_stand_for() -> None:
    names: dict[str, Any] = {"Color": Color}
    exec("type Colors = list[Color]\ntype Tree = list[Tree] | None\ntype Wrong = list[Nobody]", names)
    assert over_the_wire(names["Colors"], [Color.RED]) == [Color.RED]
    assert not Codecs().of(names["Tree"]).typed
    assert Codecs().of(names["Wrong"]) is ANYTHING
