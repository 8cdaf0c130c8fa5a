"""A worker is killed while it reports a failed task: the failure is stored once, and can be retried."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Site
from tests.acceptance.invariants import check

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


def test_kill_while_a_failure_is_stored_loses_nothing(site: Site) -> None:
    site.settings.update(worker_lease_seconds=2)
    id = site.send("misbehave", "SystemExit")
    first = site.start(ready=False, environment={"QWORKER_CRASH_AT": f"dead-lettering@{site.path / 'hit'}"})
    site.until(lambda: not first.alive, "the worker to die with the failure in its hand")
    assert site.query("SELECT count(*) FROM failed") == [(0,)]
    assert (site.waiting(), site.state(id)) == (1, None), "result, failure and message go together"
    second = site.start()
    site.finished(id)
    site.drained()
    second.stop()
    check(site)
    (found,) = site.client.failed.list()
    assert (found.id, site.state(id)) == (id, "FAILURE")
    assert "SystemExit" in found.error
    assert site.client.failed.retry([found.tag]).number == 1
    assert (site.waiting(), site.state(id), site.client.failed.list()) == (1, None, [])
