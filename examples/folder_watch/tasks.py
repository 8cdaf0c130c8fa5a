"""Measure a folder every second, and keep the history of a month: a file for each day."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from qworker import QWorker, Task

app = QWorker("folder_watch")
app.conf.timezone = "Europe/Berlin"  # of the crontab below; each schedule may have its own

HISTORY = Path("history")
KEPT = timedelta(days=30)


@app.task(bind=True, schedule=timedelta(seconds=1))
def measure(self: Task, folder: str = ".") -> int:
    """Add a line to the history: when it was due, which folder, how many bytes."""
    size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    due = self.request.periodic_task_due or datetime.now(UTC).isoformat()
    HISTORY.mkdir(exist_ok=True)
    with (HISTORY / f"{due:.10}.csv").open("a", encoding="utf-8") as day:
        day.write(f"{due},{folder},{size}\n")
    return size


@app.task(schedule="30 3 * * *")
def tidy() -> list[str]:
    """Forget the days that are longer than a month ago; every night at half past three."""
    oldest = datetime.now(UTC).date() - KEPT
    old = [path for path in sorted(HISTORY.glob("*.csv")) if date.fromisoformat(path.stem) < oldest]
    for path in old:
        path.unlink(missing_ok=True)
    return [path.stem for path in old]
