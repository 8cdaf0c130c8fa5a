"""Permissions in the admin: without permission, a user cannot have any function called."""

from __future__ import annotations

import pickle
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.urls import path
from django.utils import timezone

from qworker import QWorker
from qworker.django import tasks
from qworker.django.admin import ScheduleAdmin, schedules
from qworker.django.admin.results import resubmit
from qworker.django.execution import calls
from qworker.django.humanhash import humanize
from qworker.django.models import Failure, OrmQ, Schedule, Success, Task
from qworker.django.signing import SignedPackage
from qworker.django.tables.adoption import insert
from qworker.errors import BrokerUnavailable
from tests.support.django_project import Pages

START = datetime(2024, 3, 1, 12, tzinfo=UTC)
FORM = {
    "name": "nightly", "func": "math.sqrt", "hook": "", "args": "4", "kwargs": "", "schedule_type": "D",
    "minutes": "", "repeats": "-1", "next_run_0": "2030-01-01", "next_run_1": "12:00:00", "cron": "",
    "cluster": "", "intended_date_kwarg": "",
}  # fmt: skip
RIGHTS = ("add_schedule", "change_schedule", "view_schedule")
REFUSED, CHANGED = "You may not schedule this function.", "You may not change the arguments"


def logged_in(*permissions: str, superuser: bool = False) -> Client:
    user = User.objects.create_user("ann", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=permissions, content_type__app_label="qworker")
    )
    client = Client()
    client.force_login(user)
    return client


def logged_in_as_root() -> Client:
    client = Client()
    client.force_login(User.objects.create_user("root", is_staff=True, is_superuser=True))
    return client


def save(client: Client, key: int | None = None, **fields: str) -> str:
    path = "/admin/qworker/schedule/" + ("add/" if key is None else f"{key}/change/")
    return client.post(path, {**FORM, **fields}, follow=True).content.decode()


def act(client: Client, name: str, action: str, *keys: Any) -> str:
    given = {"action": action, "_selected_action": [str(key) for key in keys]}
    return client.post(f"/admin/qworker/{name}/", given, follow=True).content.decode()


def sent() -> list[dict[str, Any]]:
    """Return the packages in the queue."""
    return [row.task for row in OrmQ.objects.all()]


# -- schedules --


@pytest.mark.parametrize("func", ["os.system", "subprocess.run", "qworker.django.tasks.async_task"])
def test_function_is_refused_without_permission(func: str) -> None:
    assert REFUSED in save(logged_in(*RIGHTS), func=func, args="'true'")
    assert Schedule.objects.count() == 0


def test_any_function_is_accepted_with_permission() -> None:
    save(logged_in(*RIGHTS, "schedule_any_callable"), func="os.system", args="'true'")
    assert Schedule.objects.get().func == "os.system"


@override_settings(QWORKER_SCHEDULE_ALLOW=["math.sqrt", "json.decoder.*"])
@pytest.mark.parametrize("func", ["math.sqrt", "json.decoder.py_scanstring", "json.decoder.JSONDecoder"])
def test_exposed_function_is_accepted_without_permission(func: str) -> None:
    save(
        logged_in(*RIGHTS),
        func=func,
        hook="math.sqrt",
        kwargs="q_options={'hook': 'math.sqrt', 'timeout': 3}",
    )
    assert Schedule.objects.get().func == func


@override_settings(QWORKER_SCHEDULE_ALLOW=["json.*"])
@pytest.mark.parametrize(
    "func", ["json.codecs.open", "json.decoder.scanner", "json.decoder.re.sub", "json.nothing", "json.loads."]
)
def test_pattern_does_not_expose_imported_names(func: str) -> None:
    assert REFUSED in save(logged_in(*RIGHTS), func=func)
    assert Schedule.objects.count() == 0


@override_settings(QWORKER_SCHEDULE_ALLOW=["math.sqrt"])
@pytest.mark.parametrize(
    "fields",
    [
        {"hook": "os.abort"},
        {"kwargs": "q_options={'hook': 'os.abort'}"},
        {"kwargs": "q_options={'hook': ['os.abort']}"},
        {"kwargs": "q_options={'chain': [('os.abort', ())]}"},
        {"kwargs": "q_options={'func': 'os.abort'}"},
        {"kwargs": "q_options={'sync': True}"},
        {"kwargs": "q_options=[('hook', 'os.abort')]"},
        {"kwargs": "{'q_options': {'iter_count': 3}}"},
        {"kwargs": "hook='os.abort'"},
        {"kwargs": "chain=[('os.abort', ())], q_options={'timeout': 3}"},
    ],
    ids=lambda fields: str(fields),
)
def test_function_in_hooks_and_options_is_refused(fields: dict[str, str]) -> None:
    assert REFUSED in save(logged_in(*RIGHTS), **fields)
    assert Schedule.objects.count() == 0


def test_options_cannot_replace_the_function() -> None:
    package = calls.package_of(
        "math.sqrt", (4,), {}, {"func": "os.abort", "args": (), "name": "x", "group": "g"}
    )
    assert (package["func"], package["args"], package["group"]) == ("math.sqrt", (4,), "g")


NEXT_RUN = dict(
    zip(("next_run_0", "next_run_1"), f"{timezone.localtime(START):%Y-%m-%d %H:%M:%S}".split(), strict=True)
)
FOREIGN = {"func": "os.system", "hook": "os.abort", "args": "'true'", "kwargs": "x=1"}


UNCHANGED = {**FOREIGN, "name": "", "schedule_type": "D", **NEXT_RUN}


@pytest.fixture
def foreign() -> Schedule:
    return Schedule.objects.create(**FOREIGN, schedule_type="D", next_run=START, repeats=-1)


def test_foreign_schedule_can_be_paused(foreign: Schedule) -> None:
    save(logged_in(*RIGHTS), foreign.pk, **UNCHANGED, repeats="0")
    assert Schedule.objects.get().repeats == 0


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({"repeats": 0}, {"repeats": "-1"}),
        ({"repeats": 0}, {"repeats": "1"}),
        ({}, {"next_run_0": "2023-01-01"}),
        ({}, {"schedule_type": "I", "minutes": "1"}),
        ({}, {"schedule_type": "C", "cron": "* * * * *"}),
        ({}, {"cluster": "other"}),
        ({}, {"repeats": "0", "next_run_0": "2023-01-01"}),
    ],
    ids=str,
)
def test_foreign_schedule_cannot_be_moved(
    foreign: Schedule, before: dict[str, Any], change: dict[str, str]
) -> None:
    Schedule.objects.update(**before)
    expected = Schedule.objects.values().get()
    told = save(
        logged_in(*RIGHTS), foreign.pk, **{**UNCHANGED, "repeats": str(expected["repeats"]), **change}
    )
    assert REFUSED in told
    assert Schedule.objects.values().get() == expected
    save(logged_in_as_root(), foreign.pk, **{**UNCHANGED, "repeats": str(expected["repeats"]), **change})
    assert Schedule.objects.values().get() != expected


@override_settings(QWORKER_SCHEDULE_ALLOW=["math.sqrt"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"args": "'rm x'"}, CHANGED),
        ({"kwargs": "x=2"}, CHANGED),
        ({"intended_date_kwarg": "shell"}, CHANGED),
        ({"func": "os.abort"}, REFUSED),
        ({"func": "math.sqrt"}, REFUSED),  # its hook would be called with the result of math.sqrt
        ({"hook": "os.nice"}, REFUSED),
        ({"hook": ""}, REFUSED),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_foreign_schedule_cannot_be_changed(change: dict[str, str], told: str) -> None:
    made = Schedule.objects.create(**FOREIGN, next_run=START)
    assert told in save(logged_in(*RIGHTS), made.pk, **{**FOREIGN, **change}, repeats="0")
    found = Schedule.objects.get()
    assert (found.repeats, {name: getattr(found, name) for name in FOREIGN}) == (-1, FOREIGN)
    assert not found.intended_date_kwarg


def test_save_as_new_requires_permission() -> None:
    class Copied(ScheduleAdmin):
        save_as = True

    made = Schedule.objects.create(func="os.system", args="'true'", next_run=START)
    client = logged_in(*RIGHTS)
    with custom_site(Copied):
        text = client.post(
            f"/admin/qworker/schedule/{made.pk}/change/",
            {**FORM, "func": "os.system", "args": "'true'", "_saveasnew": "1"},
            follow=True,
        ).content.decode()
    assert REFUSED in text
    assert Schedule.objects.count() == 1


class custom_site:
    """Use a site with another admin class for schedules."""

    def __init__(self, kind: type[ScheduleAdmin]) -> None:
        site = admin.AdminSite()
        for model in (Success, Failure, OrmQ):
            site.register(model, type(admin.site._registry[model]))
        site.register(Schedule, kind)

        class Site(Pages):
            urlpatterns = [path("admin/", site.urls)]

        self._settings = override_settings(ROOT_URLCONF=Site())

    def __enter__(self) -> None:
        self._settings.enable()

    def __exit__(self, *_: Any) -> None:
        self._settings.disable()


@pytest.mark.parametrize(
    ("fields", "change", "refused"),
    [
        (("func", "args"), {"func": "os.abort"}, True),
        (("func", "args"), {"args": "'rm x'"}, True),
        (("args",), {"args": "'rm x'"}, True),
        (("repeats",), {"repeats": "0"}, False),
        (("repeats",), {"repeats": "5"}, True),
    ],
    ids=str,
)
def test_list_editable_requires_permission(
    fields: tuple[str, ...], change: dict[str, str], refused: bool
) -> None:
    class Edited(ScheduleAdmin):
        list_display = ("id", *fields)
        list_editable = fields

    made = Schedule.objects.create(func="os.system", args="'true'", next_run=START)
    client = logged_in(*RIGHTS)
    before = {"func": "os.system", "args": "'true'", "repeats": "-1"}
    row = {f"form-0-{name}": {**before, **change}[name] for name in fields}
    forms = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": str(made.pk), "_save": "Save"}
    with custom_site(Edited):
        client.post("/admin/qworker/schedule/", {**forms, **row})
    found = Schedule.objects.get()
    assert (found.func, found.args) == ("os.system", "'true'")
    assert found.repeats == (-1 if refused else 0)


@override_settings(QWORKER_SCHEDULE_ALLOW="exposed")
def test_setting_can_restrict_superusers() -> None:
    assert REFUSED in save(logged_in(superuser=True), func="os.system")
    assert schedules.exposed_names() == schedules.exposed_names()
    assert not schedules.is_exposed("e")
    assert Schedule.objects.count() == 0


def test_registered_tasks_are_offered() -> None:
    app = QWorker("chosen")
    app.task(name="shop.tasks.registered")(len)
    client = logged_in(*RIGHTS)
    assert "shop.tasks.registered" in client.get("/admin/qworker/schedule/add/").content.decode()


def test_change_of_the_function_is_logged() -> None:
    client = logged_in(superuser=True)
    save(client)
    save(client, Schedule.objects.get().pk, func="math.floor", args="5")
    notes = [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]
    assert notes[1].startswith("Changed Function, Arguments")


@pytest.mark.parametrize("model", ["schedule", "success", "failure", "ormq"])
def test_user_without_permission_sees_nothing(model: str) -> None:
    client = logged_in()
    assert client.get(f"/admin/qworker/{model}/").status_code == 403
    assert model not in client.get("/admin/").content.decode()


@pytest.mark.parametrize("model", ["schedule", "ormq"])
def test_view_permission_does_not_allow_changes(model: str) -> None:
    schedule, message = Schedule.objects.create(func="math.sqrt", next_run=START), queued()
    key = {"schedule": schedule, "ormq": message}[model].pk
    client = logged_in(f"view_{model}")
    text = client.get(f"/admin/qworker/{model}/{key}/change/")
    assert text.status_code == 200
    assert "_save" not in text.content.decode()
    given = {**FORM, "func": "os.abort", "key": "other", "lock_0": "", "lock_1": ""}
    assert client.post(f"/admin/qworker/{model}/{key}/change/", given).status_code == 403
    assert act(client, model, "delete_selected", key)
    assert (Schedule.objects.get().func, OrmQ.objects.get().key) == ("math.sqrt", "default")


# -- the queue --


def queued() -> OrmQ:
    package = {"id": "a" * 32, "name": "waits", "func": "math.sqrt", "args": (4,), "kwargs": {}}
    with connection.cursor() as cursor:
        insert(cursor, "sqlite", "default", SignedPackage.dumps(package))
    return OrmQ.objects.get()


def test_function_of_a_message_cannot_be_edited() -> None:
    row = queued()
    before = bytes(row.body), row.headers
    evil = SignedPackage.dumps({"id": "a" * 32, "name": "x", "func": "os.abort", "args": (), "kwargs": {}})
    given = {
        "key": "other", "lock_0": "", "lock_1": "", "func": "os.abort", "args": "()", "body": evil,
        "headers": "{}", "payload": evil, "task": evil, "q_options": "{}", "state": "1",
    }  # fmt: skip
    client = logged_in("change_ormq", "view_ormq")
    assert client.post(f"/admin/qworker/ormq/{row.pk}/change/", given).status_code == 302
    found = OrmQ.objects.get()
    assert (bytes(found.body), found.headers, found.key) == (*before, "other")


# -- sending again --


def task(key: str, success: bool = False, **values: Any) -> str:
    found = {
        "name": key, "func": "math.floor", "args": (1,), "kwargs": {"hook": 1}, "hook": "math.sqrt",
        "group": "g", "cluster": "one", "started": START,
        "stopped": START + timedelta(seconds=1), "success": success,
    }  # fmt: skip
    return str(Task.objects.create(id=f"{key:0>32}", **{**found, **values}).pk)


def test_resubmitted_failure_is_unchanged_and_deleted() -> None:
    key = task("a")
    assert "1 task was resubmitted." in act(logged_in(superuser=True), "failure", "resubmit_tasks", key)
    (package,) = sent()
    options = {"hook": "math.sqrt", "group": "g", "cluster": "one"}
    assert {name: package[name] for name in options} == options
    assert (package["func"], package["args"], package["kwargs"]) == ("math.floor", (1,), {"hook": 1})
    assert Task.objects.count() == 0
    assert [(entry.object_id, entry.change_message) for entry in LogEntry.objects.all()] == [
        (key, "Resubmitted to the queue.")
    ]


def test_resubmitted_success_is_kept() -> None:
    keys = task("a", True), task("b", True, func="math.ceil")
    act(logged_in(superuser=True), "success", "resubmit_tasks", *keys)
    assert sorted(each["func"] for each in sent()) == ["math.ceil", "math.floor"]
    assert Success.objects.count() == 2


def spoil(given: dict[str, Any]) -> None:
    """Add a value that cannot be pickled to the argument, and fail."""
    given["lock"] = threading.Lock()
    raise LookupError


def keep(given: dict[str, Any]) -> None:
    """Like spoil(), but succeed."""
    given["lock"] = threading.Lock()


@pytest.mark.parametrize(("func", "model"), [(spoil, Failure), (keep, Success)])
def test_resubmit_sends_the_original_arguments(func: Any, model: Any) -> None:
    tasks.async_task(func, {"user": 1}, sync=True)
    (task,) = model.objects.all()
    assert "lock" in str(task.args)
    assert resubmit(model.objects.all()).errors == []
    (package,) = sent()
    assert package["args"] == ({"user": 1},)


def test_resubmit_keeps_options_and_the_rest_of_a_chain() -> None:
    rest = [("math.floor", (2,)), "math.ceil"]
    options = {"hook": "math.sqrt", "group": "g", "timeout": 7, "save": True, "ack_failure": True}
    tasks.async_task(
        "math.sqrt",
        -1,
        q_options={**options, "chain": rest, "task_name": "mine", "sync": True, "cluster": "two"},
    )
    assert resubmit(Failure.objects.all()).errors == []
    (package,) = sent()
    assert package["name"] == "mine"
    assert {name: package[name] for name in options} == options
    assert (package["chain"], package["cluster"], package["args"]) == (rest, "two", (-1,))
    assert not {"slot", "success", "result", "stopped", "attempt"} & package.keys()


def test_resubmit_generates_a_new_name() -> None:
    first = tasks.async_task("math.sqrt", -1, sync=True)
    resubmit(Failure.objects.all())
    (package,) = sent()
    assert package["id"] != first
    assert package["name"] == humanize(package["id"])


def test_resubmit_keeps_options_of_a_success() -> None:
    tasks.async_task("math.sqrt", 4, timeout=7, sync=True)
    tasks.async_task("math.sqrt", 9, sync=True)
    assert sorted(bool(task.package) for task in Success.objects.all()) == [False, True]
    resubmit(Success.objects.all())
    assert sorted((each["args"], each.get("timeout")) for each in sent()) == [((4,), 7), ((9,), None)]


@pytest.mark.parametrize("items", [[4, -1, 9], []])
def test_iterables_cannot_be_resubmitted(items: list[int]) -> None:
    tasks.async_iter("math.sqrt", items, sync=True)
    (whole,) = Task.objects.all()
    (error,) = resubmit(type(whole).objects.filter(pk=whole.pk)).errors
    assert "async_iter" in error[1]
    assert sent() == []
    assert Task.objects.count() == 1


def test_task_without_stored_package_cannot_be_resubmitted() -> None:
    task("a", package="")
    (error,) = resubmit(Failure.objects.all()).errors
    assert "were not kept" in error[1]
    assert (sent(), Failure.objects.count()) == ([], 1)


def test_forged_package_is_not_loaded() -> None:
    """Write access to the table does not include the key."""
    with override_settings(SECRET_KEY="another"):
        forged = SignedPackage.dumps(
            {"id": "a" * 32, "name": "x", "func": "os.abort", "args": (), "kwargs": {}}
        )
    task("a", package=forged)
    (error,) = resubmit(Failure.objects.all()).errors
    assert "BadSignature" in error[1]
    assert (sent(), Failure.objects.count()) == ([], 1)


def test_resubmit_ignores_other_posted_fields() -> None:
    key = task("a")
    given = {"action": "resubmit_tasks", "_selected_action": [key], "func": "os.abort", "args": "()"}
    logged_in("change_failure").post("/admin/qworker/failure/", given)
    assert [each["func"] for each in sent()] == ["math.floor"]


@pytest.mark.parametrize("permissions", [(), ("view_failure",), ("view_failure", "delete_failure")])
def test_resubmit_requires_change_permission(permissions: tuple[str, ...]) -> None:
    key = task("a")
    client = logged_in(*permissions)
    assert "resubmit_tasks" not in client.get("/admin/qworker/failure/").content.decode()
    act(client, "failure", "resubmit_tasks", key)
    assert sent() == []
    assert Failure.objects.count() == 1


@pytest.mark.parametrize("name", ["success", "failure"])
def test_tasks_cannot_be_edited(name: str) -> None:
    key = task("a", name == "success")
    client = logged_in(f"change_{name}", f"view_{name}", f"add_{name}")
    assert client.post(f"/admin/qworker/{name}/{key}/change/", {"func": "os.abort"}).status_code == 403
    assert client.post(f"/admin/qworker/{name}/add/", {"func": "os.abort"}).status_code == 403
    assert Task.objects.get().func == "math.floor"


@pytest.mark.parametrize("wrong", [{"args": "no tuple"}, {"kwargs": [1]}, {"args": {"a": 1}}])
def test_resubmit_reports_undecodable_tasks_and_sends_the_others(wrong: dict[str, Any]) -> None:
    bad = task("bad", **wrong)
    with connection.cursor() as cursor:
        gone = task("gone")
        cursor.execute(
            f"UPDATE {Task._meta.db_table} SET args = 'gASMBGdvbmWMAXiTLg==' WHERE id = %s", (gone,)
        )
    odd = {"q_options": {"func": "os.abort"}}
    keys = task("a"), task("b", args=None, kwargs=None), task("c", kwargs=odd)
    text = act(logged_in(superuser=True), "failure", "resubmit_tasks", bad, gone, *keys)
    assert "Bad was not sent" in text
    assert "Gone was not sent" in text
    assert "3 tasks were resubmitted." in text
    assert sorted(Failure.objects.values_list("name", flat=True)) == ["bad", "gone"]
    assert {each["func"] for each in sent()} == {"math.floor"}


def test_failures_are_kept_if_the_broker_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_unavailable(*_: Any) -> Any:
        raise BrokerUnavailable("no connection")

    monkeypatch.setattr(calls, "get_broker", raise_unavailable)
    text = act(logged_in(superuser=True), "failure", "resubmit_tasks", task("a"), task("b"))
    assert text.count("no connection") == 1
    assert Failure.objects.count() == 2


def test_many_failures_are_resubmitted() -> None:
    for number in range(120):
        task(f"{number}")
    client = logged_in(superuser=True)
    act(client, "failure", "resubmit_tasks", *Failure.objects.values_list("pk", flat=True))
    assert len(sent()) == 120
    assert Failure.objects.count() == 0


def test_resubmit_loads_pickles_that_the_page_does_not() -> None:
    act(logged_in(superuser=True), "failure", "resubmit_tasks", task("a", args=(START, {1})))
    assert sent()[0]["args"] == pickle.loads(pickle.dumps((START, {1})))
