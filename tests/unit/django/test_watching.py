"""The pages of the monitoring commands, and the status of clusters in the cache."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.cache import cache
from django.test import override_settings

from qworker.clock import SYSTEM_CLOCK
from qworker.django.brokers import Broker, get_broker
from qworker.django.clusters.announcing import announce, announced
from qworker.django.monitor import cluster_values, info_page, memory_page, monitor_page
from qworker.django.monitoring.overview import Ended, EndedCount, Overview, Summary
from qworker.django.monitoring.process_memory import Machine
from qworker.django.monitoring.screen import Page, show
from qworker.django.status import STOPPED, Stat, Status, is_ours, node_of
from qworker.transports.presence import IDLE, STARTING, STOPPING, WORKING, Presence

HOST = "Orion"


def presence(**fields: Any) -> Presence:
    node = node_of("shop", UUID(int=5), HOST)
    now = SYSTEM_CLOCK.now()
    reported = {"host": HOST, "status": WORKING, "pool": (11, 12), "seen": now, **fields}
    return Presence(node, 17004, ("shop",), 4, now - 75, **reported)


def shown(page: Page) -> str:
    out = StringIO()
    show(lambda: page, True, out)
    return out.getvalue()


def colors(page: Page) -> dict[str, str]:
    """The color of each cell of the first row, by heading."""
    table = page.tables[0]
    return {name: cell.color for name, cell in zip(table.headings, table.rows[0], strict=True)}


def overview(*clusters: Stat, locked: int | None = 2, ended: Ended | None = None) -> Overview:
    return Overview(clusters, "ORM default", 7, locked, ended or Ended(100, 3))


# -- the monitor --


def test_monitor_has_the_columns_of_the_manual() -> None:
    stat = Stat(presence(waiting=23, unsettled=1, restarts=2))
    page = monitor_page(overview(stat), queue_limit=50, workers=2)
    assert page.tables[0].headings == ("Host", "Id", "State", "Pool", "TQ", "RQ", "RC", "Up")
    row = [cell.text for cell in page.tables[0].rows[0]]
    assert row == ["Orion", "17004", "Working", "2", "23", "1", "2", "0:01:15"]
    text = shown(page)
    assert "ORM default" in text
    assert "Queued 7 (2)" in text
    assert "Success 100" in text
    assert "Failures 3" in text


@pytest.mark.parametrize(("waiting", "color"), [(0, ""), (23, "cyan"), (50, "green"), (60, "green")])
def test_color_of_the_task_queue_size(waiting: int, color: str) -> None:
    stat = Stat(presence(waiting=waiting))
    assert colors(monitor_page(overview(stat), 50, 2))["TQ"] == color


def test_incomplete_pool_is_yellow() -> None:
    stat = Stat(presence())
    assert colors(monitor_page(overview(stat), 50, 4))["Pool"] == "yellow"
    assert colors(monitor_page(overview(stat), 50, 2))["Pool"] == ""


@pytest.mark.parametrize(
    ("reported", "word"),
    [(STARTING, "Starting"), (IDLE, "Idle"), (WORKING, "Working"), (STOPPING, "Stopping")],
)
def test_statuses_have_the_names_of_the_manual(reported: str, word: str) -> None:
    assert Stat(presence(status=reported)).status == word


def test_clusters_of_other_projects_are_excluded() -> None:
    other = presence()
    with override_settings(Q_CLUSTER={"name": "shop"}):
        assert is_ours(presence())
        assert not is_ours(other)  # of the project "default", whose queue has the same name
        assert is_ours(other._replace(name="celery@Orion"))  # it may belong to any project


def test_monitor_without_locks() -> None:
    text = shown(monitor_page(overview(locked=None), 50, 2))
    assert "Queued 7 " in text
    assert "(" not in text.partition("Queued")[2].partition("Success")[0]
    assert "No clusters appear to be running." in text


def test_slow_counts_are_cached() -> None:
    times = iter([0.0, 1.0, 2.0, 30.0, 60.0, 61.0])
    counts = iter([Ended(1), Ended(2)])
    count = EndedCount(lambda: next(counts), lambda: next(times))
    assert [count().successes for _ in range(4)] == [1, 1, 1, 2]


# -- the summary --


@pytest.mark.parametrize(
    ("per_day", "rate", "unit"),
    [(86400 * 3, 3.0, "second"), (2880, 2.0, "minute"), (177, 7.375, "hour"), (5, 5.0, "day"), (0, 0, "day")],
)
def test_rate_has_a_suitable_unit(per_day: int, rate: float, unit: str) -> None:
    assert Summary(1, 4, 0, 0, 1000, 2, 4, per_day, 0.1612).rate() == (rate, unit)


def test_summary_has_the_figures_of_the_manual() -> None:
    text = " ".join(shown(info_page(Summary(1, 4, 0, 0, 1000, 2, 4, 177, 0.1612))).split())
    assert text.startswith("-- default summary --")
    for figure in ("Clusters 1", "Workers 4", "Restarts 0", "Queued 0", "Successes 1000", "Failures 2"):
        assert figure in text
    assert "Schedules 4" in text
    assert "Tasks/hour 7.3" in text
    assert "Avg time 0.1612" in text


# -- the memory --


def test_memory_of_remote_clusters_is_not_shown() -> None:
    here = Machine(total=1000.0, available=250.0)
    page = memory_page([Stat(presence())], here, Machine(total=1000.0, available=100.0), workers=True)
    assert [cell.text for cell in page.tables[0].rows[0]] == ["Orion", "17004", *["-"] * 6]
    assert "Available lowest: 100.00 MB (10.0 %)" in shown(page)


# -- a cluster's state --


def test_stat_has_the_attributes_of_the_manual() -> None:
    stat = Stat(presence(waiting=1, unsettled=2, restarts=3))
    assert (stat.pid, stat.host, stat.cluster_id.int, stat.reincarnations) == (17004, HOST, 5, 3)
    assert (stat.task_q_size, stat.done_q_size, stat.empty_queues()) == (1, 2, False)
    assert stat.sentinel == stat.pusher == stat.monitor == 17004
    assert stat.workers == [11, 12]
    assert 75 <= stat.uptime() < 300
    assert stat.tob is not None
    assert stat.tob <= stat.timestamp
    assert Stat(presence()).empty_queues()
    assert cluster_values(stat)["status"] == "Working"


def test_unknown_status_is_stopped() -> None:
    status = Status(1234, "id")
    assert (status.status, status.workers, status.uptime(), status.empty_queues()) == (STOPPED, [], 0, True)
    assert status() is status  # stat() is a method in the manual, and an attribute in later versions


class Mine(Broker):
    """A custom broker, whose clusters publish their status in the cache."""


@pytest.fixture
def broker(cluster: Callable[..., None]) -> Broker:
    cluster(name="shop", broker_class=f"{__name__}.Mine")
    cache.clear()
    return get_broker()


def test_stat_get_accepts_all_signatures(broker: Broker) -> None:
    announce(broker, presence())
    (stat,) = Stat.get_all(broker)
    assert (stat.pid, stat.workers) == (17004, [11, 12])
    for found in (
        Stat.get(stat.cluster_id),
        Stat.get(str(stat.cluster_id), broker),
        Stat.get(17004, stat.cluster_id, broker=broker),
        Stat.get(pid=17004, cluster_id=stat.cluster_id),
        Stat.get(17004),
    ):
        assert found.pid == 17004
        assert found.status == "Working"
    assert Stat.get(99, "nobody").status == STOPPED


def test_status_signed_with_another_key_is_ignored(broker: Broker) -> None:
    with override_settings(SECRET_KEY="of somebody else, and as long as it should be"):
        announce(broker, presence())
    assert announced(broker) == []


# -- a custom broker --


def test_stats_are_kept_in_the_cache(broker: Broker) -> None:
    for key in ("django_q:a:1", "django_q:a:2", "django_q:b:1"):
        broker.set_stat(key, key[-3:], 3)
    assert broker.get_stat("django_q:a:1") == "a:1"
    assert broker.get_stat("nothing") is None
    assert broker.get_stats("django_q:a:*") == ["a:1", "a:2"]
    cache.delete("django_q:a:1")
    assert broker.get_stats("django_q:a:*") == ["a:2"]
    assert broker.get_stats("django_q:b:*") == ["b:1"]


def test_stats_without_a_cache_are_empty(cluster: Callable[..., None]) -> None:
    cluster(name="shop", broker_class=f"{__name__}.Mine", cache="missing")
    broker = get_broker()
    broker.set_stat("a", "b", 3)
    assert (broker.cache, broker.get_stat("a"), broker.get_stats("*")) == (None, None, [])


def test_broker_is_picklable_and_has_a_queue(broker: Broker) -> None:
    assert isinstance(broker, Mine)
    other = pickle.loads(pickle.dumps(get_broker("other")))
    assert (broker.list_key, other.list_key) == ("shop", "other")
    assert other.cache is not None
    assert (broker.connection, broker.lock_size()) == (None, None)


@pytest.mark.parametrize("name", ["dequeue", "enqueue"])
def test_required_broker_methods_raise_not_implemented(broker: Broker, name: str) -> None:
    arguments = ("text",) if name == "enqueue" else ()
    with pytest.raises(NotImplementedError, match=name):
        getattr(broker, name)(*arguments)


def test_optional_broker_methods_have_defaults(broker: Broker) -> None:
    assert (broker.queue_size(), broker.lock_size(), broker.ping(), broker.info()) == (0, None, False, "Mine")
    assert (broker.delete_queue(), broker.purge_queue()) == (None, None)


@pytest.mark.timeout(9)
def test_ping_of_an_unresponsive_redis_is_fast(
    cluster: Callable[..., None],
) -> None:
    """The server accepts connections but never answers. Operations other than ping wait for 10 seconds."""
    pytest.importorskip("redis", reason='pip install "qworker-queue[redis]"')
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        port = silent.getsockname()[1]
        cluster(redis={"port": port, "host": "127.0.0.1", "socket_timeout": 600})
        assert get_broker().ping() is False
    assert get_broker().ping() is False  # nothing listens there


@pytest.mark.parametrize("name", ["acknowledge", "fail", "delete"])
def test_receipt_methods_are_optional(broker: Broker, name: str) -> None:
    assert getattr(broker, name)(1) is None
