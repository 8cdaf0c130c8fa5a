"""Configuration of an app: signals, precedence of sources, unsupported names, its command line."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.conf.workers import OPTIONS
from qworker.control.embedded import WorkerOptions
from qworker.errors import ConfigurationError, NotAvailable
from tests.support.shared_tasks import nothing_left_behind
from tests.support.stores import KeepingStore


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    with nothing_left_behind():
        yield
    gc.collect()  # an app with a wrong setting must not meet the shared tasks of other tests


def make(**options: Any) -> QWorker:
    return QWorker("proj", broker=KeepingStore(), **options)


# -- signals --


def test_configure_signals_are_sent_once() -> None:
    app = make(timezone="Europe/Berlin")
    events: list[Any] = []

    @app.on_configure.connect
    def before(sender: QWorker, **kwargs: Any) -> None:
        events.append("before")
        sender.conf.update(task_default_queue="early")

    @app.on_after_configure.connect
    def after(sender: QWorker, source: Any, **kwargs: Any) -> None:
        events.append((sender, source, source.timezone, source.task_default_queue))
        sender.conf.update(task_track_started=True)

    assert not events
    assert app.conf.task_default_queue == "early"
    assert events == ["before", (app, app.conf, "Europe/Berlin", "early")]
    assert app.conf.task_track_started is True
    app.conf.update(timezone="UTC")
    assert len(events) == 2


def test_on_after_configure_receiver_can_read_the_tasks() -> None:
    app = make()
    events: list[Any] = []

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    app.on_after_configure.connect(lambda sender, **kwargs: events.append(add.name in sender.tasks))
    app.on_after_finalize.connect(lambda sender, **kwargs: events.append("finalized"))
    app.finalize()
    assert events == ["finalized", True]


def test_periodic_tasks_are_added_in_on_after_configure() -> None:
    app = make()

    @app.task(name="work")
    def work(*args: Any, **kwargs: Any) -> None:
        pass

    @app.on_after_configure.connect
    def setup_periodic_tasks(sender: QWorker, **kwargs: Any) -> None:
        named = sender.add_periodic_task(
            10.0, work.s(1).set(queue="low"), (2,), {"x": 3}, name="often", expires=5, jitter=2
        )
        assert named == "often"
        assert sender.add_periodic_task("@daily", "work") == "work()"

    app.finalize()
    assert app.periodic_tasks == {
        "often": {
            "task": "work",
            "schedule": 10.0,
            "args": (1, 2),
            "kwargs": {"x": 3},
            "options": {"queue": "low", "expires": 5},
            "jitter": 2,
        },
        "work()": {"task": "work", "schedule": "@daily", "args": (), "kwargs": {}, "options": {}},
    }


def test_unsupported_method_in_a_receiver_is_raised() -> None:
    app = make()

    @app.on_after_configure.connect
    def set_up(sender: QWorker, **kwargs: Any) -> None:
        sender.setup_security()  # type: ignore[attr-defined]

    with pytest.raises(NotAvailable, match=r"app\.setup_security is not in qworker"):
        app.finalize()


def test_other_errors_of_a_receiver_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = make()
    app.on_after_configure.connect(lambda **kwargs: 1 / 0)
    with caplog.at_level(logging.ERROR):
        assert app.conf.task_default_queue
    assert "a receiver of signal on_after_configure raised" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_on_after_fork_is_sent_in_the_child() -> None:
    app = make()
    readable, writable = os.pipe()
    app.on_after_fork.connect(lambda sender, **kwargs: os.write(writable, b"told"))
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writable)
    assert os.read(readable, 100) == b"told"
    os.close(readable)


# -- sources of values --


def test_add_defaults_has_the_lowest_precedence(project: Callable[..., Path]) -> None:
    project(**{"celeryconfig.py": "timezone = 'Europe/London'\n"})
    app = make(task_default_queue="said")
    asked: list[str] = []

    def late() -> Mapping[str, Any]:
        asked.append("late")
        return {"timezone": "Asia/Tokyo", "result_expires": 60}

    app.add_defaults({"task_default_queue": "default", "result_expires": 30, "task_track_started": True})
    app.add_defaults(late)
    app.config_from_object("celeryconfig")
    assert not asked
    conf = app.conf
    assert (conf.task_default_queue, conf.timezone, conf.result_expires, conf.task_track_started) == (
        "said", "Europe/London", 60, True,
    )  # fmt: skip
    assert conf.source("result_expires") == "add_defaults"
    app.conf.add_defaults({"worker_concurrency": 3})
    assert app.conf.worker_concurrency == 3


def test_setdefault_keeps_given_values() -> None:
    app = make(worker_concurrency=2)
    assert app.conf.setdefault("worker_concurrency", 9) == 2
    assert app.conf.setdefault("worker_max_tasks_per_child", 9) == 9
    assert app.conf.worker_max_tasks_per_child == 9


def test_missing_silent_source_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make()
    app.config_from_object("nowhere_at_all", silent=True)
    assert app.config_from_envvar("NO_SUCH_VARIABLE", silent=True) is False
    with pytest.raises(ConfigurationError, match="NO_SUCH_VARIABLE is not set"):
        app.config_from_envvar("NO_SUCH_VARIABLE")
    monkeypatch.setenv("PROJ_CONFIG", "nowhere_at_all")
    assert app.config_from_envvar("PROJ_CONFIG", silent=True) is True
    assert app.conf.timezone == "UTC"
    with pytest.raises(ConfigurationError, match="nowhere_at_all"):
        app.config_from_object("nowhere_at_all")


def test_force_reads_the_settings_at_once(project: Callable[..., Path]) -> None:
    project(**{"celeryconfig.py": "timezone = 'Nowhere/Else'\n"})
    with pytest.raises(ConfigurationError, match="timezone"):
        make().config_from_object("celeryconfig", force=True)


def test_namespace_argument_applies_to_the_config_source() -> None:
    app = make(config_source={"CELERY_TIMEZONE": "Asia/Tokyo", "DEBUG": True}, namespace="CELERY")
    assert app.conf.timezone == "Asia/Tokyo"
    assert make(changes={"timezone": "Asia/Tokyo"}).conf.timezone == "Asia/Tokyo"


def test_settings_as_table_and_text() -> None:
    app = QWorker("proj", broker="redis://:secret@host/1", timezone="Asia/Tokyo")
    table = app.conf.table()
    assert table == {"broker_url": "redis://:********@host/1", "timezone": "Asia/Tokyo"}
    assert app.conf.table(censored=False)["broker_url"] == "redis://:secret@host/1"
    assert app.conf.table(with_defaults=True)["task_default_queue"] == app.conf.task_default_queue
    assert app.conf.humanize() == "broker_url: 'redis://:********@host/1'\ntimezone: 'Asia/Tokyo'"
    assert "task_default_queue: " in app.conf.humanize(with_defaults=True)
    assert dict(app.conf.items())["timezone"] == "Asia/Tokyo"
    assert "Asia/Tokyo" in app.conf.values()


# -- unsupported arguments --


@pytest.mark.parametrize("argument", ["loader", "fixups", "autofinalize", "strict_typing", "amqp", "tasks"])
def test_app_arguments_only_known_to_celery_are_refused(argument: str) -> None:
    with pytest.raises(NotAvailable, match=rf"QWorker\(…\): {argument} is not in qworker: "):
        make(**{argument: None})


def test_worker_arguments_only_known_to_celery_are_refused() -> None:
    with pytest.raises(
        NotAvailable, match=r"app\.Worker\(…\): loglevel is not in qworker: the program configures"
    ):
        make().Worker(loglevel="INFO")  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"no argument 'concurency'; it has hostname, queues, concurrency, pool"
    ):
        make().Worker(concurency=2)  # type: ignore[call-arg]
    assert WorkerOptions.__annotations__.keys() == OPTIONS.keys()


def test_invalid_backend_class_is_refused() -> None:
    app = QWorker("proj", backend=dict)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="result_backend"):
        app.conf.resolve()


def test_subclass_with_loader_cls_is_refused() -> None:
    with pytest.raises(NotAvailable, match="class Other: loader_cls is not in qworker"):

        class Other(QWorker):
            loader_cls = "proj:Loader"


def test_subclass_can_override_on_init_and_gen_task_name() -> None:
    class ShortNames(QWorker):
        made = False

        def on_init(self) -> None:
            self.made = True

        def gen_task_name(self, name: str, module: str) -> str:
            return super().gen_task_name(name, module.removesuffix(".tasks"))

    app = ShortNames("proj", broker=KeepingStore())

    def add(x: int) -> int:
        return x

    add.__module__ = "shop.tasks"
    assert app.made
    assert app.task(add).name == "shop.add"


def test_autodiscover_with_force_imports_at_once(project: Callable[..., Path]) -> None:
    project(
        **{
            "shop/__init__.py": "",
            "shop/jobs.py": "from qworker import current_app\ncurrent_app.task(name='j')(id)\n",
        }
    )
    app = make()
    app.autodiscover_tasks(["shop"], related_name="jobs", force=True)
    assert [name for name in app.tasks if not name.startswith(("celery.", "qworker."))] == ["j"]


# -- unsupported names --


@pytest.mark.parametrize(
    "name", ["steps", "amqp", "events", "WorkController", "log", "loader", "canvas", "setup_security"]
)
def test_unsupported_attribute_is_refused_with_advice(name: str) -> None:
    app = make()
    assert not hasattr(app, name)
    with pytest.raises(NotAvailable, match=rf"app\.{name} is not in qworker: \w+"):
        getattr(app, name)
    with pytest.raises(AttributeError, match="app has no attribute 'nonsense'"):
        _ = app.nonsense  # type: ignore[attr-defined]


def test_unsupported_signals_cannot_be_imported() -> None:
    with pytest.raises(ImportError, match="no signal heartbeat_sent: `qworker health` says"):
        exec("from qworker.signals import heartbeat_sent")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from qworker.signals import nonsense")


# -- the command line --


def run(path: Path, code: str) -> subprocess.CompletedProcess[str]:
    (path / "program.py").write_text("from qworker import QWorker\napp = QWorker('proj')\n" + code)
    return subprocess.run(
        [sys.executable, "program.py"], cwd=path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip


def test_app_start_runs_the_command_line_for_this_app(tmp_path: Path) -> None:
    done = run(tmp_path, "app.conf.task_default_queue = 'mine'\napp.start(['config', 'show', '--changed'])")
    assert "mine" in done.stdout, done
    assert done.returncode == 0


def test_worker_main_requires_the_worker_command() -> None:
    with pytest.raises(ValueError, match=r'\["worker", "--loglevel=INFO"\]'):
        make().worker_main(["--loglevel=INFO"])
