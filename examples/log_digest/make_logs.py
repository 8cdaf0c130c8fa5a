"""Write sample logs into logs/: forty good ones, one that is finished only later, one that is no log at
all."""

import random
import threading
from pathlib import Path

LOGS = Path("logs")
PAGES = ["/", "/about", "/search", "/api/items", "/api/items/7", "/static/site.css"]
STATUSES = [200] * 40 + [304] * 8 + [404] * 3 + [500]


def line(chance: random.Random, hour: int) -> str:
    page, status = chance.choice(PAGES), chance.choice(STATUSES)
    return (
        f"10.0.0.{chance.randrange(256)} [{hour:02}:{chance.randrange(60):02}] GET {page} {status} "
        f"{chance.randrange(9000)}\n"
    )


def make(files: int = 40, lines: int = 2_000, seconds_until_finished: float = 1.5) -> None:
    chance = random.Random(7)
    LOGS.mkdir(exist_ok=True)
    for number in range(files):
        text = "".join(line(chance, hour=number % 24) for _ in range(lines))
        (LOGS / f"server-{number:02}.log").write_text(text)
    (LOGS / "picture.log").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) + b"\n")

    growing = LOGS / "growing.log"
    growing.write_text(line(chance, 12) + "10.0.0.9 [12:0")
    threading.Timer(seconds_until_finished, lambda: growing.write_text(line(chance, 12) * 2)).start()


if __name__ == "__main__":
    make()
