"""Outcomes of misbehaving tasks in a Django project; on each kind of database."""

from __future__ import annotations

import pytest

from tests.acceptance.django_site import TASKS, DjangoSite

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


def test_every_outcome_is_stored(django_anywhere: DjangoSite) -> None:
    """Values that cannot be printed, pickled or stored give a failure with the reason, and the cluster
    continues."""
    site = django_anywhere
    unsayable = site.send("raise_unsayable", "unsayable", hook=f"{TASKS}.told")
    lock = site.send("lock", "lock", hook=f"{TASKS}.told")
    spoilt = site.send("spoil", "spoilt", [], hook=f"{TASKS}.told")
    strange = site.send("say", "strange", "\0 \ud800 \U0001f600", group="g")
    failing = site.send("fail", "failing", "\0 \ud800 \U0001f600")
    raising = site.send("work", "raising", hook=f"{TASKS}.raising_hook")
    exiting = site.send("work", "exiting", hook=f"{TASKS}.exiting_hook")
    unknown = site.do("answer = async_task('tests.acceptance.django_tasks.nothing')")
    # Whoever has the key can send any package, even with names that do not fit the table.
    site.do(
        f"""
        from django.utils import timezone
        from qworker.django.brokers import get_broker
        from qworker.django.signing import SignedPackage
        package = {{
            "id": "0" * 32, "name": "n\\0" + "\\ud800" * 200, "func": "{TASKS}.work",
            "args": ("foreign",), "kwargs": {{}},
            "started": timezone.now(), "group": "g\\0" * 100, "hook": "h" * 1000,
        }}
        get_broker().enqueue(SignedPackage.dumps(package))
        """
    )
    cluster = site.start()
    site.drained()
    rows = {row["id"]: row["success"] for row in site.tasks()}
    assert rows == {
        unsayable: False, lock: False, spoilt: True, strange: True, failing: False, raising: True,
        exiting: True, unknown: False, "0" * 32: True,
    }, cluster.log  # fmt: skip
    assert "Unsayable" in site.do(f"answer = result({unsayable!r})")
    assert "pickle" in site.do(f"answer = result({lock!r})")
    assert "nothing" in site.do(f"answer = result({unknown!r})")
    assert site.do(f"answer = result({strange!r}) == '\\0 \\ud800 \\U0001f600'")
    assert site.do("answer = result_group('g') == ['\\0 \\ud800 \\U0001f600']")
    for task_id, end in [(unsayable, "failure"), (lock, "failure"), (spoilt, "success"), (raising, "success"),
                         (exiting, "success")]:  # fmt: skip
        assert site.ends(f"hook-{task_id}-{end}") == 1, cluster.log
        assert site.ends(f"hook-{task_id}-{'success' if end == 'failure' else 'failure'}") == 0
    assert not site.dead()
    assert "could not be told" not in cluster.log
    cluster.stop()
