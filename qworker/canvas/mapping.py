"""Mappings: one message that calls a task many times.

Comes from:  ``task.map``, ``task.starmap``, ``task.chunks``; or the dict of a mapping.
Goes to:     the tasks celery.map and celery.starmap, which every worker has; ``groups``, for chunks.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from qworker.canvas.groups import group
from qworker.canvas.signatures import Signature, maybe_signature
from qworker.contracts import App

if TYPE_CHECKING:
    from qworker.canvas.options import SignatureOptions
    from qworker.results.group_result import GroupResult


class xmap(Signature):
    """``task(item)`` for each item of a list, in one message; its value is the list of return values."""

    __module__ = "qworker"

    __slots__ = ()

    _calls: ClassVar[str] = "celery.map"

    def __init__(
        self, task: Any, it: Iterable[Any], app: App | None = None, **options: Unpack[SignatureOptions]
    ) -> None:
        """task: a signature. it: the items. options: as for apply_async."""
        kwargs = {"task": maybe_signature(task, app), "it": list(it)}
        super().__init__(self._calls, (), kwargs, options, immutable=True, app=app)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], app: App | None) -> Any:
        """from_dict() for checked fields."""
        return Signature(fields, app=app)

    def __repr__(self) -> str:
        kwargs = self["kwargs"]
        return f"[{kwargs['task']['task']}({self._shown}) for x in {kwargs['it']!r:.100}]"

    _shown: ClassVar[str] = "x"


class xstarmap(xmap):
    """``task(*item)`` for each item of a list, in one message; its value is the list of return values."""

    __module__ = "qworker"

    __slots__ = ()

    _calls = "celery.starmap"
    _shown = "*x"


class chunks(Signature):
    """A group of ``starmap`` calls with *n* items each."""

    __module__ = "qworker"

    __slots__ = ()

    def __init__(
        self,
        task: Any,
        it: Iterable[Any],
        n: int,
        app: App | None = None,
        **options: Unpack[SignatureOptions],
    ) -> None:
        """task: a signature. it: lists of arguments. n: items in one message."""
        kwargs = {"task": maybe_signature(task, app), "it": list(it), "n": n}
        super().__init__("celery.chunks", (), kwargs, options, immutable=True, app=app)

    of_fields = xmap.of_fields

    def group(self) -> group:
        """The group of calls."""
        kwargs = self["kwargs"]
        items = iter(kwargs["it"])
        parts = iter(lambda: list(islice(items, kwargs["n"])), [])
        return group([xstarmap(kwargs["task"], part, app=self._app) for part in parts], app=self._app)

    def apply_async(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SignatureOptions],
    ) -> GroupResult[Any]:
        """Make the calls; see Task.apply_async for *options*."""
        return self.group().apply_async(args, kwargs, **{**self["options"], **options})

    def delay(self, *args: Any, **kwargs: Any) -> GroupResult[Any]:  # type: ignore[override]
        """Make the calls."""
        return self.apply_async(args, kwargs)

    def apply(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> GroupResult[Any]:
        """Run all calls in this process, as a worker would; see Task.apply."""
        return self.group().apply(args, kwargs, **{**self["options"], **options})

    def __call__(self, *args: Any, **options: Unpack[SignatureOptions]) -> GroupResult[Any]:
        """Make the calls."""
        return self.apply_async(**options)

    @classmethod
    def apply_chunks(cls, task: Any, it: Iterable[Any], n: int, app: App | None = None) -> GroupResult[Any]:
        """Make the calls of *task* with *it*, *n* items in each message."""
        return cls(task, it, n, app=app)()
