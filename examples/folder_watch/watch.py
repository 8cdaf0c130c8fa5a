"""Look at the schedules, and change them while the worker runs."""

import time
from pathlib import Path

from tasks import HISTORY, app, measure, tidy


def lines(folder: str) -> list[str]:
    """What the history has of *folder*."""
    every = [line for day in sorted(HISTORY.glob("*.csv")) for line in day.read_text("utf-8").splitlines()]
    return [line for line in every if line.split(",")[1] == folder]


def wait_for(count: int, folder: str) -> None:
    """Wait until the history has *count* lines of *folder*."""
    while len(lines(folder)) < count:
        time.sleep(0.1)


def main() -> None:
    wait_for(2, ".")
    for each in app.schedules:
        if each.entry is not None:
            print(f"{each.name:<16} {each.entry.schedule.words()}")

    Path("inbox").mkdir(exist_ok=True)
    app.schedules.add("inbox", measure.name, 0.5, args=["inbox"])  # seen by the worker within a second
    for number in range(3):
        Path(f"inbox/{number}.txt").write_text("news\n" * 100, encoding="utf-8")
        wait_for(len(lines("inbox")) + 2, "inbox")
    print("\n".join(lines("inbox")))

    app.schedules.pause("inbox")
    print("days forgotten:", app.schedules.run(tidy.name).get(timeout=30))
    app.schedules.remove("inbox")


if __name__ == "__main__":
    main()
