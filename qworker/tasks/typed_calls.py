"""Typed calls: convert a task's arguments and result by the annotations of its function.

Comes from:  the function of a task, once, at its first call or run.
Goes to:     publishing, which sends plain arguments; a run, whose function gets values of the annotated
             types, and whose result becomes plain again.
Thread:      any; immutable.

The conversions are in ``codecs``. A task whose annotations need none has no TypedCalls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

from qworker.contracts import Task
from qworker.errors import ConfigurationError, EncodeError, InvalidValue
from qworker.naming import install_command
from qworker.publishing.arguments import is_coroutine_function
from qworker.tasks.codecs import Codec, Codecs, ConversionError, ModelOptions, hints_of, same

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. codec: None if it needs no conversion."""

    name: str
    codec: Codec | None


@dataclass(frozen=True, slots=True)
class TypedCalls:
    """The conversions of one function.

    - task: its name, for errors.
    - positional, named: parameters by position and by name.
    - more, others: the parameters ``*more`` and ``**others``.
    - result: of the return value; None if it needs no conversion.
    - bare: an invalid value of a model raises pydantic's own error instead of InvalidValue.
    """

    task: str
    positional: tuple[Parameter, ...]
    named: dict[str, Parameter]
    more: Parameter | None
    others: Parameter | None
    result: Codec | None
    bare: bool = False

    def load(self, args: Iterable[Any], kwargs: dict[str, Any]) -> Arguments:
        """Convert arguments from a message for the function. Raises InvalidValue."""
        return self._each(args, kwargs, self._loaded)

    def dump(self, args: Iterable[Any], kwargs: dict[str, Any], partial: bool = False) -> Arguments:
        """Convert arguments to the form that is sent.

        - partial: other arguments may be put before *args* later, as in a signature.

        A value of another type than its parameter is unchanged; the serializer or the task refuses it. Raises
        EncodeError for a value that would not arrive unchanged.
        """
        if not partial:
            return self._each(args, kwargs, self._dumped)
        args = tuple(args)
        _, named = self._each((), kwargs, self._dumped)
        return tuple(self._dumped_from(place, value) for place, value in enumerate(args)), named

    def dump_result(self, value: Any) -> Any:
        """Convert the function's return value to its stored form. Raises EncodeError."""
        if self.result is None:
            return value
        try:
            return self.result.dump(value)
        except ConversionError as error:
            raise EncodeError(
                f"the result{error.path} of {self.task} cannot be stored: {error.reason}",
                f"result{error.path}",
                type(value).__name__,
            ) from error.__cause__

    def load_result(self, value: Any) -> Any:
        """Undo dump_result(). Raises InvalidValue."""
        if self.result is None:
            return value
        try:
            return self.result.load(value)
        except ConversionError as error:
            raise InvalidValue(
                f"the result{error.path} of {self.task} does not match its annotation: {error.reason}"
            ) from error.__cause__

    def around(self, function: Callable[..., Any], is_async: bool, as_is: bool = False) -> Callable[..., Any]:
        """Return a function that takes arguments from a message, calls *function*, and returns a value that
        can be stored. as_is: the return value needs no conversion."""
        dump = same if as_is else self.dump_result
        if is_async:

            async def run_async(*args: Any, **kwargs: Any) -> Any:
                positional, named = self.load(args, kwargs)
                return dump(await function(*positional, **named))

            return run_async

        def run(*args: Any, **kwargs: Any) -> Any:
            positional, named = self.load(args, kwargs)
            return dump(function(*positional, **named))

        return run

    # -- the steps --

    def _each(
        self, args: Iterable[Any], kwargs: dict[str, Any], step: Callable[[Codec, str, Any], Any]
    ) -> Arguments:
        converted: list[Any] = []
        count = len(self.positional)
        for place, value in enumerate(args):
            parameter = self.positional[place] if place < count else self.more
            if parameter is None or parameter.codec is None:
                converted.append(value)
            else:
                name = parameter.name if place < count else f"{parameter.name}[{place - count}]"
                converted.append(step(parameter.codec, name, value))
        named = dict(kwargs)
        for name, value in kwargs.items():
            parameter = self.named.get(name, self.others)
            if parameter is not None and parameter.codec is not None:
                named[name] = step(parameter.codec, name, value)
        return tuple(converted), named

    def _loaded(self, codec: Codec, name: str, value: Any) -> Any:
        try:
            return codec.load(value)
        except ConversionError as error:
            place = f"{self.task} does not take the argument {name}{error.path}"
            if self.bare and isinstance(error.__cause__, ValueError):
                error.__cause__.add_note(place)
                raise error.__cause__ from None
            raise InvalidValue(f"{place}: {error.reason}") from error.__cause__

    def _dumped(self, codec: Codec, name: str, value: Any) -> Any:
        try:
            return codec.dump(value)
        except ConversionError as error:
            path = f"{name}{error.path}"
            raise EncodeError(
                f"the argument {path} of {self.task} cannot be sent: {error.reason}",
                path,
                type(value).__name__,
            ) from error.__cause__

    def _dumped_from(self, place: int, value: Any) -> Any:
        """Dump *value* with the first parameter from *place* on whose type it has."""
        refused: EncodeError | None = None
        for parameter in (*self.positional[place:], self.more):
            if parameter is None or parameter.codec is None:
                continue
            try:
                dumped = self._dumped(parameter.codec, parameter.name, value)
            except EncodeError as error:
                refused = refused or error
                continue
            if dumped is not value:
                return dumped
        if refused is not None:
            raise refused
        return value


def typed_calls(task: Task) -> TypedCalls | None:
    """Return the conversions of *task*; None if it has none."""
    options = task.model_options
    if options is None and not task.typing:
        return None
    hints = hints_of(task.run)
    context = {"celery_app": task.app, "celery_task_name": task.name}
    models = options or ModelOptions()
    models = models._replace(context={**models.context, **context})
    result = Codecs(models, exact=False).of(hints.pop("return", Any))
    codecs = Codecs(models)
    found = {name: codec for name, hint in hints.items() if (codec := codecs.of(hint)).typed}
    if not found and not result.typed:
        return None
    return _of_parameters(task, found, result if result.typed else None, bare=options is not None)


def _of_parameters(task: Task, codecs: dict[str, Codec], result: Codec | None, bare: bool) -> TypedCalls:
    from inspect import signature  # here, because it takes 10 ms and few tasks need it

    positional: list[Parameter] = []
    named: dict[str, Parameter] = {}
    more = others = None
    for parameter in signature(task.run).parameters.values():
        here = Parameter(parameter.name, codecs.get(parameter.name))
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(here)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            named[parameter.name] = here
        if parameter.kind is parameter.VAR_POSITIONAL:
            more = here
        if parameter.kind is parameter.VAR_KEYWORD:
            others = here
    return TypedCalls(task.name, tuple(positional), named, more, others, result, bare)


def by_models(
    task: Task,
    name: str,
    function: Callable[..., Any],
    strict: bool = False,
    context: Mapping[str, Any] | None = None,
    dump_kwargs: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return run() of *task*, named *name*, for ``pydantic=True``: as in Celery, direct callers may also pass
    plain data, and get plain data.

    strict, context: for pydantic's ``model_validate``. dump_kwargs: for ``model_dump``. Raises
    ConfigurationError if pydantic is not installed.
    """
    try:
        import_module("pydantic")
    except ImportError:
        raise ConfigurationError(
            f"task {name}: pydantic=True needs pydantic: {install_command('pydantic')}"
        ) from None
    task.model_options = ModelOptions(strict, context or {}, dump_kwargs or {})

    def around() -> Callable[..., Any]:
        typed = task.typed_calls
        return function if typed is None else typed.around(function, task.is_async)

    if is_coroutine_function(function):

        @wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await around()(*args, **kwargs)

        return run_async

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return around()(*args, **kwargs)

    return run
