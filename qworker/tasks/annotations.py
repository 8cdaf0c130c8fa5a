"""Annotations: what the setting ``task_annotations`` says about a task.

Comes from:  the setting: a mapping from names to attributes, an object with ``annotate()``, the dotted name
             of one, or a list of such.
Goes to:     ``definition``, once a task.
Thread:      whoever finalizes the app.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qworker.errors import ConfigurationError
from qworker.naming import import_object

if TYPE_CHECKING:
    from qworker.tasks.task import Task


def annotations_for(annotations: object, task: Task[..., Any]) -> dict[str, Any]:
    """The attributes that *annotations* give to *task*: those for all ("*", ``annotate_any()``) first, its
    own over them.

    Of several annotations, what stands later in the list wins. Raises ConfigurationError for what is no
    annotation.
    """
    everywhere: dict[str, Any] = {}
    own: dict[str, Any] = {}
    listed = annotations if isinstance(annotations, list | tuple) else [annotations]
    for each in listed:
        if each is None:
            continue
        if isinstance(each, str):
            each = import_object(each)
        if isinstance(each, type):
            each = each()
        if isinstance(each, Mapping):
            everywhere.update(_attributes(each.get("*"), each))
            own.update(_attributes(each.get(task.name), each))
        elif hasattr(each, "annotate") or hasattr(each, "annotate_any"):
            everywhere.update(
                _attributes(each.annotate_any() if hasattr(each, "annotate_any") else None, each)
            )
            own.update(_attributes(each.annotate(task) if hasattr(each, "annotate") else None, each))
        else:
            raise ConfigurationError(
                f"task_annotations has {each!r:.200}: it takes a mapping from task names to attributes, or "
                "an object "
                "with a method annotate(task)",
                setting="task_annotations",
            )
    return {**everywhere, **own}


def _attributes(said: object, source: object) -> Mapping[str, Any]:
    if said is None:
        return {}
    if not isinstance(said, Mapping) or not all(isinstance(key, str) for key in said):
        raise ConfigurationError(
            f"task_annotations: {source!r:.200} says {said!r:.200}, which is no mapping from attributes "
            "to values",
            setting="task_annotations",
        )
    return said
