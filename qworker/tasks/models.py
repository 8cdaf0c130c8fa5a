"""Models: pydantic's, as the arguments and results of tasks that say ``pydantic=True``.

Comes from:  definition.py, with the function of the task.
Goes to:     a function around it, which a worker runs; and what publishing passes arguments through.
Thread:      any; the annotations are looked at once, when they are first needed.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.errors import ConfigurationError
from qworker.naming import install_command
from qworker.publishing.arguments import is_coroutine_function

if TYPE_CHECKING:
    from qworker.app import QWorker


class _Model(NamedTuple):
    """What a parameter takes. kind: a model, None when it takes none. optional: None will do as well."""

    kind: Any
    optional: bool


_NONE = _Model(None, False)


class Models:
    """What a function's annotations say of models.

    A parameter that is annotated with a model, or with that or None, gets one. It is made of what came in the
    message, or taken as it is. A result is dumped where the annotation is its class.

    - bound (bool): the first parameter is the task.
    - strict, context: go to pydantic's ``model_validate``. The context has the app and the task's name
      besides, under Celery's names.
    - dump_kwargs: go to pydantic's ``model_dump``.
    """

    def __init__(
        self,
        app: QWorker,
        function: Callable[..., Any],
        name: str,
        bound: bool,
        strict: bool = False,
        context: Mapping[str, Any] | None = None,
        dump_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """bound: the first parameter is the task. Raises ConfigurationError where pydantic is not
        installed."""
        try:
            self._base: type[Any] = import_module("pydantic").BaseModel
        except ImportError:
            raise ConfigurationError(
                f"task {name}: pydantic=True needs pydantic: {install_command('pydantic')}"
            ) from None
        self._function = function
        self._bound = bound
        self._strict = strict
        self._context = {**(context or {}), "celery_app": app, "celery_task_name": name}
        self._dump_kwargs: dict[str, Any] = {"mode": "json", **(dump_kwargs or {})}

    def around(self) -> Callable[..., Any]:
        """The function that is called with what came in a message, and returns what can be stored."""
        function = self._function
        if is_coroutine_function(function):

            @wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                positional, named = self._made(args, kwargs)
                return self._dumped_result(await function(*positional, **named))

            return run_async

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            positional, named = self._made(args, kwargs)
            return self._dumped_result(function(*positional, **named))

        return run

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with its models dumped, those that the task will get back as equal
        models.

        Others stay, and cannot be sent: a model for a parameter that is annotated otherwise, or of a
        subclass.
        """
        if not any(isinstance(value, self._base) for value in (*args, *kwargs.values())):
            return args, kwargs
        by_position, by_name, _ = self._annotated
        expected = by_position[1:] if self._bound else by_position
        dumped = tuple(
            self._dumped(expected[index] if index < len(expected) else _NONE, value)
            for index, value in enumerate(args)
        )
        return dumped, {key: self._dumped(by_name.get(key, _NONE), value) for key, value in kwargs.items()}

    # -- what the annotations say --

    @cached_property
    def _annotated(self) -> tuple[list[_Model], dict[str, _Model], Any]:
        """The models of the parameters by position and by name, and the class of the result, None for
        none."""
        from inspect import signature  # 10 ms, for those who use models

        signed = signature(self._function)
        try:
            hints = typing.get_type_hints(self._function)
        except (NameError, AttributeError, TypeError):  # a name that is there for type checkers only
            hints = {}
        by_position: list[_Model] = []
        by_name: dict[str, _Model] = {}
        for parameter in signed.parameters.values():
            model = _Model(*_class(hints.get(parameter.name, parameter.annotation)))
            if model.kind is None or not issubclass(model.kind, self._base):
                model = _NONE
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                by_position.append(model)
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                by_name[parameter.name] = model
        return by_position, by_name, _class(hints.get("return", signed.return_annotation))[0]

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        by_position, by_name, _ = self._annotated
        positional = [
            self._model(by_position[index] if index < len(by_position) else _NONE, value)
            for index, value in enumerate(args)
        ]
        return positional, {key: self._model(by_name.get(key, _NONE), value) for key, value in kwargs.items()}

    def _model(self, model: _Model, value: Any) -> Any:
        if model.kind is None or (value is None and model.optional):
            return value
        return model.kind.model_validate(value, strict=self._strict, context=self._context)

    def _dumped(self, model: _Model, value: Any) -> Any:
        if model.kind is None or not isinstance(value, self._base):
            return value
        try:
            dumped = value.model_dump(**self._dump_kwargs)
            return dumped if self._model(model, dumped) == value else value
        # A validator of the user's, that works in a worker only: what cannot be sent is told by the encoder.
        except Exception:  # noqa: BLE001 - see above
            return value

    def _dumped_result(self, value: Any) -> Any:
        expected = self._annotated[2]
        if expected is not None and isinstance(value, self._base) and isinstance(value, expected):
            return value.model_dump(**self._dump_kwargs)
        return value


def _class(annotation: Any) -> tuple[Any, bool]:
    """Return the class that *annotation* names, None when it is none, and whether None will do instead."""
    optional = False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        others = [member for member in typing.get_args(annotation) if member is not type(None)]
        optional = len(others) == 1 and len(typing.get_args(annotation)) == 2
        annotation = others[0] if optional else None
    named = isinstance(annotation, type) and typing.get_origin(annotation) is None
    return (annotation if named else None), optional
