"""Fixtures that every kind of test shares. Comes from: pytest. Goes to: all of tests/."""

from __future__ import annotations

import compileall
import gc
import os
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

# pytest compiles plugins in its own way, and keeps that for the next run, even under PYTHONDONTWRITEBYTECODE:
# see pytest_collection().
dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, False
from hypothesis import HealthCheck, settings  # noqa: E402

sys.dont_write_bytecode = dont_write

from tests.servers import asking, forget_keys  # noqa: E402

# "ci" is the default because a suite that fails by the luck of the draw teaches people to run it again.
# HYPOTHESIS_PROFILE=search looks further: random seeds and many examples; "few" repeats on another Python.
settings.register_profile("ci", derandomize=True, max_examples=50, deadline=None, database=None)
settings.register_profile("few", settings.get_profile("ci"), max_examples=10)
settings.register_profile(
    "search", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Compile qworker for the processes that tests start, and let them hear interrupts: a shell without job
    control starts what runs in the background with SIGINT ignored, and a process hands that on."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(REPOSITORY / "qworker", quiet=2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    asking.watch()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the compiled tests for the next run, even under PYTHONDONTWRITEBYTECODE: compiling them takes
    longer than the rest of collecting. Modules that tests write later are not affected.

    What is collected stays until the end, and is a million objects: the garbage collector looks at them
    neither while they are made nor again and again while tests run.
    """
    dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = dont_write
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the processes of xdist, mix the modules of all directories: some mostly wait for servers, and others
    compute. One after the other, they would first wait for the cores, and then leave them idle."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = mixed(items)


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return *items* with the modules of each directory of ``tests/`` spread evenly over the others."""
    sizes = Counter(_directory(item) for item in items)
    seen, places = Counter[str](), dict[Path, float]()
    for item in items:
        directory = _directory(item)
        places.setdefault(item.path, seen[directory] / sizes[directory])
        seen[directory] += 1
    return sorted(items, key=lambda item: places[item.path])


def _directory(item: pytest.Item) -> str:
    tests = REPOSITORY / "tests"
    return item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that has reached for a server it has not asked for, whatever it made of the refusal."""
    report = yield
    if asking.uninvited and call.when == "teardown":
        report.outcome = "failed"
        report.longrepr = (
            f"without require(): {', '.join(sorted(set(asking.uninvited)))}\n{report.longrepr or ''}"
        )
        asking.uninvited.clear()
    return report


def pytest_sessionfinish() -> None:
    """Leave nothing on Redis. It is called in each of xdist's processes."""
    forget_keys()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own QWORKER_* variables must not change what a test sees. (Those of the tests are
    TEST_QWORKER_*: the processes that they start need them, too.)"""
    for name in [name for name in os.environ if name.startswith("QWORKER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """A directory that is somebody's project: the current one, first on sys.path, gone from sys.modules
    afterwards.

    Call it with file names and their text: ``project(**{"tasks.py": "..."})``; it returns the directory.
    """
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return tmp_path

    yield write
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and Path(origin).is_relative_to(tmp_path):
            del sys.modules[name]
