"""The functions for calls, with ``sync``: options, results, groups, iterables, chains."""

from __future__ import annotations

import os
import pickle
import subprocess
import threading
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from qworker.django import tasks
from qworker.django.brokers import get_broker
from qworker.django.execution import cached as cached_results
from qworker.django.execution import endings
from qworker.django.execution.running import run
from qworker.django.models import OrmQ, Schedule, Task
from qworker.django.signals import post_execute, pre_enqueue
from qworker.django.signing import SignedPackage
from qworker.django.tasks import (
    Async,
    AsyncTask,
    Chain,
    Iter,
    async_chain,
    async_iter,
    async_task,
    count_group,
    delete_cached,
    delete_group,
    fetch,
    fetch_group,
    queue_size,
    result,
    result_group,
)

hooked: list[Any] = []
UNKNOWN = "0" * 32


def hook(task: Task) -> None:
    hooked.append(task)


def given(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def broken(*args: Any) -> Any:
    raise LookupError(*args)


def violate_unique() -> None:
    for _ in range(2):
        Schedule.objects.create(pk=7, name="inside", func="math.sqrt")


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    hooked.clear()
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def sync() -> Iterator[None]:
    """Set sync in Q_CLUSTER."""
    with override_settings(Q_CLUSTER={"name": "default", "sync": True}):
        yield


@pytest.fixture
def seen() -> Iterator[list[dict[str, Any]]]:
    """Collect all packages."""
    found: list[dict[str, Any]] = []

    def note(sender: Any, task: dict[str, Any], **_: Any) -> None:
        found.append(task)

    pre_enqueue.connect(note)
    yield found
    pre_enqueue.disconnect(note)


# -- one task --


def test_task_gets_a_uuid_and_a_name_of_words() -> None:
    identity = async_task("math.copysign", 2, -2, sync=True)
    task = fetch(identity)
    assert len(identity) == 32
    assert int(identity, 16)
    assert len(task.name.split("-")) == 4
    assert (task.func, task.args, task.kwargs, task.result, task.success) == (
        "math.copysign", (2, -2), {}, -2.0, True
    )  # fmt: skip
    assert task.started <= task.stopped


def test_function_is_sent_by_path() -> None:
    task = fetch(async_task(given, 1, a=2, sync=True))
    assert task.func == f"{__name__}.given"
    assert task.result == ((1,), {"a": 2})


def test_results_are_found_by_id_or_name() -> None:
    identity = async_task("math.sqrt", 9, sync=True)
    name = fetch(identity).name
    assert result(identity) == result(name) == 3
    assert fetch(name).id == identity


def test_task_name_can_be_set() -> None:
    async_task("math.sqrt", 9, task_name="nine", sync=True)
    async_task("math.sqrt", 16, q_options={"task_name": "sixteen"}, sync=True)
    assert (result("nine"), result("sixteen")) == (3, 4)


@pytest.mark.parametrize("value", [0, "", False, [], None])
@pytest.mark.parametrize("cached", [False, True])
def test_falsy_result_is_returned(value: Any, cached: bool) -> None:
    identity = async_task("copy.copy", value, sync=True, cached=cached)
    assert result(identity, wait=60_000, cached=cached) == value
    assert fetch(identity, wait=60_000, cached=cached).success


@pytest.mark.filterwarnings("ignore:cached results are stored in:RuntimeWarning")
@pytest.mark.parametrize("cached", [False, True])
def test_unfinished_task_has_no_result(cached: bool) -> None:
    assert result(UNKNOWN, cached=cached) is None
    assert fetch(UNKNOWN, cached=cached) is None
    assert result("no-such-name", wait=20, cached=cached) is None


@pytest.mark.filterwarnings("ignore:cached results are stored in:RuntimeWarning")
@pytest.mark.parametrize("text", ["\ud800", "\0", "\ud800" + "0" * 31])
def test_invalid_id_is_unknown(text: str, cached: bool) -> None:
    assert result(text, wait=20, cached=cached) is None
    assert fetch(text, wait=20, cached=cached) is None
    assert async_to_sync(tasks.aresult)(text, wait=20, cached=cached) is None
    if not cached:
        assert result_group(text, wait=20) is None
        assert (count_group(text), delete_group(text), delete_group(text, tasks=True)) == (0, 0, 0)


def test_failure_is_stored_with_its_error() -> None:
    task = fetch(async_task("my.buggy.code", sync=True))
    assert not task.success
    assert task.result.startswith("No module named 'my'")
    assert "Traceback" in task.result


@pytest.mark.parametrize(("func", "success"), [(given, True), (broken, False)])
def test_hook_gets_the_task_after_success_and_failure(func: Any, success: bool) -> None:
    identity = async_task(func, 1, hook=hook, sync=True)
    async_task(func, 1, hook=f"{__name__}.hook", sync=True)
    assert [task.success for task in hooked] == [success, success]
    assert hooked[0].id == identity
    assert hooked[0].args == (1,)
    assert Task.objects.get(id=identity).hook == f"{__name__}.hook"


@pytest.mark.parametrize("options", [{"save": False}, {"cached": True}])
def test_hook_is_called_once_without_a_stored_row(options: dict[str, Any]) -> None:
    identity = async_task("math.sqrt", 4, hook=hook, sync=True, **options)
    assert [task.result for task in hooked] == [2]
    assert not Task.objects.filter(id=identity).exists()
    hooked[0].save()
    assert len(hooked) == 1


def test_save_overrides_the_settings() -> None:
    assert fetch(async_task("math.sqrt", 4, save=False, sync=True)) is None
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": -1}):
        assert fetch(async_task("math.sqrt", 4, sync=True)) is None
        assert fetch(async_task("math.sqrt", 4, save=True, sync=True)).result == 2
        assert not fetch(async_task(broken, sync=True)).success


def test_options_are_not_passed_to_the_function() -> None:
    options = {"hook": hook, "group": "g", "save": True, "timeout": 3, "cached": False, "task_name": "n"}
    more = {"ack_failure": True, "broker": get_broker(), "cluster": "default"}
    assert result(async_task(given, sync=True, a=1, **options, **more)) == ((), {"a": 1})


def test_q_options_allow_keywords_of_the_same_names() -> None:
    options = {"group": "math", "hook": None, "sync": True}
    task = fetch(async_task(given, group="mine", hook="mine", task_name="seven", q_options=options))
    assert (task.group, task.hook, task.name) == ("math", None, "seven")
    assert task.result == ((), {"group": "mine", "hook": "mine"})
    assert options == {"group": "math", "hook": None, "sync": True}  # the caller's dict is not changed


@pytest.mark.parametrize(("given", "told", "changed"), [({}, None, True), ({"sync": True}, True, False)])
def test_pre_enqueue_receivers_can_change_sync(given: Any, told: Any, changed: bool) -> None:
    hooked: list[Any] = []

    def observer(task: dict[str, Any], **_: Any) -> None:
        hooked.append(task.get("sync"))
        task["sync"] = changed

    pre_enqueue.connect(observer)
    try:
        identity = async_task("math.sqrt", 4, **given)
    finally:
        pre_enqueue.disconnect(observer)
    assert hooked == [told]
    assert (fetch(identity) is not None) == changed
    assert OrmQ.objects.count() == (not changed)


@pytest.mark.parametrize("options", [{}, None])
def test_empty_q_options_keep_other_options(options: Any) -> None:
    assert fetch(async_task(given, group="mine", sync=True, q_options=options)).group == "mine"


@pytest.mark.parametrize(
    "options",
    [{"timeout": "3"}, {"timeout": float("nan")}, {"timeout": timedelta(seconds=3)}, {"cached": -1},
     {"cached": "soon"}, {"cached": float("inf")}, {"cached": [1]}],
    ids=str,
)  # fmt: skip
def test_invalid_seconds_are_refused_by_the_call(options: dict[str, Any]) -> None:
    (name,) = options
    for call, given in ((async_task, 4), (async_iter, [4])):
        with pytest.raises(ValueError, match=f"{name}=.* number of seconds"):
            call("math.sqrt", given, **options)
    assert OrmQ.objects.count() == 0


def test_cache_time_is_at_least_a_second() -> None:
    assert cached_results.seconds_of(0.2) == 1
    assert (
        cached_results.seconds_of(-1) == 1
    )  # no cache keeps it otherwise, and it would be requeued again and again


def test_package_contains_the_timeout(seen: list[dict[str, Any]]) -> None:
    async_task("math.sqrt", 4, timeout=11)
    assert seen[0]["timeout"] == 11
    assert '"timelimit":[11,null]' in OrmQ.objects.get().headers


def test_broker_is_not_sent(seen: list[dict[str, Any]]) -> None:
    broker = get_broker("other")
    for number in range(3):
        async_task("math.sqrt", number, broker=broker)
    assert "broker" not in seen[0]
    assert broker.queue_size() == queue_size(broker) == 3
    assert queue_size() == 0


def test_cluster_selects_the_queue() -> None:
    async_task("math.sqrt", 4, cluster="other")
    assert (queue_size(), queue_size(get_broker("other"))) == (0, 1)


@pytest.mark.usefixtures("sync")
@pytest.mark.parametrize("call", [async_task, lambda func: async_iter(func, [()])])
def test_failed_statement_in_a_task_keeps_the_callers_transaction(call: Any) -> None:
    """In a TestCase the caller got TransactionManagementError, and the failure was not stored."""
    with transaction.atomic():
        Schedule.objects.create(name="before", func="math.sqrt")
        identity = call(violate_unique)
        found = fetch(identity)
        assert not found.success
        assert "UNIQUE" in str(found.result)
        assert [each.name for each in Schedule.objects.all()] == ["before"]


@pytest.mark.usefixtures("sync")
def test_sync_setting_runs_all_calls_immediately() -> None:
    assert result(async_task("math.sqrt", 4)) == 2
    assert result_group(async_chain([("math.sqrt", (4,)), ("math.sqrt", (9,))])) == [2, 3]
    assert result(async_iter("math.sqrt", [4, 9])) == [2, 3]
    assert queue_size() == 0


def test_sync_needs_no_broker_and_no_process() -> None:
    with override_settings(Q_CLUSTER={"name": "default", "redis": "redis://127.0.0.1:1/0"}):
        assert result(async_task("os.getpid", sync=True)) == os.getpid()


def test_result_of_a_shell_command() -> None:
    found = result(async_task("subprocess.run", ["true"], stdout=subprocess.PIPE, sync=True))
    assert isinstance(found, subprocess.CompletedProcess)
    assert (found.args, found.returncode, found.stdout) == (["true"], 0, b"")


def test_pre_enqueue_receivers_can_change_the_task() -> None:
    def change(sender: Any, task: dict[str, Any], **_: Any) -> None:
        assert sender == "django_q"
        task["args"] = (16,)

    pre_enqueue.connect(change)
    try:
        assert result(async_task("math.sqrt", 4, sync=True)) == 4
    finally:
        pre_enqueue.disconnect(change)


def test_waiting_makes_few_queries() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert result(UNKNOWN, wait=300) is None
    assert len(queries) <= 10


# -- the cache --


def test_cached_task_is_found_by_id_and_name() -> None:
    identity = async_task("math.floor", 100.5, cached=10, sync=True)
    task = fetch(identity, cached=True)
    assert result(identity, wait=50, cached=True) == 100
    assert result(task.name, cached=True) == 100
    assert result(identity) is None
    task.save()
    assert result(identity) == 100


def test_forged_cache_entries_are_ignored() -> None:
    """Write access to the cache includes signed texts of both, but not the key."""
    identity = async_task("math.floor", 100.5, cached=True, task_name="mine", sync=True)
    other = async_task("math.floor", 66.5, cached=True, task_name="other", sync=True)
    ours = cache.get(cached_results.key(identity))
    cache.set(cached_results.key(identity), cache.get(cached_results.key(other)))
    assert fetch(identity, cached=True) is fetch("mine", cached=True) is None
    waits = {"id": identity, "name": "mine", "func": "math.floor", "args": (), "kwargs": {}, "started": None}
    cache.set(cached_results.key(identity), SignedPackage.dumps(waits))
    assert fetch(identity, cached=True) is None
    cache.set(cached_results.key(identity), b64encode(pickle.dumps({"id": identity})).decode())
    assert fetch(identity, cached=True) is None
    cache.set(cached_results.key(identity), ours)
    assert result(identity, cached=True) == result("mine", cached=True) == 100


def test_cached_task_can_be_deleted() -> None:
    identity = async_task("math.floor", 1.5, cached=True, task_name="floor", sync=True)
    assert delete_cached(identity, broker=get_broker())
    assert result(identity, cached=True) is result("floor", cached=True) is None
    assert not delete_cached(identity)


def test_cached_setting_is_the_default() -> None:
    with override_settings(Q_CLUSTER={"name": "default", "cached": 60}):
        identity = async_task("math.sqrt", 4, group="g", sync=True)
        assert result(identity) == 2
        assert result_group("g") == [2]
        assert count_group("g") == 1
        assert delete_group("g", tasks=True) == 1
        assert result(identity) is None
        kept = async_task("math.sqrt", 4, cached=False, sync=True)
        assert result(kept, cached=False) == 2
    assert not Task.objects.filter(id=identity).exists()


# -- groups --


@pytest.fixture(params=[False, True], ids=["database", "cache"])
def cached(request: pytest.FixtureRequest) -> bool:
    """Whether results are stored in the cache."""
    return bool(request.param)


@pytest.fixture
def group(cached: bool) -> str:
    """A group of two successes and one failure."""
    for func, number in ((given, 1), (broken, 2), (given, 3)):
        async_task(func, number, group="modf", cached=cached, sync=True)
    return "modf"


def test_result_group_includes_failures_on_request(group: str, cached: bool) -> None:
    found = result_group(group, cached=cached)
    assert sorted(each[0][0] for each in found) == [1, 3]
    assert len(result_group(group, failures=True, cached=cached)) == 3


def test_fetch_group_excludes_failures_on_request(group: str, cached: bool) -> None:
    assert {task.success for task in fetch_group(group, cached=cached)} == {True, False}
    assert [task.success for task in fetch_group(group, failures=False, cached=cached)] == [True, True]


def test_count_group_counts_all_or_failures(group: str, cached: bool) -> None:
    assert count_group(group, cached=cached) == 3
    assert count_group(group, failures=True, cached=cached) == 1


def test_fetch_group_returns_a_queryset() -> None:
    async_task(broken, group="g", sync=True)
    async_task("math.sqrt", 4, group="g", sync=True)
    assert fetch_group("g").exclude(success=False).get().result == 2


def test_delete_group_removes_the_label(group: str, cached: bool) -> None:
    one = fetch_group(group, cached=cached)[0].id
    assert delete_group(group, cached=cached) == 3
    assert not count_group(group, cached=cached)
    assert fetch(one, cached=cached) is not None


def test_delete_group_can_delete_tasks(group: str, cached: bool) -> None:
    one = fetch_group(group, cached=cached)[0]
    assert delete_group(group, tasks=True, cached=cached) == 3
    assert fetch(one.id, cached=cached) is fetch(one.name, cached=cached) is None


def test_reached_count_is_returned_at_once(group: str, cached: bool) -> None:
    assert len(result_group(group, count=3, cached=cached)) == 2
    assert len(fetch_group(group, count=3, cached=cached)) == 3
    assert len(result_group(group, count=2, wait=-1, cached=cached)) == 2


def test_reached_count_may_exceed_save_limit(
    group: str, cached: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with override_settings(Q_CLUSTER={"name": "default", "sync": True, "save_limit": 1}):
        for wait in (0, -1, 30):
            assert len(result_group(group, count=3, wait=wait, cached=cached)) == 2
            assert len(fetch_group(group, count=3, wait=wait, cached=cached)) == 3
            assert len(async_to_sync(tasks.aresult_group)(group, count=3, wait=wait, cached=cached)) == 2
    assert not caplog.messages


def test_missing_count_is_waited_for_until_the_timeout(group: str, cached: bool) -> None:
    assert len(result_group(group, count=9, wait=30, cached=cached)) == 2
    assert len(fetch_group(group, count=9, wait=30, cached=cached)) == 3


@pytest.mark.filterwarnings("ignore:cached results are stored in:RuntimeWarning")
def test_unknown_group_is_none_or_empty(cached: bool) -> None:
    assert result_group("nobody", wait=20, cached=cached) is None
    assert not fetch_group("nobody", cached=cached)
    assert not count_group("nobody", cached=cached)
    assert not delete_group("nobody", cached=cached)


def test_waiting_for_more_than_save_limit_warns(caplog: pytest.LogCaptureFixture) -> None:
    for count in (250, 251):
        assert not result_group("g", count=count, wait=1)
    (warning,) = caplog.messages
    assert warning.startswith("waiting for 251 tasks of the group 'g', but save_limit keeps only 250")


@pytest.mark.parametrize("wait", [0, -1])
def test_waiting_for_ever_for_more_than_save_limit_is_refused(wait: int) -> None:
    for ask in (result_group, fetch_group, async_to_sync(tasks.aresult_group)):
        with pytest.raises(ValueError, match=r"251 tasks .* keeps only 250 .* Increase Q_CLUSTER"):
            ask("g", count=251, wait=wait)


LOCAL = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
DUMMY = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
CALLS: dict[str, Callable[[], Any]] = {
    "async_task": lambda: async_task("math.sqrt", 4, cached=True),
    "seconds": lambda: async_task("math.sqrt", 4, q_options={"cached": 60}),
    "async_iter": lambda: async_iter("math.sqrt", [4, 9], cached=True),
    "async_chain": lambda: async_chain([("math.sqrt", (4,))], cached=True),
    "result": lambda: result(UNKNOWN, wait=1, cached=True),
    "aresult": lambda: async_to_sync(tasks.aresult)(UNKNOWN, wait=1, cached=True),
    "result_group": lambda: result_group("nobody", wait=1, cached=True),
    "aresult_group": lambda: async_to_sync(tasks.aresult_group)("nobody", wait=1, cached=True),
    "AsyncTask": lambda: AsyncTask("math.sqrt", 4, cached=True).run(),
    "Chain": lambda: Chain([("math.sqrt", (4,))], cached=True).run(),
}


@pytest.mark.parametrize(("caches", "said"), [(LOCAL, "LocMemCache"), (DUMMY, "DummyCache")])
@pytest.mark.parametrize("call", CALLS)
def test_cache_that_is_not_shared_warns(caches: dict[str, Any], said: str, call: str) -> None:
    """The warning points to the calling line, and names the cache."""
    settings = override_settings(CACHES=caches, Q_CLUSTER={"name": "default", "sync": False})
    with settings, pytest.warns(RuntimeWarning, match=f"the cache 'default', a {said}") as told:
        CALLS[call]()
    assert {warning.filename for warning in told} & {__file__} or call.startswith("aresult")
    assert len(told) == 1


def test_sync_calls_may_use_a_local_cache() -> None:
    with override_settings(CACHES=LOCAL, Q_CLUSTER={"name": "default"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result(async_task("math.sqrt", 4, cached=True, sync=True), cached=True) == 2
    with override_settings(CACHES=DUMMY), pytest.warns(RuntimeWarning, match="DummyCache"):
        cached_results.warn_unshared(True)


def test_count_without_timeout_blocks_until_reached() -> None:
    looked = threading.Event()

    def work() -> None:
        looked.wait(30)
        for number in range(3):
            async_task("math.sqrt", number, group="g", cached=True, sync=True)

    thread = threading.Thread(target=work)
    thread.start()
    looked.set()
    assert len(result_group("g", count=3, cached=True)) == 3
    thread.join()


def test_task_has_methods_for_its_group() -> None:
    for number in (4, 9):
        async_task("math.sqrt", number, group="g", sync=True)
    task = fetch_group("g")[0]
    assert sorted(task.group_result()) == [2, 3]
    assert (task.group_count(), task.group_count(failures=True)) == (2, 0)
    task.group_delete()
    assert count_group("g") == 0


# -- AsyncTask --


def test_async_task_can_be_changed_and_run_again() -> None:
    a = AsyncTask("math.floor", 1.5, group="math", sync=True)
    assert (a.id, a.started, a.result(), a.fetch(), a.result_group()) == ("", False, None, None, None)
    a.cached = True
    first = a.run()
    assert (a.id, a.started, a.result(wait=-1)) == (first, True, 1)
    a.args = (2.5,)
    assert (a.started, a.result(), a.fetch(), a.fetch_group()) == (False, None, None, None)
    a.run()
    assert a.result(wait=10) == 2
    assert a.fetch().args == (2.5,)
    assert sorted(a.result_group(count=2)) == [1, 2]
    assert len(a.fetch_group(count=2, wait=10)) == 2
    assert Async is AsyncTask


CHANGES: dict[str, Any] = {
    "func": "math.ceil", "args": (1,), "kwargs": {}, "broker": None, "sync": True, "save": True,
    "hook": hook, "group": "other", "cached": False,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kwargs", [{"sync": True}, {"q_options": {"sync": True}}], ids=["keywords", "dict"])
def test_changing_an_attribute_resets_the_result(name: str, kwargs: dict[str, Any]) -> None:
    a = AsyncTask("math.floor", 1.5, **kwargs)
    a.run()
    assert a.result() == 1
    setattr(a, name, CHANGES[name])
    assert getattr(a, name) == CHANGES[name]
    assert not a.started
    assert a.result() is None


def test_async_task_reads_options_from_q_options() -> None:
    a = AsyncTask("math.floor", 1.5, q_options={"group": "g", "sync": True})
    assert (a.group, a.sync, a.save, a.cached) == ("g", True, None, False)
    a.hook = hook
    assert a.kwargs["q_options"]["hook"] is hook
    a.run()
    assert hooked[0].result == 1


# -- iterables --


def test_async_iter_stores_one_result(cached: bool) -> None:
    identity = async_iter("math.copysign", [(1, -1), (2, -1), (3, -1)], cached=cached, sync=True)
    assert sorted(result(identity, wait=-1, cached=cached)) == [-3, -2, -1]
    task = fetch(identity, cached=cached)
    assert sorted(task.args) == [(1, -1), (2, -1), (3, -1)]
    assert task.success
    assert Task.objects.count() == (0 if cached else 1)
    assert not count_group(identity, cached=cached)


@pytest.mark.parametrize(
    ("arguments", "results"), [(range(3), [0, 1, 2]), ((i for i in (1.5, 2.5)), [1, 2]), ([], [])]
)
def test_async_iter_accepts_any_iterable(arguments: Any, results: list[int]) -> None:
    assert result(async_iter("math.floor", arguments, sync=True)) == results


def test_id_for_several_calls_is_refused(seen: list[dict[str, Any]]) -> None:
    """All calls were one task, and the whole never ended."""
    options = {"id": "1" * 32}
    for call in (
        lambda: async_iter("math.sqrt", [4, 9], q_options=options),
        lambda: Iter("math.sqrt", [4], kwargs={"q_options": options}).run(),
        lambda: async_chain([("math.sqrt", (4,)), ("math.sqrt", (9,), {"q_options": options})]),
    ):
        with pytest.raises(ValueError, match=r"creates the id .* itself: remove id='1{32}' from q_options"):
            call()
    assert seen == []
    assert async_iter(given, [1], id="x", sync=True) is not None, "a keyword of the function"


def test_async_iter_ignores_the_hook_and_keeps_options(seen: list[dict[str, Any]]) -> None:
    async_iter(given, [1], hook=hook, timeout=5, save=True, a=2, sync=True)
    identity = async_iter(given, [1, 2], a=2, q_options={"timeout": 6, "sync": True, "hook": hook})
    assert hooked == []
    assert [task["timeout"] for task in seen] == [5, 6, 6]
    assert result(identity) == [((1,), {"a": 2}), ((2,), {"a": 2})]
    assert fetch(identity).kwargs == {"a": 2}


def test_async_iter_works_with_a_cache_that_evicts() -> None:
    small = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 30}}
    with override_settings(CACHES={"default": small}):
        identity = async_iter("math.floor", range(40), cached=True, sync=True)
        assert fetch(identity, cached=True).result == list(range(40))


def test_failed_part_fails_the_whole() -> None:
    task = fetch(async_iter("math.sqrt", [4, -1], sync=True))
    assert not task.success
    assert len(task.result) == 2


@pytest.mark.parametrize("kwargs", [{}, {"q_options": {"timeout": 5}}, {"timeout": 5}])
def test_iter_object_can_be_filled_and_run(cached: bool, kwargs: dict[str, Any]) -> None:
    i = Iter("math.copysign", args=[(4, -1)], kwargs=kwargs, cached=cached, sync=True)
    assert [i.append(1, -1), i.append(2, -1)] == [2, 3]
    assert (i.result(), i.fetch(), i.length()) == (None, None, 3)
    identity = i.run()
    assert sorted(i.result(wait=10)) == [-4, -2, -1]
    assert i.fetch().id == identity == i.id
    i.append(9, -1)
    assert i.result() is None
    i.run()
    assert len(i.result()) == 4


def test_iter_object_uses_its_broker() -> None:
    broker = get_broker("other")
    Iter("math.sqrt", [1, 2], broker=broker).run()
    assert broker.queue_size() == 2


# -- chains --


def test_chain_runs_in_order_as_one_group(cached: bool) -> None:
    identity = async_chain(
        [("math.copysign", (1, -1)), ("math.floor", (1,), {}), given], cached=cached, sync=True
    )
    found = result_group(identity, count=3, cached=cached)
    assert found == [-1.0, 1, ((), {})]


def test_chain_can_set_its_group() -> None:
    assert async_chain([("math.sqrt", (4,))], group="mine", sync=True) == "mine"
    assert result_group("mine") == [2]


def test_async_chain_does_not_change_the_list() -> None:
    links = [("math.sqrt", (4,)), ("math.sqrt", (9,))]
    async_chain(links, sync=True)
    assert len(links) == 2


def test_chain_object_can_be_filled_and_run_again(cached: bool) -> None:
    chain = Chain(cached=cached, sync=True)
    assert [chain.append("math.copysign", 1, -1), chain.append("math.floor", 1)] == [1, 2]
    assert (chain.current(), chain.result(), chain.fetch(), chain.length()) == (None, None, None, 2)
    group = chain.run()
    assert sorted(chain.result()) == [-1, 1]
    assert chain.current() == 2
    assert len(chain.fetch(failures=False, wait=10)) == 2
    before = [task.id for task in chain.fetch()]
    assert chain.append("math.sqrt", 4) == 3  # this resets the results
    assert all(fetch(each, cached=cached) for each in before)  # but keeps their tasks
    assert (chain.result(), chain.started) == (None, False)
    assert not count_group(group, cached=cached)
    chain.run()
    assert sorted(chain.result(wait=10)) == [-1, 1, 2]


def test_chain_link_accepts_task_options(seen: list[dict[str, Any]]) -> None:
    chain = Chain(sync=True, group="g")
    chain.append(given, 1, a=2, hook=hook, timeout=5)
    chain.append(
        given, 2, a=3, q_options={"task_name": "second", "group": "not this"}, group="the function's"
    )
    chain.run()
    assert [task["timeout"] for task in seen if "timeout" in task] == [5]
    assert [task.result for task in hooked] == [((1,), {"a": 2})]
    assert result("second") == ((2,), {"a": 3, "group": "the function's"})
    assert count_group("g") == 2


def test_chain_continues_without_stored_results() -> None:
    with override_settings(Q_CLUSTER={"name": "default", "save_limit": -1}):
        async_chain([(given, (1,), {"hook": hook}), (given, (2,), {"hook": hook, "save": False})], sync=True)
    assert [task.args for task in hooked] == [(1,), (2,)]


def test_failed_link_ends_the_chain() -> None:
    group = async_chain([given, (broken, (1,)), given], sync=True)
    assert count_group(group) == 2
    assert count_group(group, failures=True) == 1


def test_chain_object_uses_its_broker() -> None:
    broker = get_broker("other")
    Chain([("math.sqrt", (4,)), ("math.sqrt", (9,))], broker=broker).run()
    assert broker.queue_size() == 1


def test_chain_link_has_its_own_cluster_and_cache(seen: list[dict[str, Any]]) -> None:
    links = [
        ("math.sqrt", (4,), {"cached": 60}),
        ("math.sqrt", (9,), {"cluster": "other"}),
        ("math.sqrt", (16,)),
    ]
    assert result_group(async_chain(links, sync=True), cached=True) == [2, 3, 4]
    assert [task.get("cluster") for task in seen] == [None, "other", "other"]


@pytest.mark.parametrize(
    "link", [(), ("math.sqrt", 4), ("math.sqrt", (4,), 5), ("math.sqrt", (4,), {"timeout": "x"})]
)
def test_invalid_link_is_refused_before_sending(link: Any) -> None:
    """Otherwise the previous link would fail although its function succeeded."""
    with pytest.raises((TypeError, ValueError)):
        async_chain([("math.sqrt", (4,)), link])
    assert queue_size() == 0


# -- variants for coroutines --


async def _in_a_coroutine() -> tuple[Any, ...]:
    identity = await tasks.aasync_task("math.sqrt", 4, sync=True, group="g", cached=True)
    return (
        await tasks.aresult(identity, cached=True),
        (await tasks.afetch(identity, cached=True)).id == identity,
        await tasks.aresult_group("g", cached=True),
        len(await tasks.afetch_group("g", cached=True)),
        await tasks.acount_group("g", cached=True),
        await tasks.adelete_group("g", cached=True),
        await tasks.adelete_cached(identity),
        await tasks.aqueue_size(),
        await tasks.aresult(await tasks.aasync_iter("math.sqrt", [4], sync=True)),
        await tasks.aresult_group(await tasks.aasync_chain(["os.getpid"], sync=True), count=1),
        (await tasks.aschedule("math.sqrt", 4, name="twin")).name,
    )


def test_every_function_has_an_async_variant() -> None:
    found = async_to_sync(_in_a_coroutine)()
    assert found[:9] == (2, True, [2], 1, 1, 1, True, 0, [2])
    assert found[9] is not None
    assert Schedule.objects.get().name == found[10] == "twin"


def test_invalid_call_names_the_wrong_argument() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)) as refused:
        async_task(given, 1, other=lambda: None)
    assert "argument 'other'" in refused.value.__notes__[0]
    with pytest.raises((AttributeError, pickle.PicklingError)) as refused:
        async_task(given, 1, lambda: None)
    assert "argument 2" in refused.value.__notes__[0]
    with pytest.raises(TypeError, match=r"^broker=3 must be a Broker"):
        async_task(given, broker=3)  # type: ignore[arg-type]
    for look in (result, async_to_sync(tasks.aresult)):
        with pytest.raises(TypeError, match=r"^wait='y' must be a number of milliseconds"):
            look(UNKNOWN, wait="y")
        with pytest.raises(TypeError, match=r"^wait=nan"):  # it waited for ever
            look(UNKNOWN, wait=float("nan"))


@pytest.mark.parametrize("save", [True, False])
def test_receivers_of_post_execute_can_read_the_task(save: bool) -> None:
    """Like Django-Q, which sends the signal after saving the task."""
    found: list[Any] = []

    def read(*, task: dict[str, Any], **_: Any) -> None:
        found.append(list(Task.objects.filter(pk=task["id"]).values_list("success", flat=True)))

    package = {"id": "9" * 32, "name": "n", "func": "math.sqrt", "args": (4,), "kwargs": {}, "save": save}
    package["started"] = timezone.now()
    run(package)
    post_execute.connect(read)
    try:
        endings.end(package)
    finally:
        post_execute.disconnect(read)
    assert found == [[True] if save else []]
