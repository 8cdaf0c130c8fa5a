"""Runs the demo: a worker in its own process and directory, tasks published, results collected, everything
cleaned up.

Comes from:  ``qworker start --demo``.
Goes to:     tasks (published), report and page (results).
Thread:      main.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from qworker import AsyncResult, __version__
from qworker.cli.demo import page, tasks
from qworker.cli.demo.analysis import choose_files, write_samples
from qworker.cli.demo.report import Part, Report, Run, join, text
from qworker.cli.demo.screen import Screen
from qworker.errors import ConfigurationError

DEADLINE_SECONDS = 110.0
APPOINTMENT_SECONDS = 3.0
LATE_SECONDS = 2.0
CRASH_SECONDS = 1.5
ASYNC_CALLS = 200
NOTIFICATIONS = 25
DRAIN_SECONDS = 10.0

WATCHED = {"files": "analyse", "async": "digest", "limited": "notify", "appointment": "appointment"}

TITLES = {
    "analyse": "modules read, one task each",
    "read_flaky": "a disk that fails twice",
    "digest": "async tasks",
    "notify": "rate-limited calls",
    "appointment": "an appointment",
    "die_once": "a task that kills its process",
}

Results = dict[str, list[AsyncResult[Any]]]


class DemoFailed(Exception):
    """The demo could not continue; the text is for the user."""


def run(
    concurrency: int | None = None, out: str | os.PathLike[str] | None = None, stream: TextIO | None = None
) -> int:
    """Run the whole demo and return a process exit code: 0 when everything ended as expected.

    - concurrency: number of the worker's child processes; None is one for each core.
    - out: the directory for report.html, or a file name that ends in .html; None is ``.qworker/demo`` here,
      or the temporary directory if this one is not writable.
    - stream: for text output; None is standard output.
    """
    screen = Screen(stream or sys.stdout)
    target = _report_path(out)
    children = concurrency or os.cpu_count() or 1
    try:
        with tempfile.TemporaryDirectory(prefix="qworker-demo-", ignore_cleanup_errors=True) as name:
            directory = Path(name)
            with _own_settings(directory):
                report = _show(screen, directory, children)
    except DemoFailed as error:
        screen.say(f"The demo stopped: {error}")
        return 1
    except KeyboardInterrupt:
        screen.say("Interrupted; the worker was stopped and its files were removed.")
        return 130
    page.write(report, target)
    screen.say()
    for line in text(report, ascii_only=screen.ascii_only):
        screen.say(line)
    screen.say()
    screen.say(f"The same with a timeline: {target}")
    wrong = surprises(report.parts)
    for sentence in wrong:
        screen.say(f"NOT AS EXPECTED: {sentence}")
    return 1 if wrong else 0


def _show(screen: Screen, directory: Path, children: int) -> Report:
    files = write_samples(directory) + choose_files()
    screen.say(
        f"qworker {__version__} on Python {platform.python_version()}: one worker with {children} "
        f"{'child' if children == 1 else 'children'}, and one SQLite file in place of a server."
    )
    with _worker(directory, children) as process:
        started = time.time()
        published = publish(files, directory, due=started + APPOINTMENT_SECONDS)
        count = sum(len(results) for results in published.values())
        screen.say(
            f"Published {count:,} tasks in {(time.time() - started) * 1000:.0f} ms; {len(files):,} are files "
            "to read."
        )
        metas = _gather(screen, process, published, directory)
        ended = time.time()
    parts = parts_of(published, metas)
    analysed = next(part for part in parts if part.name == "analyse")
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "children": str(children),
        "started": str(started),
    }
    return join(parts, analysed.runs, ended - started, facts)


def publish(files: Sequence[Path], directory: Path, due: float) -> Results:
    """Publish all tasks at once; the worker decides when each runs."""
    return {
        "appointment": [tasks.appointment.apply_async((due,), eta=datetime.fromtimestamp(due, UTC))],
        "die_once": [tasks.die_once.apply_async((str(directory / "died"),), countdown=CRASH_SECONDS)],
        "read_flaky": [tasks.read_flaky.delay(str(files[0]))],
        "digest": tasks.digest.apply_many([(number,) for number in range(ASYNC_CALLS)]),
        "notify": tasks.notify.apply_many([(number,) for number in range(NOTIFICATIONS)]),
        "analyse": tasks.analyse.apply_many([(str(path),) for path in files]),
    }


def _gather(
    screen: Screen, process: subprocess.Popen[bytes], published: Results, directory: Path
) -> dict[str, Mapping[str, Any]]:
    """Wait until each task has ended, drawing progress meanwhile. Return the stored metadata by task id."""
    waiting = {result.id for results in published.values() for result in results}
    watched = {words: {result.id for result in published[part]} for words, part in WATCHED.items()}
    total = len(waiting)
    metas: dict[str, Mapping[str, Any]] = {}
    started = time.monotonic()
    while waiting:
        ready = tasks.app.backend.wait(waiting, timeout=0.25)
        metas.update(ready)
        waiting.difference_update(ready)
        elapsed = time.monotonic() - started
        counts = [f"{words} {len(ids & metas.keys())}/{len(ids)}" for words, ids in watched.items()]
        screen.progress(len(metas), total, f"{elapsed:4.1f} s  " + "  ".join(counts))
        if process.poll() is not None:
            raise DemoFailed(f"the worker ended with code {process.returncode}.\n{_last_lines(directory)}")
        if elapsed > DEADLINE_SECONDS:
            raise DemoFailed(
                f"{len(waiting)} tasks had not ended after {elapsed:.0f} s.\n{_last_lines(directory)}"
            )
        if ready and waiting:
            time.sleep(0.05)  # hundreds of results arrive: reading them one by one would slow down the tasks
    return metas


def parts_of(published: Results, metas: Mapping[str, Mapping[str, Any]]) -> list[Part]:
    """Return the parts of the report. metas: the stored metadata of each of *published*, by task id."""
    parts = []
    for name, title in TITLES.items():
        runs = [_run(name, metas[result.id]) for result in published[name]]
        part = Part(name, title, runs)
        parts.append(replace(part, note=_note(part)))
    return parts


def _run(part: str, meta: Mapping[str, Any]) -> Run:
    if meta["status"] == "SUCCESS":
        return Run(part, True, meta["result"], int(meta["result"]["retries"]))
    error = meta["result"]
    message = error["exc_message"] if isinstance(error, Mapping) else getattr(error, "args", error)
    words = " ".join(map(str, message)) if isinstance(message, list | tuple) else str(message)
    return Run(part, False, words, int(meta.get("retries") or 0))


def _note(part: Part) -> str:
    """Return a part's result in a few words, with a measured figure if there is one."""
    values = [run.value for run in part.runs if run.ok]
    if not values:
        return "none succeeded"
    match part.name:
        case "analyse":
            return f"{part.ok / part.seconds:.0f} a second" if part.seconds else ""
        case "read_flaky":
            return f"succeeded at attempt {values[0]['retries'] + 1}"
        case "digest":
            return f"each waits {tasks.WAIT_SECONDS} s; one by one: {len(values) * tasks.WAIT_SECONDS:.0f} s"
        case "notify":
            return f"{_rate(part):.1f} a second, where {tasks.RATE_A_SECOND} are allowed"
        case "appointment":
            return f"in {APPOINTMENT_SECONDS:.0f} s; started {values[0]['late'] * 1000:.0f} ms after its time"
        case "die_once":
            return "process killed and replaced; the task ran again"
    return ""


def _rate(part: Part) -> float:
    """Return runs per second between the first and the last; 0.0 if undefined."""
    return (part.ok - 1) / part.seconds if part.ok > 1 and part.seconds > 0 else 0.0


def surprises(parts: Sequence[Part], late_seconds: float = LATE_SECONDS) -> list[str]:
    """Return unexpected results as sentences. late_seconds: the limit for the delay of an appointment."""
    wrong = []
    for part in parts:
        failed = len(part.runs) - part.ok
        if failed and part.name != "analyse":
            wrong.append(f"{failed} of {len(part.runs)} failed: {part.title}")
    analysed = parts[0]
    if analysed.ok < 0.9 * len(analysed.runs):
        wrong.append(f"only {analysed.ok} of {len(analysed.runs)} modules could be read")
    if not analysed.retried:
        wrong.append("no file was retried, though one is not UTF-8")
    named = {part.name: part for part in parts}
    for run in named["appointment"].runs:
        if run.ok and not 0 <= run.value["late"] < late_seconds:
            wrong.append(f"the appointment began {run.value['late']:.2f} s after its time")
    if _rate(named["notify"]) > 1.5 * tasks.RATE_A_SECOND:
        wrong.append(f"the rate limit of {tasks.RATE_A_SECOND} a second was exceeded")
    return wrong


@contextlib.contextmanager
def _own_settings(directory: Path) -> Iterator[None]:
    """Isolate the demo from the user's project, with its own directory and environment variables."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("QWORKER_")}
    for name in kept:
        del os.environ[name]
    os.environ["QWORKER_BROKER_URL"] = f"sqlite:///{directory / 'demo.db'}"
    try:
        with contextlib.chdir(directory):
            yield
    finally:
        tasks.app.close()
        del os.environ["QWORKER_BROKER_URL"]
        os.environ.update(kept)


@contextlib.contextmanager
def _worker(directory: Path, children: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker as usual; stop it, gently first, when the block ends."""
    command = [sys.executable, "-m", "qworker", "start", "-A", "qworker.cli.demo.tasks:app"]
    command += ["--concurrency", str(children), "--loglevel", "INFO"]
    # The package may be a checkout that is only importable from where the demo was started.
    home = str(Path(page.__file__).parents[3])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    with (directory / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_lines(directory: Path) -> str:
    lines = (directory / "worker.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return "The last lines of its log:\n" + "\n".join("  " + line for line in lines[-15:])


def _report_path(out: str | os.PathLike[str] | None) -> Path:
    """Return an absolute path whose directory exists and is writable."""
    if out is not None:
        path = Path(out).absolute()
        path = path if path.suffix == ".html" else path / "report.html"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ConfigurationError(f"--out: cannot write {path}: {error.strerror}") from None
        return path
    for base in (Path.cwd() / ".qworker" / "demo", Path(tempfile.gettempdir()) / "qworker-demo"):
        with contextlib.suppress(OSError):
            base.mkdir(parents=True, exist_ok=True)
            if os.access(base, os.W_OK):
                return base / "report.html"
    return Path(tempfile.mkdtemp(prefix="qworker-demo-")) / "report.html"
