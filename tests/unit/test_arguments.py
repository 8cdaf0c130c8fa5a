"""Argument checks: the same TypeError as a call of the function, without calling it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.publishing.arguments import argument_checker, is_coroutine_function, keywords, positional


def plain(x: int, y: int) -> None: ...
def defaults(x: int, y: int = 1, *, z: int = 2) -> None: ...
def needs_keyword(x: int, /, y: int, *, z: int) -> None: ...
def takes_all(*args: int, **kwargs: int) -> None: ...
def mixed(x: int, y: int = 1, /, *rest: int, z: int, w: int = 3, **more: int) -> None: ...


def closing(x: int, y: int) -> Callable[[], int]:
    return lambda: x + y


def generating(x: int) -> Any:
    yield x


FUNCTIONS = [plain, defaults, needs_keyword, takes_all, mixed, closing]


def error_of(call: Callable[..., Any], args: list[int], kwargs: dict[str, int]) -> str | None:
    try:
        call(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from("xyzwq"), st.integers(), max_size=3),
)
def test_check_raises_the_same_error_as_a_call(
    function: Callable[..., Any], args: list[int], kwargs: dict[str, int]
) -> None:
    check = argument_checker(function)
    assert check is not None
    assert error_of(check, args, kwargs) == error_of(function, args, kwargs)


def test_self_of_a_bound_task_is_not_counted_as_an_argument() -> None:
    def bound(self: Any, x: int) -> None: ...

    check = argument_checker(bound, bound=True)
    assert check is not None
    check(1)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        check(1, 2)


def test_check_does_not_run_the_function() -> None:
    def fails() -> None:
        raise AssertionError("it was run")

    check = argument_checker(fails)
    assert check is not None
    check()
    check = argument_checker(generating)
    assert check is not None
    assert check(1) is None


@pytest.mark.parametrize(
    "function", [len, functools.partial(plain, 1), type("Callable", (), {"__call__": plain})()]
)
def test_callables_other_than_functions_are_not_checked(function: Any) -> None:
    assert argument_checker(function) is None


async def coroutine(x: int) -> None: ...


class Asynchronous:
    async def __call__(self) -> None: ...

    async def method(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (coroutine, True),
        (functools.partial(coroutine, 1), True),
        (Asynchronous(), True),
        (Asynchronous().method, True),
        (plain, False),
        (len, False),
        (functools.partial(plain, 1), False),
    ],
)
def test_coroutine_functions_are_recognised(function: Any, expected: bool) -> None:
    assert is_coroutine_function(function) is expected


@pytest.mark.parametrize("value", ["ab", b"ab", {"x": 1}, 5], ids=repr)
def test_args_must_be_a_tuple_or_list(value: Any) -> None:
    with pytest.raises(TypeError, match=r"calling proj.add: args=.* must be a tuple or list"):
        positional("proj.add", value)


def test_args_are_converted_to_a_tuple() -> None:
    assert positional("proj.add", None) == ()
    assert positional("proj.add", [1, 2]) == positional("proj.add", (n for n in (1, 2))) == (1, 2)


@pytest.mark.parametrize("value", [[1], "ab", 5, {1: 2}], ids=repr)
def test_kwargs_must_be_a_mapping(value: Any) -> None:
    with pytest.raises(TypeError, match=r"calling proj.add: kwargs=.* must be a mapping"):
        keywords("proj.add", value)


def test_kwargs_are_copied() -> None:
    value = {"x": 1}
    assert keywords("proj.add", value) == value
    assert keywords("proj.add", value) is not value
    assert keywords("proj.add", None) == {}
