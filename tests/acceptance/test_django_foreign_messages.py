"""Foreign messages in the queue of a Django project, or messages signed with another key; on each kind of
database."""

from __future__ import annotations

import pytest

from tests.acceptance.django_site import TASKS, DjangoSite

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]
OLD, NEW = "the key of the last year, which is long enough", "the key of this year, which is as long as that"

PUT = """
import json
from qworker.django.clusters.engine import app
from qworker.django.transports.packages import RUN
from qworker.transports.lease import Envelope

def put(body, task=RUN, **headers):
    text = json.dumps({"lang": "py", "task": task, "id": headers.pop("id", "0" * 32), **headers})
    app().broker.sender.push([Envelope("faults", text, None, body, 0, None)])

OPTIONS = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
bodies = [[[], {}, OPTIONS], [[7], {}, OPTIONS], [["text"], {}, OPTIONS], [["a", "b"], {}, OPTIONS],
          [[], {"text": "x"}, OPTIONS], [["\\ud800\\0"], {}, OPTIONS], [[None], {}, OPTIONS]]
for number, body in enumerate(bodies):
    put(json.dumps(body).encode(), id=str(number) * 32)
put(b"\\xff\\x00 no JSON at all", id="8" * 32)
put(b"[]", id="9" * 32)
answer = len(bodies) + 2
"""


def test_messages_that_are_not_packages_become_dead_letters(django_anywhere: DjangoSite) -> None:
    """Each has its reason in one log line, and no other task waits for it."""
    site = django_anywhere
    count = site.do(PUT)
    site.send("work", "good")
    cluster = site.start()
    site.until(lambda: site.ends("good"), "a good task behind the strangers")
    site.drained()
    assert len(site.dead()) == count, cluster.log
    assert [row["id"] for row in site.tasks()] == [site.ids["good"]]
    assert "could not be told" not in cluster.log
    cluster.stop()


@pytest.mark.parametrize("django_anywhere", ["sqlite", "redis"], indirect=True)
def test_packages_of_another_key_or_project_become_dead_letters(django_anywhere: DjangoSite) -> None:
    """And packages whose classes no longer exist; an old key listed as a fallback is accepted."""
    site = django_anywhere
    old = site.caller(SECRET_KEY=OLD)
    other = site.caller(Q_CLUSTER={**site.cluster, "name": "others"})
    for call, key in ((old, "old"), (other, "others")):
        call(
            f"""
            from qworker.django.brokers import get_broker
            from qworker.django.transports.packages import envelope_of
            from qworker.django.execution.calls import package_of, signed
            package = package_of("{TASKS}.work", ("{key}",), {{}}, {{}})
            get_broker("faults").send(signed(package), package)
            """
        )
    old(
        f"""
        import sys, types
        module = sys.modules["gone"] = types.ModuleType("gone")
        exec("class Gone: pass", module.__dict__)
        async_task("{TASKS}.work", module.Gone())
        """
    )
    new = site.caller(SECRET_KEY=NEW)
    good = new(f"answer = async_task('{TASKS}.work', 'new')")
    cluster = site.start(SECRET_KEY=NEW)
    site.until(lambda: site.ends("new"), "the task with the new key")
    site.until(lambda: len(site.dead()) == 3, "three dead letters")
    assert [row["id"] for row in site.tasks()] == [good]
    assert site.starts("old") == site.starts("others") == 0
    assert cluster.log.count("the package is not signed with this project") == 3
    cluster.stop()

    kept = old(f"answer = async_task('{TASKS}.work', 'kept')")
    old(f"async_task('{TASKS}.work', module.Gone())")
    cluster = site.start("two", SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=[OLD])
    site.until(lambda: site.task(kept), "the task with the old key")
    site.until(lambda: len(site.dead()) == 4, "what cannot be unpickled to be a dead letter")
    assert any("No module named 'gone'" in reason for reason in site.dead())
    cluster.stop()


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mysql"], indirect=True)
def test_large_arguments_and_results(django_site: DjangoSite) -> None:
    """Ten megabytes are accepted; larger values than the server accepts are a failure with the reason, and
    other tasks run.

    (PyMySQL writes a message as two hex digits per byte, and MariaDB accepts 16 MB.)
    """
    site = django_site
    size = 5_000_000 if site.kind == "mysql" else 10_000_000
    large = site.do(f"answer = async_task('{TASKS}.size_of', 'large', bytes({size}))")
    several = [site.send("big", f"several-{number}", 3_000_000) for number in range(6)]
    huge = site.send("big", "huge", 13_000_000, hook=f"{TASKS}.told")
    cluster = site.start()
    site.send("work", "small")
    site.until(lambda: site.ends("small"), "a small task behind the large ones")
    site.drained()
    rows = {row["id"]: row["success"] for row in site.tasks()}
    assert rows.keys() == {large, huge, site.ids["small"], *several}, cluster.log
    assert all(rows[task_id] for task_id in (large, *several))
    assert site.do(f"answer = result({large!r})") == size
    if site.kind == "mysql":
        assert not rows[huge]
        assert "exceed the" in site.do(f"answer = result({huge!r})")
        assert site.ends(f"hook-{huge}-failure") == 1, "the hook hears what is stored"
    else:
        assert site.do(f"answer = len(result({huge!r}))") == 13_000_000
    assert not site.dead()
    cluster.stop()
