"""The parts of async_iter: cleanup keeps parts of unfinished calls, and nothing is kept for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import caches
from django.db import OperationalError
from django.test import override_settings
from django.utils import timezone

from qworker.django.clusters.retention import sweep
from qworker.django.execution import parts
from qworker.django.execution.calls import package_of
from qworker.django.execution.endings import end
from qworker.django.execution.running import note, values_of
from qworker.django.models import Part, Success, Task
from qworker.django.tasks import async_task, count_group, delete_group, fetch
from qworker.django.transports import task_rows

WHOLE = "ab" * 16
COUNT = 4


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    caches["default"].clear()


def ended(number: int, **more: Any) -> dict[str, Any]:
    """Return the package of a successful call; its result is its number."""
    options = {"id": f"{number:032}", "group": WHOLE, "iter_count": COUNT, "iter_cached": False}
    package = package_of("math.sqrt", (number,), {}, options | more)
    note(package, True, number)
    return package


def limited(per: str | None = None) -> Callable[[], None]:
    def clean() -> None:
        with override_settings(Q_CLUSTER={"name": "default", "save_limit": 1, "save_limit_per": per}):
            async_task("math.sqrt", 4, sync=True)
            sweep()

    return clean


CLEANERS: dict[str, Callable[[], object]] = {
    "save_limit": limited(),
    "save_limit per group": limited("group"),
    "save_limit per func": limited("func"),
    "save_limit per name": limited("name"),
    "what is old": parts.tidy,
    "the cache is cleared": lambda: caches["default"].clear(),
    "all tasks are deleted": lambda: Task.objects.all().delete(),
    "all successes are deleted": lambda: Success.objects.all().delete(),
    "the group is deleted": lambda: delete_group(WHOLE, tasks=True),
}


@pytest.mark.filterwarnings("ignore:cached results are stored in:RuntimeWarning")
@pytest.mark.parametrize("clean", CLEANERS.values(), ids=CLEANERS.keys())
@pytest.mark.parametrize("cached", [None, True])
def test_cleanup_keeps_parts_of_unfinished_iterables(
    clean: Callable[[], object], cached: bool | None
) -> None:
    for number in range(COUNT):
        assert fetch(WHOLE, cached=cached) is None
        end(ended(number, iter_cached=cached))
        if number < COUNT - 1:
            clean()
    assert fetch(WHOLE, cached=cached).result == list(range(COUNT))
    assert [part.pk for part in Part.objects.all()] == [WHOLE]


def test_parts_are_not_stored_as_tasks() -> None:
    end(ended(0))
    assert not Task.objects.exists()
    assert count_group(WHOLE) == 0


def test_missing_part_fails_the_whole() -> None:
    for number in range(COUNT):
        Part.objects.filter(pk=f"{1:032}").delete()
        end(ended(number))
    whole = fetch(WHOLE)
    assert not whole.success
    assert whole.result == f"1 of {COUNT} results are missing"


def test_repeated_part_is_counted_once_and_keeps_its_success() -> None:
    for number in (0, 1, 0, 1, 2):
        end(ended(number))
    failed = ended(1)
    note(failed, False, "it was killed")
    end(failed)
    assert fetch(WHOLE) is None
    end(ended(3))
    assert fetch(WHOLE).success


def test_failed_part_is_replaced_by_a_later_success() -> None:
    failed = ended(0)
    note(failed, False, "it was killed")
    end(failed)
    for number in range(COUNT):
        end(ended(number))
    assert fetch(WHOLE).success


def test_repeated_parts_after_the_end_are_ignored() -> None:
    for number in range(COUNT):
        end(ended(number))
    Task.objects.all().delete()  # it must not be created again
    for number in range(COUNT):
        end(ended(number))
    assert fetch(WHOLE) is None
    assert Part.objects.count() == 1


def test_interrupted_collection_is_repeated_with_the_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(COUNT - 1):
        end(ended(number))

    def fail_store(*_: Any) -> None:
        raise OperationalError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(task_rows, "store", fail_store)
        with pytest.raises(Exception, match="gone"):
            end(ended(COUNT - 1))
    assert fetch(WHOLE) is None
    end(ended(COUNT - 1))
    assert fetch(WHOLE).result == list(range(COUNT))


def silent_for(days: float) -> None:
    Part.objects.update(changed=timezone.now() - timedelta(days=days))


def test_parts_stored_as_tasks_by_an_older_version_are_collected() -> None:
    """During an upgrade, both kinds exist, and neither version finds all of them."""
    end(ended(0))
    for number in (1, 2):
        task_rows.save(values_of(ended(number)))
    parts.tidy()
    assert fetch(WHOLE) is None
    assert not Task.objects.exists()
    task_rows.save(values_of(ended(1)))  # delivered once more there
    parts.tidy()
    assert not Task.objects.exists()
    task_rows.save(values_of(ended(3)))
    parts.tidy()
    whole = fetch(WHOLE)
    assert (whole.success, sorted(whole.result)) == (True, list(range(COUNT)))
    assert [part.pk for part in Part.objects.all()] == [WHOLE]
    parts.tidy()
    assert Task.objects.count() == 1


class Unpicklable:
    """Unpickles to a value that cannot be pickled."""

    def __reduce__(self) -> Any:
        return threading.Lock, ()


def test_unpicklable_part_of_an_older_version_is_kept() -> None:
    end(ended(0))
    task_rows.save({**values_of(ended(1)), "result": Unpicklable()})
    parts.tidy()
    assert Part.objects.get(pk=WHOLE).ended == 1
    assert Task.objects.filter(group=WHOLE).exists()


def test_unfinished_iterable_fails_eventually() -> None:
    end(ended(0))
    silent_for(parts.SILENT_DAYS - 1)
    assert parts.tidy() == 0
    silent_for(parts.SILENT_DAYS + 1)
    assert parts.tidy() == 1
    assert fetch(WHOLE).result == f"{COUNT - 1} of {COUNT} results are missing"
    end(ended(1))
    assert [part.ended for part in Part.objects.all()] == [Part.COLLECTED]


def test_collected_parts_are_deleted_later() -> None:
    for number in range(COUNT):
        end(ended(number))
    silent_for(parts.COLLECTED_DAYS - 1)
    assert parts.tidy() == 0
    silent_for(parts.COLLECTED_DAYS + 1)
    assert parts.tidy() == 1
    assert not Part.objects.exists()


def test_undecodable_iterable_is_given_up() -> None:
    end(ended(0))
    Part.objects.filter(pk=WHOLE).update(row=b"no package")
    silent_for(parts.SILENT_DAYS + 1)
    assert parts.tidy() == 1
    assert [part.pk for part in Part.objects.all()] == [WHOLE]


def test_undecodable_part_fails_the_whole() -> None:
    for number in range(COUNT - 1):
        end(ended(number))
    unreadable = task_rows.pack({"id": "x", "result": 1}, "default").replace(b"gA", b"!!")
    Part.objects.filter(pk=f"{1:032}").update(row=unreadable)
    end(ended(COUNT - 1))
    assert "cannot be read" in fetch(WHOLE).result
