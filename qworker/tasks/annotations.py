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
    """Return the attributes that *annotations* give to *task*.

    Its own win over those for all tasks ("*", ``annotate_any()``). Of several annotations, the later one
    wins. Raises ConfigurationError for what is no annotation.
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
            f"task_annotations: {source!r:.200} says {attributes!r:.200}, which is not a mapping from "
            "attributes to values",
            setting="task_annotations",
        )
    return attributes
