"""One task: read one log file."""

from collections import Counter
from pathlib import Path
from typing import TypedDict

from qworker import QWorker

app = QWorker("log_digest")


class StillGrowing(Exception):
    """The last line has no end yet: somebody is writing it."""


class NotALog(ValueError):
    """The file will not be a log later either."""


class Digest(TypedDict):
    lines: int
    bytes_sent: int
    statuses: dict[str, int]
    pages: dict[str, int]


@app.task(
    autoretry_for=(StillGrowing, OSError),
    retry_backoff=0.5,  # seconds: 0.5, 1, 2, … each with a random part
    max_retries=8,
    throws=(NotALog,),  # expected: logged in one line, without a traceback
)
def digest(path: str) -> Digest:
    statuses: Counter[str] = Counter()
    pages: Counter[str] = Counter()
    sent = 0
    with Path(path).open(encoding="utf-8", errors="replace") as log:
        for number, line in enumerate(log, start=1):
            if not line.endswith("\n"):
                raise StillGrowing(f"{path}: line {number} has no end")
            try:
                _address, _time, _method, page, status, size = line.split()
                sent += int(size)
            except ValueError:
                raise NotALog(f"{path}: line {number} is not a log line") from None
            statuses[status] += 1
            pages[page] += 1
    return Digest(lines=sum(statuses.values()), bytes_sent=sent, statuses=dict(statuses), pages=dict(pages))
