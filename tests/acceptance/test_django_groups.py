"""Groups and iterables whose members end at the same time in several processes, or whose processes are
killed."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.django_site import TASKS, site_on
from tests.acceptance.harness import PATIENCE
from tests.support.cases import cases
from tests.support.django_databases import KINDS, ProjectDatabase

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]
PARTS, WHOLES = 8, 12


def caches(kind: str, path: Path) -> dict[str, Any]:
    """The cache settings for a kind."""
    if kind == "files":
        location = {
            "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
            "LOCATION": str(path / "c"),
        }
    elif kind == "table":
        location = {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "cache"}
    else:
        location = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    return {"CACHES": {"default": {**location, "OPTIONS": {"MAX_ENTRIES": 100_000}}}}


@pytest.mark.parametrize(
    ("database", "cache"),
    cases(
        [*product(KINDS, ["none", "table"]), ("sqlite", "files")],
        [("mysql", "table"), ("postgresql", "none"), ("sqlite", "none"), ("sqlite", "files")],
    ),
    indirect=["database"],
)
def test_parts_that_end_concurrently_are_all_collected(
    database: ProjectDatabase, cache: str, tmp_path: Path
) -> None:
    """In two clusters with four processes each; no part is left in the database."""
    with site_on(tmp_path, database, {"workers": 4}, **caches(cache, tmp_path)) as site:
        if cache == "table":
            site.do("from django.core.management import call_command; call_command('createcachetable')")
        clusters = [site.start("one"), site.start("two")]
        ids = site.do(
            f"answer = [async_iter('{TASKS}.work', [f'{{whole}}-{{part}}' for part in range({PARTS})])"
            f" for whole in range({WHOLES})]"
        )
        group = site.do(
            f"[async_task('{TASKS}.work', f'member-{{n}}', group='members', cached={cache != 'none'})"
            " for n in range(40)]; answer = 'members'"
        )
        for whole, task_id in enumerate(ids):
            found = site.until(lambda task_id=task_id: site.do(f"answer = result({task_id!r})"), "a whole")
            assert sorted(found) == [f"{whole}-{part}" for part in range(PARTS)], site.log
        members = f"result_group({group!r}, count=40, wait={int(PATIENCE) * 1000}, cached={cache != 'none'})"
        assert sorted(site.do(f"answer = {members}")) == sorted(f"member-{n}" for n in range(40))
        site.drained()
        assert {row["id"] for row in site.tasks(group__isnull=True)} == set(ids)
        assert len(site.tasks()) == WHOLES + (40 if cache == "none" else 0), "parts are left"
        for cluster in clusters:
            cluster.stop()


@pytest.mark.parametrize(
    ("database", "cache"), [*((kind, "none") for kind in KINDS), ("sqlite", "table")], indirect=["database"]
)
def test_part_whose_process_dies_is_collected(database: ProjectDatabase, cache: str, tmp_path: Path) -> None:
    """Its cluster is killed after the last part was stored, before the ack: the message is redelivered."""
    with site_on(tmp_path, database, {"workers": 1}, **caches(cache, tmp_path)) as site:
        if cache == "table":
            site.do("from django.core.management import call_command; call_command('createcachetable')")
        whole = site.do(f"answer = async_iter('{TASKS}.work', ['a', 'b', 'c'])")
        crashing = site.start(ready=False, QWORKER_CRASH_AT=f"received@{tmp_path / 'received'}")
        crashing.wait()
        second = site.start("two")
        found = site.until(lambda: site.do(f"answer = result({whole!r})"), "the whole")
        assert sorted(found) == ["a", "b", "c"]
        site.drained()
        assert [row["id"] for row in site.tasks()] == [whole], "parts are left"
        second.stop()


def test_retention_keeps_parts_that_are_waited_for(database: ProjectDatabase, tmp_path: Path) -> None:
    """The parts of one iterable end among more tasks than are kept; another has more parts than that."""
    with site_on(tmp_path, database, {"workers": 2, "save_limit": 3}) as site:
        whole, large = site.do(
            f"""
            import qworker.django.several as several
            plain = several.enqueue
            def among_others(*call, **options):
                for number in range(8):
                    plain("math.sqrt", (number,), {{}}, {{}})
                return plain(*call, **options)
            several.enqueue = among_others
            whole = async_iter("math.floor", range(6))
            several.enqueue = plain
            answer = whole, async_iter("{TASKS}.work", [(f"large-{{n}}", 0.5) for n in range(8)])
            """
        )
        cluster = site.start()
        for task_id, results in ((whole, [*range(6)]), (large, [f"large-{n}" for n in range(8)])):
            kept = site.do(f"answer = result({task_id!r}, wait={int(PATIENCE) * 1000})")
            assert sorted(kept) == results, site.log
        site.drained()
        site.until(lambda: len(site.tasks()) <= 3, "what is beyond the limit goes")
        assert site.do("from qworker.django.models import Part; answer = Part.objects.count()") == 2
        cluster.stop()
