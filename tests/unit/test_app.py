"""The app: configuration, registry, shared tasks, middleware and connections."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qworker
from qworker import Middleware, QWorker, shared_task
from qworker.context import set_default_app, set_default_maker
from qworker.errors import ConfigurationError, NotRegistered
from tests.support.shared_tasks import nothing_left_behind
from tests.support.stores import KeepingStore, make_app


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    with nothing_left_behind():
        yield


# -- the package --


def test_every_public_name_exists() -> None:
    for name in qworker.__all__:
        assert getattr(qworker, name) is not None
    assert set(qworker.__all__) <= set(dir(qworker))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = qworker.nothing


@pytest.mark.parametrize(("name", "words"), [("Celery", "QWorker"), ("schedules", "qworker.beat")])
def test_celery_name_is_refused_with_advice(name: str, words: str) -> None:
    with pytest.raises(ImportError, match=f"no qworker.{name}: .*{words}"):
        exec(f"from qworker import {name}")


@pytest.mark.parametrize(
    "statement", ["import qworker.{}", "from qworker.{} import x", "from qworker import {}"]
)
@pytest.mark.parametrize("module", ["exceptions", "utils", "bin", "contrib", "schedules"])
def test_celery_module_is_refused_with_advice(module: str, statement: str) -> None:
    with pytest.raises(ImportError, match=f"there is no qworker.{module}: "):
        exec(statement.format(module))


@pytest.mark.parametrize(
    ("typo", "expected"),
    [
        ("shared_tasks", "shared_task"),
        ("chains", "chain"),
        ("Qworker", "QWorker"),
        ("AsyncResults", "AsyncResult"),
    ],
)
def test_misspelt_public_name_gets_a_suggestion(typo: str, expected: str) -> None:
    with pytest.raises(ImportError, match=f"qworker has no '{typo}'; did you mean '{expected}'?"):
        exec(f"from qworker import {typo}")
    assert not hasattr(qworker, typo)


def test_unknown_module_raises_module_not_found() -> None:
    for name in ("qworker.nothing", "qworker.canvas.nothing", "qworker_other"):
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            __import__(name)


def test_making_an_app_imports_little_and_writes_no_files(tmp_path: Path) -> None:
    code = (
        "import sys, os; before = set(sys.modules); from qworker import QWorker; app = QWorker('x');\n"
        "@app.task\ndef add(x: int, y: int) -> int: return x + y\n"
        "heavy = {'sqlalchemy', 'asyncio', 'sqlite3', 'kombu', 'vine', 'uuid', 'email', 'http', 'click', "
        "'ssl'};\n"
        "print(sorted(heavy & (set(sys.modules) - before)), os.listdir('.'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] []"


def test_embedded_broker_worker_does_not_import_heavy_modules(tmp_path: Path) -> None:
    """OpenSSL alone is 3 MB in each worker, and ``hashlib`` loads it."""
    code = (
        "import sys; from qworker import QWorker; from qworker.worker import Worker\n"
        "worker = Worker(QWorker('x'), concurrency=1); worker.start(); worker.stop()\n"
        "heavy = {'sqlalchemy', 'asyncio', 'kombu', 'uuid', 'email', 'http', 'click', 'ssl', 'hashlib', "
        "'decimal', 'dateutil', 'zoneinfo', 'redis', 'amqp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert _printed(code, tmp_path) == "[]"


def test_worker_starts_without_importing_workflows(tmp_path: Path) -> None:
    rooms = ("canvas.chains", "canvas.groups", "canvas.plan", "publishing.workflows", "results.group_result")
    code = (
        "import sys; from qworker import QWorker; from qworker.worker import Worker\n"
        "worker = Worker(QWorker('x'), concurrency=1); worker.start(); worker.stop()\n"
        f"print([room for room in {rooms} if 'qworker.' + room in sys.modules])\n"
        "from qworker import chain, group, signature\n"
        f"print([room for room in {rooms} if 'qworker.' + room in sys.modules])"
    )
    assert _printed(code, tmp_path).splitlines() == [
        "[]",
        str(["canvas.chains", "canvas.groups", "results.group_result"]),
    ]


def _printed(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


# -- configuration --


def test_settings_come_from_arguments_and_config_from_object() -> None:
    app = QWorker(
        "proj", broker="sqlite:///a.db", backend="disabled://", include=["m"], task_default_queue="q"
    )
    assert (app.conf.broker_url, app.conf.result_backend, app.conf.include, app.conf.task_default_queue) == (
        "sqlite:///a.db", "disabled://", ("m",), "q",
    )  # fmt: skip
    app.config_from_object({"task_default_queue": "other"})
    assert app.conf.task_default_queue == "other"


@pytest.mark.parametrize("name", ["broker_ulr", "task_time_limt", "concurrency", "nonsense"])
def test_unknown_setting_is_refused_by_the_constructor(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown setting '{name}'"):
        QWorker("proj", set_as_current=False, **{name: 1})


def test_config_from_a_module_and_an_environment_variable(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    project(
        **{
            "conf_one.py": "task_default_queue = 'one'\n",
            "conf_two.py": "CELERY_TASK_DEFAULT_QUEUE = 'two'\n",
        }
    )
    app = QWorker("proj", config_source="conf_one")
    assert app.conf.task_default_queue == "one"
    app.config_from_object("conf_two", namespace="CELERY")
    assert app.conf.task_default_queue == "two"
    monkeypatch.setenv("MY_CONF", "conf_one")
    app.config_from_envvar("MY_CONF")
    assert app.conf.task_default_queue == "one"
    with pytest.raises(ConfigurationError, match="MY_OTHER is not set"):
        app.config_from_envvar("MY_OTHER")


def test_invalid_setting_is_reported_on_first_use() -> None:
    app = QWorker("proj", task_max_deliveries=0)
    with pytest.raises(ConfigurationError, match="task_max_deliveries"):
        app.send_task("work")


# -- tasks --


def test_unknown_task_gets_a_suggestion() -> None:
    app, _, _ = make_app()

    @app.task(name="proj.tasks.add")
    def add() -> None: ...

    with pytest.raises(NotRegistered, match=r"'proj.tasks.ad' is registered; did you mean 'proj.tasks.add'"):
        app.tasks["proj.tasks.ad"]
    assert app.tasks.get("nothing") is None
    app.tasks.unregister("proj.tasks.add")
    with pytest.raises(NotRegistered):
        app.tasks.unregister("proj.tasks.add")


def test_two_functions_cannot_share_a_task_name() -> None:
    app, _, _ = make_app()

    @app.task(name="same")
    def first() -> int:
        return 1

    with pytest.raises(ConfigurationError, match=r"two tasks are named 'same'.*first.*second"):

        @app.task(name="same")
        def second() -> int:
            return 2

    assert app.tasks["same"]() == 1


def test_reimported_module_replaces_its_tasks() -> None:
    app, _, _ = make_app()

    def define(value: int) -> Any:
        @app.task(name="again")
        def again() -> int:
            return value

        return again

    define(1)
    app.finalize()
    latest = define(2)
    assert app.tasks["again"] is latest
    assert latest.acks_late is True


def test_task_name_in_main_starts_with_the_app_name() -> None:
    app = QWorker("proj.tasks", broker=KeepingStore())

    def work() -> None: ...

    work.__module__ = "__main__"
    assert app.task(work).name == "proj.tasks.work"


def test_app_is_finalized_once_and_sends_the_signal() -> None:
    app, _, _ = make_app()
    senders: list[Any] = []
    app.on_after_finalize.connect(lambda sender, **kwargs: senders.append(sender))
    app.finalize()
    app.finalize()
    assert senders == [app]


def test_load_tasks_imports_listed_and_discovered_modules(project: Callable[..., Path]) -> None:
    body = "from qworker import current_app\n@current_app.task(name='{0}')\ndef work(): pass\n"
    project(
        **{
            "listed.py": body.format("listed"),
            "included.py": body.format("included"),
            "shop/__init__.py": "",
            "shop/tasks.py": body.format("shop"),
            "empty/__init__.py": "",
        }
    )
    app = QWorker("proj", broker=KeepingStore(), imports=["listed"], include=["included"])
    app.autodiscover_tasks(["shop", "empty"])
    app.autodiscover_tasks(lambda: ["shop"])
    app.load_tasks()
    assert sorted(name for name in app.tasks if not name.startswith(("celery.", "qworker."))) == [
        "included",
        "listed",
        "shop",
    ]


def test_missing_module_in_imports_is_reported() -> None:
    app = QWorker("proj", broker=KeepingStore(), imports=["nowhere_at_all.tasks"])
    with pytest.raises(
        ConfigurationError, match=r"no module named 'nowhere_at_all' .looked for 'nowhere_at_all.tasks'"
    ):
        app.load_tasks()


def test_autodiscovery_without_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django.conf", raising=False)  # imported by other tests
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    with pytest.raises(ConfigurationError, match="packages to look in"):
        QWorker(set_as_current=False).autodiscover_tasks()


def test_autodiscovery_skips_plain_modules(project):
    project(**{"single.py": ""})
    app = QWorker(set_as_current=False)
    app.autodiscover_tasks(["single"])
    app.load_tasks()
    app.autodiscover_tasks(["nowhere.at_all"])
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        app.load_tasks()


def test_import_error_in_a_discovered_module_is_raised(project: Callable[..., Path]) -> None:
    project(**{"shop/__init__.py": "", "shop/tasks.py": "import nothing_of_that_name\n"})
    app = QWorker("proj", broker=KeepingStore())
    app.autodiscover_tasks(["shop"])
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        app.load_tasks()


# -- shared tasks --


@pytest.fixture
def _no_app_of_earlier_tests() -> None:
    """Shared tasks reach every living app, including apps of earlier tests that only a cycle keeps alive."""
    gc.collect()


@pytest.mark.usefixtures("_no_app_of_earlier_tests")
def test_shared_task_belongs_to_every_app() -> None:
    early = QWorker("early", broker=KeepingStore())
    early.finalize()

    @shared_task
    def add(x: int, y: int) -> int:
        return x + y

    @shared_task(bind=True, name="named", max_retries=9)
    def named(self: Any) -> str:
        return str(self.name)

    late = QWorker("late", broker=KeepingStore())
    for app in (early, late):
        assert {"tests.unit.test_app.add", "named"} <= set(app.tasks)
        assert app.tasks["named"].max_retries == 9
    assert add.app is late
    assert (add(1, 2), named()) == (3, "named")
    add.delay(1, 2)
    assert (len(late.broker.sent), len(early.broker.sent)) == (1, 0)  # type: ignore[attr-defined]
    set_default_app(early)
    assert add.app is early
    assert add == early.tasks["tests.unit.test_app.add"]


@pytest.mark.usefixtures("_no_app_of_earlier_tests")
def test_shared_task_without_an_app_is_refused_with_advice() -> None:
    set_default_maker(None)  # other tests of this process may set up Django

    @shared_task
    def work() -> None: ...

    set_default_app(None)
    with pytest.raises(ConfigurationError, match="no app has been made yet"):
        work.delay()


# -- middleware --


def test_middleware_from_settings_and_add_middleware() -> None:
    class First(Middleware):
        options = ("one",)

    class Second(Middleware):
        options = ("two",)

    app, _, _ = make_app(middleware=[First])
    app.add_middleware(Second())
    assert [type(middleware) for middleware in app.middleware] == [First, Second]
    assert app.middleware_options() == {"one", "two"}
    assert app.middleware[0] is app.middleware[0]
    with pytest.raises(ConfigurationError, match="is not a middleware"):
        app.add_middleware(5)  # type: ignore[arg-type]


# -- connections --


def test_results_are_stored_with_the_broker_by_default(project: Callable[..., Path]) -> None:
    project()
    app = QWorker("proj", broker="sqlite:///here.db")
    assert app.results_with_broker
    assert app.backend.url == app.broker.url
    assert not QWorker("proj", broker="sqlite:///here.db", backend="sqlite:///there.db").results_with_broker
    assert not QWorker("proj", broker="sqlite:///here.db", backend="cache+memory://").results_with_broker
    assert QWorker("proj", broker="sqlite:///here.db", backend="sqlite:///here.db").results_with_broker


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("consul://localhost", "no result store for consul"),
        ("rpc://", "leave result_backend unset for the embedded broker"),
        ("sqlit:///x.db", "did you mean sqlite://"),
        ("cache+nosuch://x", "no result store for cache\\+nosuch"),
        ("file://host/path", "does not name a directory"),
        ("file:///", "does not name a directory"),
        ("db+nosuch://x", "nosuch"),
        ("sqlite://host/x.db", "does not name an SQLite file"),
    ],
)
def test_invalid_backend_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _ = QWorker("proj", broker=KeepingStore(), backend=url).backend


def test_closed_app_reopens_its_connections_on_next_use(project: Callable[..., Path]) -> None:
    project()
    with QWorker("proj") as app:
        app.send_task("work")
        first = app.broker
    app.send_task("work")
    assert app.broker is not first
    assert app.broker.admin.queues()[0].ready == 2
    app.close()


def test_signer_follows_the_settings() -> None:
    app, _, _ = make_app()
    assert app.signer is None
    app.conf.security_key = "k" * 32
    assert app.signer is app.signer is not None
    assert app.accept == {"application/json"}
    assert repr(app) == "<QWorker proj>"


@pytest.mark.parametrize("given", [None, 5, ("a", None)], ids=str)
def test_result_id_must_be_text(given: Any) -> None:
    app = QWorker("proj", broker=KeepingStore())
    with pytest.raises(TypeError, match="id of a call as a string"):
        app.AsyncResult(given)


# -- control --


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("inspect", "later version.*`qworker tasks`"),
        ("ping", "`qworker workers`"),
        ("broadcast", "revoke"),
        ("shutdown", "TERM"),
        ("pool_grow", "--concurrency"),
        ("rate_limit", "rate_limit="),
        ("purge", "`qworker purge`"),
        ("add_consumer", "--queues"),
        ("enable_events", "no events yet"),
    ],
)
def test_unsupported_control_command_is_refused_with_advice(command: str, advice: str) -> None:
    control = make_app()[0].control
    with pytest.raises(AttributeError, match=rf"app\.control\.{command}: .*{advice}"):
        getattr(control, command)
    assert not hasattr(control, command)


def test_unknown_control_command_is_refused() -> None:
    control = make_app()[0].control
    with pytest.raises(AttributeError, match=r"has no 'revok'; it has revoke\(\) and terminate\(\)"):
        control.revok("a")


def test_forked_child_drops_promises_of_its_parent() -> None:
    app, _, _ = make_app()
    app.send_task("work").then(print)
    watcher = app.backend.watcher
    assert watcher.promises.waiter.ids
    child = os.fork()
    if not child:
        os._exit(1 if watcher.promises.waiter.ids else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
