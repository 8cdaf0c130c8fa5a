"""Two workers on one broker: what holds of them, whichever broker it is.

Comes from:  the fault tests, with their site.
Goes to:     the site's workers and ledger.
"""

from __future__ import annotations

import time

from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED


def two_workers_share_a_queue(site: Site) -> None:
    """No message twice, and both work."""
    workers = [site.start(name=name) for name in ("one", "two")]
    site.send_many("work", [(number, 0.01) for number in range(400)])
    site.drained()
    pools = [{*worker.pool()} for worker in workers]
    for worker in workers:
        worker.stop()
    check(site)
    ran = [record.pid for record in site.records(kind=STARTED)]
    assert len(ran) == 400
    shares = [sum(pid in pool for pid in ran) for pool in pools]
    assert min(shares) > 40, shares


def another_takes_over_from_who_is_killed(site: Site) -> None:
    """Well before the lease of 15 s is over."""
    first = site.start(name="one")
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*ids)
    second = site.start(name="two")
    killed = time.monotonic()
    first.kill()
    again = site.started(*ids, times=2)
    assert max(record.monotonic for record in again) - killed < 5.0
    go.touch()
    site.drained()
    second.stop()
    check(site)
