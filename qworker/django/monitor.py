"""monitor: the live table of clusters, the summary, and memory use, as in Django-Q.

Comes from:  the commands qmonitor, qinfo and qmemory, and programs.
Goes to:     ``monitoring/screen.py``, with what ``monitoring/overview.py`` counts.
Thread:      main.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, TextIO

from qworker.django.brokers import Broker, get_broker
from qworker.django.conf import conf
from qworker.django.monitoring.overview import EndedCount, Overview, Summary, overview, summary
from qworker.django.monitoring.process_memory import Machine, machine, used_by
from qworker.django.monitoring.screen import Cell, Page, Table, show
from qworker.django.status import STOPPED, Stat, Status, can_see

__all__ = ["Stat", "Status", "get_ids", "info", "memory", "monitor"]

STATE_COLORS = {"Working": "green", "Idle": "", "Starting": "yellow", "Stopping": "yellow", STOPPED: "red"}
COLUMNS = ("Host", "Id", "State", "Pool", "TQ", "RQ", "RC", "Up")
MEMORY_COLUMNS = (
    "Host", "Id", "Available %", "Available MB", "Total MB", "Sentinel MB", "Monitor MB", "Workers MB",
)  # fmt: skip
ELSEWHERE = Cell("-")
"""For values that cannot be read from this machine, or are part of another column."""
UNKNOWN_CLUSTERS = (
    "Clusters cannot be shown: the broker does not store their state, and the cache {cache!r} is not shared "
    "between processes."
)
NONE = "No clusters appear to be running."


def monitor(run_once: bool = False, broker: Broker | None = None, out: TextIO | None = None) -> list[Stat]:
    """Show all clusters until q is pressed; return the clusters that run then.

    run_once: show them once. out: the stream; None is standard output. Raises QWorkerError if the broker is
    not available, and Django's DatabaseError if the database is not.
    """
    asked, ended = broker or get_broker(), EndedCount()
    show(lambda: monitor_page(overview(asked, ended), conf.queue_limit, conf.workers), run_once, out)
    return Stat.get_all(asked)


def monitor_page(seen: Overview, queue_limit: int | None, workers: int) -> Page:
    """Return the page of the monitor.

    queue_limit: how many tasks may wait in a cluster. workers: how many processes a cluster should have.
    """
    rows = [
        (
            Cell(each.host),
            Cell(str(each.pid)),
            Cell(each.status, STATE_COLORS.get(each.status, "")),
            Cell(str(len(each.workers)), "yellow" if len(each.workers) < workers else ""),
            _queued(each.task_q_size, queue_limit),
            Cell(str(each.done_q_size), "cyan" if each.done_q_size else ""),
            Cell(str(each.reincarnations), "yellow" if each.reincarnations else ""),
            Cell(str(timedelta(seconds=int(each.uptime())))),
        )
        for each in seen.clusters
    ]
    locked = "" if seen.locked is None else f" ({seen.locked})"
    footer = [
        [
            Cell(seen.broker),
            Cell(f"Queued {seen.queued}{locked}"),
            Cell(f"Success {seen.ended.successes}"),
            Cell(f"Failures {seen.ended.failures}", "red" if seen.ended.failures else ""),
        ]
    ]
    return Page([Table(COLUMNS, rows)], footer=[*_missing(seen.clusters), *footer])


def monitor_values(seen: Overview) -> dict[str, Any]:
    """Return the same as values for JSON."""
    return {
        "clusters": [cluster_values(each) for each in seen.clusters],
        "broker": seen.broker,
        "queued": seen.queued,
        "locked": seen.locked,
        **asdict(seen.ended),
    }


def cluster_values(cluster: Status) -> dict[str, Any]:
    """Return the status of *cluster* as values for JSON."""
    return {
        "host": cluster.host,
        "pid": cluster.pid,
        "cluster_id": str(cluster.cluster_id),
        "status": cluster.status,
        "workers": cluster.workers,
        "task_q_size": cluster.task_q_size,
        "done_q_size": cluster.done_q_size,
        "reincarnations": cluster.reincarnations,
        "uptime": round(cluster.uptime(), 3),
    }


def info(broker: Broker | None = None, out: TextIO | None = None) -> bool:
    """Print figures for all clusters; return True. Raises like monitor()."""
    show(lambda: info_page(summary(broker or get_broker())), True, out)
    return True


def info_page(figures: Summary) -> Page:
    """Return the page of the summary."""
    rate, unit = figures.rate()
    shown = (
        (("Clusters", figures.clusters), ("Workers", figures.workers), ("Restarts", figures.restarts)),
        (("Queued", figures.queued), ("Successes", figures.successes), ("Failures", figures.failures)),
        (
            ("Schedules", figures.schedules),
            (f"Tasks/{unit}", f"{rate:.2f}"),
            ("Avg time", f"{figures.average:.4f}"),
        ),
    )
    rows = [[cell for word, value in row for cell in (Cell(word, "cyan"), Cell(str(value)))] for row in shown]
    return Page([Table((), rows)], title=f"-- {conf.prefix} summary --", footer=_blind())


def info_values(figures: Summary) -> dict[str, Any]:
    """Return the same as values for JSON."""
    rate, unit = figures.rate()
    return {**asdict(figures), "rate": rate, "rate_unit": unit}


def get_ids(out: TextIO | None = None) -> bool:
    """Print the id of each cluster on its own line; return True."""
    stream = out or sys.stdout
    found = [str(each.cluster_id) for each in Stat.get_all()]
    stream.write("\n".join(found or [NONE]) + "\n")
    return True


def memory(
    run_once: bool = False,
    workers: bool = False,
    broker: Broker | None = None,
    out: TextIO | None = None,
) -> list[Stat]:
    """Show how much memory the clusters of this machine use until q is pressed; return the clusters.

    run_once: show it once. workers: show each worker process, too. Raises like monitor().
    """
    asked = broker or get_broker()
    lowest: list[Machine] = []

    def page() -> Page:
        here = machine()
        lowest[:] = [min([*lowest, here], key=lambda seen: seen.available)]
        return memory_page(Stat.get_all(asked), here, lowest[0], workers)

    show(page, run_once, out)
    return Stat.get_all(asked)


def memory_page(clusters: Sequence[Stat], here: Machine, lowest: Machine, workers: bool) -> Page:
    """Return the page of memory use. here: this machine's memory now. lowest: the least that was
    available."""
    tables = [Table(MEMORY_COLUMNS, [_memory_row(each, here) for each in clusters])]
    if workers:
        used = [
            (Cell(str(each.pid)), Cell(f"worker {place}"), Cell(str(pid)), _megabytes(used_by(pid)))
            for each in clusters
            if _is_here(each)
            for place, pid in enumerate(each.workers, 1)
        ]
        tables.append(Table(("Id", "Process", "Process id", "MB"), used))
    least = Cell(f"Available lowest: {lowest.available:.2f} MB ({lowest.percent:.1f} %)")
    return Page(tables, footer=[*_missing(clusters), [least]])


def _memory_row(cluster: Stat, here: Machine) -> Sequence[Cell]:
    start = (Cell(cluster.host), Cell(str(cluster.pid)))
    if not _is_here(cluster):
        return (*start, *[ELSEWHERE] * (len(MEMORY_COLUMNS) - len(start)))
    return (
        *start,
        Cell(f"{here.percent:.1f}", "red" if here.percent < 10 else ""),
        _megabytes(here.available),
        _megabytes(here.total),
        _megabytes(used_by(cluster.sentinel)),
        ELSEWHERE if cluster.monitor == cluster.sentinel else _megabytes(used_by(cluster.monitor)),
        _megabytes(sum(used_by(pid) for pid in cluster.workers)),
    )


def _is_here(cluster: Stat) -> bool:
    return cluster.host == socket.gethostname()


def _megabytes(value: float) -> Cell:
    return Cell(f"{value:.2f}")


def _queued(waiting: int, limit: int | None) -> Cell:
    if not waiting:
        return Cell("0")
    return Cell(str(waiting), "green" if limit and waiting >= limit else "cyan")


def _missing(clusters: Sequence[Stat]) -> list[list[Cell]]:
    """Return the message that no cluster is visible; [] if there are any."""
    return [] if clusters else [*_blind(), [Cell(NONE, "yellow")]]


def _blind() -> list[list[Cell]]:
    """Return a line that explains why no cluster can be seen; [] if they can be."""
    return [] if can_see() else [[Cell(UNKNOWN_CLUSTERS.format(cache=conf.cache), "yellow")]]
