"""One task: make one picture small."""

from pathlib import Path
from typing import Any

import png

from qworker import QWorker, SoftTimeLimitExceeded, Task

app = QWorker("thumbnails", task_soft_time_limit=20, task_time_limit=30)

STRIPES = 8


@app.task(bind=True, throws=(ValueError,))
def thumbnail(self: Task, source: str, target: str, size: int = 80) -> dict[str, Any]:
    """Write a picture about *size* pixels wide to *target*; tell how far it is after each stripe."""
    width, rows = png.read(Path(source))
    factor = max(1, width // size)
    stripe = max(1, len(rows) // factor // STRIPES) * factor
    small: list[bytes] = []
    try:
        for top in range(0, len(rows), stripe):
            small += png.shrink(rows[top : top + stripe], factor)
            self.update_state(state="SHRINKING", meta={"done": min(top + stripe, len(rows)), "of": len(rows)})
        png.write(Path(target), len(small[0]) // 3, small)
    except SoftTimeLimitExceeded:
        Path(target).unlink(missing_ok=True)
        raise
    return {"target": target, "width": len(small[0]) // 3, "height": len(small)}
