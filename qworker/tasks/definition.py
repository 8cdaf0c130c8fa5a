"""Definition: makes tasks of functions and classes.

Comes from:  ``@app.task``, ``@shared_task``, ``app.register_task``; the app's settings, once it is finalized.
Goes to:     the app's registry.
Thread:      the one that imports the module of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MethodType
from typing import TYPE_CHECKING, Any

from qworker.contracts import App
from qworker.errors import ConfigurationError
from qworker.naming import import_object
from qworker.publishing.arguments import argument_checker, is_coroutine_function, is_generator_function
from qworker.tasks import options as task_options
from qworker.tasks.task import AsyncTask, Task

if TYPE_CHECKING:
    from qworker.tasks.task import Task

AnyTask = Task[..., Any]

_OURS = frozenset({"run", "origin"})
"""Methods of Task that an option or annotation cannot replace."""


def make_task(
    app: App,
    function: Callable[..., Any],
    *,
    name: str | None = None,
    bind: bool = False,
    base: type[AnyTask] | None = None,
    pydantic: bool = False,
    pydantic_strict: bool = False,
    pydantic_context: Mapping[str, Any] | None = None,
    pydantic_dump_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> AnyTask:
    """Make a task of *function*.

    - name (text): None derives it from the module and the function.
    - bind (bool): the function gets the task as its first argument.
    - base: the class of the task; None for the app's.
    - pydantic (bool): also let direct callers pass plain data for models and get plain data, as in Celery.
    - pydantic_strict, pydantic_context, pydantic_dump_kwargs: see ModelOptions.
    - options: those of task_options.OPTIONS; methods of Task (``on_failure=…``), which get the task as first
      argument; and attributes of *base*.

    Raises ConfigurationError for an unknown option or an invalid value.
    """
    if not callable(function):
        raise ConfigurationError(
            f"@app.task decorates functions, not {function!r}: options are given by name"
        )
    if base is not None and not (isinstance(base, type) and issubclass(base, Task)):
        raise ConfigurationError(f"task {function}: base={base!r} must be a subclass of qworker.Task")
    name = name or app.gen_task_name(
        getattr(function, "__name__", type(function).__name__), function.__module__
    )
    _refuse_generator(name, function)
    is_async = is_coroutine_function(function)
    methods, options = _split(name, base or app.Task, options)
    task = _class(name, base or app.Task, is_async, methods)()
    run = MethodType(function, task) if bind else function
    if pydantic:
        from qworker.tasks.typed_calls import by_models

        run = by_models(task, name, run, pydantic_strict, pydantic_context, pydantic_dump_kwargs)
    task.__dict__.update(
        name=name,
        app=app,
        bind=bind,
        run=run,
        is_async=is_async,
        declared=None if base else (methods, options),
        check_arguments=argument_checker(function, bind),
        __wrapped__=run,
        __doc__=function.__doc__,
        __module__=function.__module__,
        __name__=getattr(function, "__name__", name),
        __qualname__=getattr(function, "__qualname__", name),
    )
    _set_options(task, app, options)
    return task


def _refuse_generator(name: str, function: Callable[..., Any]) -> None:
    if is_generator_function(function):
        raise ConfigurationError(
            f"task {name} contains a yield, so calling it would run none of its code: return a list of the "
            "values, or send a call for each of them"
        )


def adopt(task_or_class: AnyTask | type[AnyTask], app: App) -> AnyTask:
    """Make a task of *app* from a class-based task: an instance, or its class."""
    task = task_or_class() if isinstance(task_or_class, type) else task_or_class
    name = task.name or app.gen_task_name(type(task).__qualname__, type(task).__module__)
    _refuse_generator(name, task.run)
    is_async = is_coroutine_function(task.run)
    task.__class__ = _class(name, type(task), is_async, {})
    task.__dict__.update(
        name=name,
        app=app,
        bind=True,
        is_async=is_async,
        check_arguments=argument_checker(type(task).run, bound=True),
    )
    _set_options(task, app, {})
    return task


def bind(task: AnyTask, app: App) -> None:
    """Apply the annotations of *app* to *task*, and its settings to options that are None. Called once, when
    the app is finalized."""
    annotations = annotations_for(app.conf.task_annotations, task)
    if annotations:
        methods, options = _split(task.name, type(task), annotations)
        task.__dict__.update(task_options.parse(task.name, options, app.middleware_options))
        task.__class__ = _class(task.name, type(task), task.is_async, methods)
    for option, setting in task_options.FROM_SETTINGS.items():
        if getattr(task, option) is None:
            setattr(task, option, getattr(app.conf, setting))
    on_bound: Any = task.on_bound  # takes the QWorker
    on_bound(app)


def task_class(name_or_class: str | type[AnyTask]) -> type[AnyTask]:
    """Return the class of tasks given as a class or dotted name. Raises ConfigurationError otherwise."""
    kind = import_object(name_or_class) if isinstance(name_or_class, str) else name_or_class
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise ConfigurationError(
            f"task_cls={name_or_class!r} must be a subclass of qworker.Task, or its dotted name"
        )
    return kind


def change_class(app: App, tasks: Mapping[str, AnyTask], name_or_class: str | type[AnyTask]) -> type[AnyTask]:
    """Change the class of the *tasks* that were made without ``base=``; return the class.

    Raises ConfigurationError if the app is finalized, because its tasks may have been called.
    """
    if app.finalized:
        raise ConfigurationError(
            "app.Task is set too late, since the app's tasks have been used already: set it where the app "
            "is made"
        )
    base = task_class(name_or_class)
    for task in tasks.values():
        if task.declared is not None:
            methods, options = task.declared
            task.__class__ = _class(task.name, base, task.is_async, methods)
            base.__init__(task)
            _set_options(task, app, options)
    return base


# -- the class of one task --


@cache
def _methods() -> frozenset[str]:
    return frozenset(
        key
        for key, value in vars(Task).items()
        if callable(value) and not key.startswith("_") and key not in _OURS
    )


def _split(
    name: str, base: type[AnyTask], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split *options* into the attributes of the task's class and the rest."""
    own: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    methods = _methods()
    for key, value in options.items():
        if key in methods or key == "__call__":
            if not callable(value):
                raise ConfigurationError(
                    f"task {name}: {key}={value!r} must be a function; it gets the task first"
                )
            own[key] = value
        elif key not in task_options.OPTIONS and hasattr(base, key) and not hasattr(Task, key):
            own[key] = value
        else:
            rest[key] = value
    return own, rest


def _class(name: str, base: type[AnyTask], is_async: bool, own: dict[str, Any]) -> type[AnyTask]:
    """Return the class of the task *name*: *base* with the attributes *own*, and AsyncTask if async."""
    bases: tuple[type[AnyTask], ...] = (base,)
    if is_async and not issubclass(base, AsyncTask):
        bases = (AsyncTask,) if base is Task else (base, AsyncTask)
    kind = bases[0]
    if own or len(bases) > 1:
        kind = type(base.__name__, bases, {**_looks(base), **own})
    if kind.own_call and is_coroutine_function(kind.__call__) is not is_async:
        raise ConfigurationError(
            f"task {name} is an async def, but __call__ of its class {base.__qualname__} is not, and would "
            "return before the task begins. Give it a base= whose async def __call__ awaits self.run(…)"
            if is_async
            else f"__call__ of {base.__qualname__}, the class of the task {name}, is an async def, but the "
            "task is not: give it another base="
        )
    return kind


def _looks(base: type[AnyTask]) -> dict[str, Any]:
    return {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}


def _set_options(task: AnyTask, app: App, options: Mapping[str, Any]) -> None:
    """Set the options of *task*: those of its class, overridden by *options*."""
    base = type(task)
    names = task_options.OPTIONS if base is not Task else ()
    inherited = {key: getattr(base, key) for key in names if getattr(base, key) is not getattr(Task, key)}
    for key in task_options.OPTIONS:
        task.__dict__.pop(key, None)
    task.__dict__.update(task_options.parse(task.name, {**inherited, **options}, app.middleware_options))


# -- Annotations: the setting ``task_annotations`` --
# Thread: the one that finalizes the app.


def annotations_for(annotations: object, task: Task[..., Any]) -> dict[str, Any]:
    """Return the attributes that *annotations* set on *task*.

    Annotations for the task override those for all tasks ("*", ``annotate_any()``); later ones override
    earlier ones. Raises ConfigurationError for an invalid annotation.
    """
    for_all: dict[str, Any] = {}
    for_task: dict[str, Any] = {}
    listed = annotations if isinstance(annotations, list | tuple) else [annotations]
    for annotation in listed:
        if annotation is None:
            continue
        if isinstance(annotation, str):
            annotation = import_object(annotation)
        if isinstance(annotation, type):
            annotation = annotation()
        if isinstance(annotation, Mapping):
            for_all.update(_attributes(annotation.get("*"), annotation))
            for_task.update(_attributes(annotation.get(task.name), annotation))
        elif hasattr(annotation, "annotate") or hasattr(annotation, "annotate_any"):
            if hasattr(annotation, "annotate_any"):
                for_all.update(_attributes(annotation.annotate_any(), annotation))
            if hasattr(annotation, "annotate"):
                for_task.update(_attributes(annotation.annotate(task), annotation))
        else:
            raise ConfigurationError(
                f"task_annotations has {annotation!r:.200}: use a mapping from task names to "
                "attributes, or an object with a method annotate(task)",
                setting="task_annotations",
            )
    return {**for_all, **for_task}


def _attributes(attributes: object, source: object) -> Mapping[str, Any]:
    if attributes is None:
        return {}
    if not isinstance(attributes, Mapping) or not all(isinstance(key, str) for key in attributes):
        raise ConfigurationError(
            f"task_annotations: {source!r:.200} has {attributes!r:.200}, which is not a mapping from "
            "attributes to values",
            setting="task_annotations",
        )
    return attributes
