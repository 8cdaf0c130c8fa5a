"""Who may do what in the admin: without the right nobody has any function called."""

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
REFUSED, BENT = "You may not schedule this function.", "You may not change the arguments"


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
    """The packages that wait."""
    return [row.task for row in OrmQ.objects.all()]


# -- schedules --


@pytest.mark.parametrize("func", ["os.system", "subprocess.run", "qworker.django.tasks.async_task"])
def test_without_the_permission_any_function_is_refused(func: str) -> None:
    assert REFUSED in save(logged_in(*RIGHTS), func=func, args="'true'")
    assert Schedule.objects.count() == 0


def test_with_the_permission_any_function_is_taken() -> None:
    save(logged_in(*RIGHTS, "schedule_any_callable"), func="os.system", args="'true'")
    assert Schedule.objects.get().func == "os.system"


@override_settings(QWORKER_SCHEDULE_ALLOW=["math.sqrt", "json.decoder.*"])
@pytest.mark.parametrize("func", ["math.sqrt", "json.decoder.py_scanstring", "json.decoder.JSONDecoder"])
def test_without_the_permission_what_is_exposed_is_taken(func: str) -> None:
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
def test_a_pattern_leads_to_nothing_that_its_modules_import(func: str) -> None:
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
def test_what_is_called_is_refused_wherever_it_hides(fields: dict[str, str]) -> None:
    assert REFUSED in save(logged_in(*RIGHTS), **fields)
    assert Schedule.objects.count() == 0


def test_options_do_not_choose_the_function_of_a_package() -> None:
    package = calls.package_of(
        "math.sqrt", (4,), {}, {"func": "os.abort", "args": (), "name": "x", "group": "g"}
    )
    assert (package["func"], package["args"], package["group"]) == ("math.sqrt", (4,), "g")


NEXT_RUN = dict(
    zip(("next_run_0", "next_run_1"), f"{timezone.localtime(START):%Y-%m-%d %H:%M:%S}".split(), strict=True)
)
OTHERS = {"func": "os.system", "hook": "os.abort", "args": "'true'", "kwargs": "x=1"}


AS_IT_IS = {**OTHERS, "name": "", "schedule_type": "D", **NEXT_RUN}


@pytest.fixture
def of_others() -> Schedule:
    return Schedule.objects.create(**OTHERS, schedule_type="D", next_run=START, repeats=-1)


def test_what_somebody_else_scheduled_can_be_paused(of_others: Schedule) -> None:
    save(logged_in(*RIGHTS), of_others.pk, **AS_IT_IS, repeats="0")
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
def test_what_somebody_else_scheduled_cannot_be_called_at_other_times(
    of_others: Schedule, before: dict[str, Any], change: dict[str, str]
) -> None:
    Schedule.objects.update(**before)
    expected = Schedule.objects.values().get()
    told = save(
        logged_in(*RIGHTS), of_others.pk, **{**AS_IT_IS, "repeats": str(expected["repeats"]), **change}
    )
    assert REFUSED in told
    assert Schedule.objects.values().get() == expected
    save(logged_in_as_root(), of_others.pk, **{**AS_IT_IS, "repeats": str(expected["repeats"]), **change})
    assert Schedule.objects.values().get() != expected


@override_settings(QWORKER_SCHEDULE_ALLOW=["math.sqrt"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"args": "'rm x'"}, BENT),
        ({"kwargs": "x=2"}, BENT),
        ({"intended_date_kwarg": "shell"}, BENT),
        ({"func": "os.abort"}, REFUSED),
        ({"func": "math.sqrt"}, REFUSED),  # its hook stays, and would be called with what math.sqrt returns
        ({"hook": "os.nice"}, REFUSED),
        ({"hook": ""}, REFUSED),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_somebody_else_scheduled_cannot_be_bent(change: dict[str, str], told: str) -> None:
    made = Schedule.objects.create(**OTHERS, next_run=START)
    assert told in save(logged_in(*RIGHTS), made.pk, **{**OTHERS, **change}, repeats="0")
    found = Schedule.objects.get()
    assert (found.repeats, {name: getattr(found, name) for name in OTHERS}) == (-1, OTHERS)
    assert not found.intended_date_kwarg


def test_a_copy_is_no_way_around() -> None:
    class Copied(ScheduleAdmin):
        save_as = True

    made = Schedule.objects.create(func="os.system", args="'true'", next_run=START)
    client = logged_in(*RIGHTS)
    with site_with(Copied):
        text = client.post(
            f"/admin/qworker/schedule/{made.pk}/change/",
            {**FORM, "func": "os.system", "args": "'true'", "_saveasnew": "1"},
            follow=True,
        ).content.decode()
    assert REFUSED in text
    assert Schedule.objects.count() == 1


class site_with:
    """The pages of a site whose schedules are of another class."""

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
def test_a_list_that_can_be_edited_is_no_way_around(
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
    with site_with(Edited):
        client.post("/admin/qworker/schedule/", {**forms, **row})
    found = Schedule.objects.get()
    assert (found.func, found.args) == ("os.system", "'true'")
    assert found.repeats == (-1 if refused else 0)


@override_settings(QWORKER_SCHEDULE_ALLOW="exposed")
def test_a_project_may_close_it_for_everybody() -> None:
    assert REFUSED in save(logged_in(superuser=True), func="os.system")
    assert schedules.exposed_names() == schedules.exposed_names()
    assert not schedules.is_exposed("e")
    assert Schedule.objects.count() == 0


def test_a_registered_task_can_be_chosen() -> None:
    app = QWorker("chosen")
    app.task(name="shop.tasks.registered")(len)
    client = logged_in(*RIGHTS)
    assert "shop.tasks.registered" in client.get("/admin/qworker/schedule/add/").content.decode()


def test_a_change_of_what_is_called_is_noted() -> None:
    client = logged_in(superuser=True)
    save(client)
    save(client, Schedule.objects.get().pk, func="math.floor", args="5")
    notes = [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]
    assert notes[1].startswith("Changed Function, Arguments")


@pytest.mark.parametrize("model", ["schedule", "success", "failure", "ormq"])
def test_who_has_no_permission_sees_nothing(model: str) -> None:
    client = logged_in()
    assert client.get(f"/admin/qworker/{model}/").status_code == 403
    assert model not in client.get("/admin/").content.decode()


@pytest.mark.parametrize("model", ["schedule", "ormq"])
def test_who_may_only_look_changes_nothing(model: str) -> None:
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


def test_what_a_message_calls_cannot_be_edited() -> None:
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


def test_a_failure_is_sent_again_just_as_it_was_and_deleted() -> None:
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


def test_a_success_is_sent_again_and_kept() -> None:
    keys = task("a", True), task("b", True, func="math.ceil")
    act(logged_in(superuser=True), "success", "resubmit_tasks", *keys)
    assert sorted(each["func"] for each in sent()) == ["math.ceil", "math.floor"]
    assert Success.objects.count() == 2


def spoil(given: dict[str, Any]) -> None:
    """Puts into its argument what cannot be pickled, and fails."""
    given["lock"] = threading.Lock()
    raise LookupError


def keep(given: dict[str, Any]) -> None:
    """As spoil(), and succeeds."""
    given["lock"] = threading.Lock()


@pytest.mark.parametrize(("func", "model"), [(spoil, Failure), (keep, Success)])
def test_what_the_function_did_to_its_arguments_is_not_sent(func: Any, model: Any) -> None:
    tasks.async_task(func, {"user": 1}, sync=True)
    (task,) = model.objects.all()
    assert "lock" in str(task.args)
    assert resubmit(model.objects.all()).errors == []
    (package,) = sent()
    assert package["args"] == ({"user": 1},)


def test_options_and_the_rest_of_a_chain_are_sent_along() -> None:
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


def test_a_name_that_was_made_up_is_made_up_again() -> None:
    first = tasks.async_task("math.sqrt", -1, sync=True)
    resubmit(Failure.objects.all())
    (package,) = sent()
    assert package["id"] != first
    assert package["name"] == humanize(package["id"])


def test_options_of_a_success_are_sent_along_and_plain_rows_have_no_package() -> None:
    tasks.async_task("math.sqrt", 4, timeout=7, sync=True)
    tasks.async_task("math.sqrt", 9, sync=True)
    assert sorted(bool(task.package) for task in Success.objects.all()) == [False, True]
    resubmit(Success.objects.all())
    assert sorted((each["args"], each.get("timeout")) for each in sent()) == [((4,), 7), ((9,), None)]


@pytest.mark.parametrize("items", [[4, -1, 9], []])
def test_an_iterable_is_no_call_and_stays(items: list[int]) -> None:
    tasks.async_iter("math.sqrt", items, sync=True)
    (whole,) = Task.objects.all()
    (error,) = resubmit(type(whole).objects.filter(pk=whole.pk)).errors
    assert "async_iter" in error[1]
    assert sent() == []
    assert Task.objects.count() == 1


def test_what_was_not_kept_is_not_sent_and_stays() -> None:
    task("a", package="")
    (error,) = resubmit(Failure.objects.all()).errors
    assert "were not kept" in error[1]
    assert (sent(), Failure.objects.count()) == ([], 1)


def test_a_package_that_somebody_else_has_written_is_not_read() -> None:
    """Who can write to the table knows no key."""
    with override_settings(SECRET_KEY="another"):
        forged = SignedPackage.dumps(
            {"id": "a" * 32, "name": "x", "func": "os.abort", "args": (), "kwargs": {}}
        )
    task("a", package=forged)
    (error,) = resubmit(Failure.objects.all()).errors
    assert "BadSignature" in error[1]
    assert (sent(), Failure.objects.count()) == ([], 1)


def test_what_is_posted_beside_changes_no_call() -> None:
    key = task("a")
    given = {"action": "resubmit_tasks", "_selected_action": [key], "func": "os.abort", "args": "()"}
    logged_in("change_failure").post("/admin/qworker/failure/", given)
    assert [each["func"] for each in sent()] == ["math.floor"]


@pytest.mark.parametrize("permissions", [(), ("view_failure",), ("view_failure", "delete_failure")])
def test_who_may_not_change_failures_sends_nothing_again(permissions: tuple[str, ...]) -> None:
    key = task("a")
    client = logged_in(*permissions)
    assert "resubmit_tasks" not in client.get("/admin/qworker/failure/").content.decode()
    act(client, "failure", "resubmit_tasks", key)
    assert sent() == []
    assert Failure.objects.count() == 1


@pytest.mark.parametrize("name", ["success", "failure"])
def test_who_may_change_tasks_edits_none(name: str) -> None:
    key = task("a", name == "success")
    client = logged_in(f"change_{name}", f"view_{name}", f"add_{name}")
    assert client.post(f"/admin/qworker/{name}/{key}/change/", {"func": "os.abort"}).status_code == 403
    assert client.post(f"/admin/qworker/{name}/add/", {"func": "os.abort"}).status_code == 403
    assert Task.objects.get().func == "math.floor"


@pytest.mark.parametrize("wrong", [{"args": "no tuple"}, {"kwargs": [1]}, {"args": {"a": 1}}])
def test_one_that_cannot_be_read_is_told_and_the_others_are_sent(wrong: dict[str, Any]) -> None:
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


def test_without_a_broker_the_failures_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise BrokerUnavailable("nobody is there")

    monkeypatch.setattr(calls, "get_broker", away)
    text = act(logged_in(superuser=True), "failure", "resubmit_tasks", task("a"), task("b"))
    assert text.count("nobody is there") == 1
    assert Failure.objects.count() == 2


def test_many_are_sent_again_with_few_queries_each() -> None:
    for number in range(120):
        task(f"{number}")
    client = logged_in(superuser=True)
    act(client, "failure", "resubmit_tasks", *Failure.objects.values_list("pk", flat=True))
    assert len(sent()) == 120
    assert Failure.objects.count() == 0


def test_a_pickle_that_the_page_would_not_read_is_read_when_it_is_sent() -> None:
    act(logged_in(superuser=True), "failure", "resubmit_tasks", task("a", args=(START, {1})))
    assert sent()[0]["args"] == pickle.loads(pickle.dumps((START, {1})))
