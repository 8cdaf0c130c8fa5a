"""Values beyond plain JSON, and their expected forms. Comes from: tests of everything that carries values.
Goes to: calls and results."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

CARRIED: dict[str, Any] = {
    "uuid": uuid.UUID(int=7),
    "decimal": Decimal("1.10"),
    "aware": datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "offset": datetime(2030, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "naive": datetime(2030, 1, 2, 3, 4, 5),
    "date": date(2030, 1, 2),
    "time": time(1, 2, 3, 4),
    "bytes": b"\x00\xff",
    "text as bytes": "Übermaß".encode(),
}
"""Values that JSON carries in kombu's form."""


class Color(Enum):
    RED = "red"


@dataclass
class Order:
    """Types known only from annotations."""

    number: uuid.UUID
    due: datetime
    wait: timedelta
    color: Color = Color.RED


ORDER = Order(uuid.UUID(int=7), datetime(2030, 1, 2, tzinfo=UTC), timedelta(hours=1))
PLAIN = {"number": ORDER.number, "due": ORDER.due, "wait": 3600, "color": "red"}
"""ORDER as in a result."""
