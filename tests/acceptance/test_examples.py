"""Each example, run as its README says: a worker that discovers the app, and the script beside it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(90)]


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A writable copy of the example that the test is named after."""
    name = request.node.name.removeprefix("test_")
    return Path(shutil.copytree(EXAMPLES / name, tmp_path / name))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "utf-8"}


def script(directory: Path, name: str) -> str:
    done = subprocess.run(
        [sys.executable, name], cwd=directory, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def worker(directory: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """``qworker start`` with *options*, without naming the app; stopped with SIGTERM, with its exit code
    and log checked."""
    log = directory / "worker.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "qworker", "start", *options],
            cwd=directory,
            env=environment(),
            stdout=out,
            stderr=out,
        )
    try:
        yield process
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_log_digest(example: Path) -> None:
    script(example, "make_logs.py")  # returns after its timer has finished the growing file
    growing = example / "logs" / "growing.log"
    finished = growing.read_text()
    growing.write_text(finished.rstrip("\n"))
    with worker(example):
        digest = subprocess.Popen(
            [sys.executable, "digest.py"], cwd=example, env=environment(), stdout=subprocess.PIPE, text=True
        )
        log = example / "worker.log"
        until(lambda: "StillGrowing" in log.read_text(), say=log.read_text)
        growing.write_text(finished)
        out, _ = digest.communicate(timeout=60)
    assert digest.returncode == 0
    assert "42 files, 80,002 lines" in out
    assert re.search(r"left out: logs/picture\.log: line 1 is not a log line", out)
    assert re.search(r"status +200 +[\d,]+ +█+", out)


def test_thumbnails(example: Path) -> None:
    script(example, "make_pictures.py")
    with worker(example):
        out = script(example, "make_thumbnails.py")
    assert "21 thumbnails" in out
    assert "small-00.png: 80 × 80" in out
    assert "broken.png: pictures/broken.png is not a PNG picture" in out
    made = sorted(path.name for path in (example / "thumbnails").iterdir())
    assert len(made) == 22
    assert "index.html" in made
    assert not [name for name in made if name.endswith(".part")]


def test_folder_watch(example: Path) -> None:
    (example / "history").mkdir()
    (example / "history" / "2026-01-31.csv").write_text("")
    with worker(example, "--beat"):
        out = script(example, "watch.py")
    assert re.search(r"^tasks\.measure +every second$", out, re.MULTILINE)
    assert re.search(r"^tasks\.tidy +at 03:30 every day$", out, re.MULTILINE)
    assert re.search(r",inbox,1500$", out, re.MULTILINE)
    assert out.endswith("days forgotten: ['2026-01-31']\n")
    days = (example / "history").iterdir()
    history = [line.split(",") for day in days for line in day.read_text().splitlines()]
    assert len({(due, folder) for due, folder, _ in history}) == len(history)


def test_django_shop(example: Path) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "demo"],
        cwd=example,
        env={**environment(), "SHOP_PACE": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert out.count("shipped  confirmed True, invoice True") == 5
    assert re.search(r"^order 6: Edsger +30 × Kettle +placed +confirmed True", out, re.MULTILINE)
    assert "failed: shop.tasks.reserve: order 6 wants 30 × Kettle\n" in out
    assert "chain of order 1: [1, 'box 1', 'parcel 1']" in out
    assert re.search(r"^stock: \['[\d.]+'(, '[\d.]+'){3}\], together [\d.]+$", out, re.MULTILINE)
    assert re.search(r"^schedule nightly report: \{.*\}; next 03:00$", out, re.MULTILINE)
    assert re.search(r"^schedule refill: \['Kettle'\]", out, re.MULTILINE)
    assert out.endswith("mails: 12\nThe cluster has stopped.\n")
    errors = re.findall(r"^\S*Error|^\S*SoldOut", done.stderr, re.MULTILINE)
    assert set(errors) == {"shop.tasks.SoldOut"}, done.stderr  # the order for too many


class Visitor:
    """A browser with cookies, without scripts."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._open = build_opener(HTTPCookieProcessor()).open

    def get(self, path: str) -> str:
        text: str = self._open(f"{self.address}{path}", timeout=10).read().decode()
        return text

    def send(self, page: str, path: str, **fields: str) -> str:
        """Submit a form of *page*; return the resulting page."""
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', self.get(page))
        assert token is not None
        data = urlencode({"csrfmiddlewaretoken": token[1], **fields}).encode()
        text: str = self._open(f"{self.address}{path}", data, timeout=10).read().decode()
        return text

    def is_let_in(self) -> bool:
        try:
            return "What would you like?" in self.get("/")
        except OSError:
            return False


def test_django_shop_runs_with_one_command(tmp_path: Path) -> None:
    shop = Path(shutil.copytree(EXAMPLES / "django_shop", tmp_path / "shop"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    log = shop / "open.log"
    visitor = Visitor(f"http://{place}")
    with log.open("wb") as out:
        opened = subprocess.Popen(
            [sys.executable, "manage.py", "open", place],
            cwd=shop,
            env={**environment(), "SHOP_PACE": "0"},
            stdout=out,
            stderr=out,
        )
    try:
        until(visitor.is_let_in, say=log.read_text)
        assert "Order 1" in visitor.send("/", "/orders/", customer="1", product="1", quantity="2")
        until(lambda: "It is on its way" in visitor.get("/orders/1/?live"), say=log.read_text)
        assert visitor.get("/orders/1/?live").count('class="done"') == 5
        visitor.send("/", "/orders/", customer="2", product="1", quantity="999")
        until(lambda: "order 2 wants 999 × Teapot" in visitor.get("/orders/2/?live"), say=log.read_text)
        assert "From 1 to 1000" in visitor.send("/", "/orders/", customer="1", product="1", quantity="-1")
        visitor.send("/", "/values/")
        until(lambda: re.search(r"GET /values/\w+/", log.read_text()), say=log.read_text)
        (valuing,) = set(re.findall(r"GET (/values/\w+/)", log.read_text()))
        until(lambda: "Together" in visitor.get(f"{valuing}?live"), say=log.read_text)
        assert re.search(r"<td>Cup</td><td class=\"number\">270.00</td>", visitor.get(valuing))
        until(lambda: "2 workers" in visitor.get("/activity/"), say=log.read_text)
        assert "shop.tasks.ship" in visitor.get("/activity/")
        visitor.send("/admin/login/", "/admin/login/?next=/admin/", username="owner", password="owner")
        assert "order 2 wants 999 × Teapot" in visitor.get("/admin/qworker/failure/")
        opened.send_signal(signal.SIGINT)
        assert opened.wait(30) == 0, log.read_text()
        assert log.read_text().rstrip().endswith("has stopped.")
    finally:
        if opened.poll() is None:
            opened.kill()
            opened.wait()


def test_async_checker(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PORT", str(probe.getsockname()[1]))
    site = subprocess.Popen(
        [sys.executable, "slow_site.py"], cwd=example, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert site.stdout is not None
        assert site.stdout.readline().startswith("http://127.0.0.1:")
        with worker(example):
            out = script(example, "check.py")
    finally:
        site.terminate()
        site.communicate()
    assert "200: 180 pages" in out
    assert "404: 20 pages" in out
    seconds = re.search(r"200 pages in ([\d.]+) s", out)
    # Sequentially they would take 110 seconds.
    assert seconds is not None
    assert float(seconds[1]) < 20
