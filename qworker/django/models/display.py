"""display: how the result of a model's method is shown in a list.

Comes from:  the models.
Goes to:     Django's admin, which reads these attributes of a method.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def shown_as(description: Any, boolean: bool = False) -> Callable[[Method], Method]:
    """Mark a method: *description* (text, translated late) heads its column. boolean: an icon is shown."""

    def mark(method: Method) -> Method:
        method.__dict__["short_description"] = description
        if boolean:
            method.__dict__["boolean"] = True
        return method

    return mark
