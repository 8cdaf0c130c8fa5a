"""Retry: computes the delay before the next attempt. The caller passes the random source.

Comes from:  publishing, ``task.retry``/autoretry, reconnecting components.
Goes to:     code that sleeps or sets an ETA.
Thread:      any.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from qworker.errors import ConfigurationError
from qworker.naming import did_you_mean

_MANY_DOUBLINGS = 1000  # 2.0 ** retries would overflow beyond it; any maximum is reached long before


class RetryPolicy(NamedTuple):
    """The number of retries, and the delay before each in seconds.

    - max_retries (number): None for no limit.
    - interval_start, interval_step, interval_max: the first wait, the increase for each further wait, and the
      longest wait, as in kombu.
    - backoff: the first wait for exponential backoff; None for linear waits.
    - backoff_max: the longest wait of exponential backoff.
    - jitter (bool): choose each wait at random between 0 and its full length.
    """

    max_retries: int | None = 3
    interval_start: float = 0.0
    interval_step: float = 0.2
    interval_max: float = 0.2
    backoff: float | None = None
    backoff_max: float = 600.0
    jitter: bool = False

    def delay(self, attempt: int, random: Callable[[], float]) -> float:
        """Return the seconds to wait before retry `attempt` (from 0). `random()` is in [0, 1)."""
        if self.backoff is not None:
            return backoff_delay(self.backoff, attempt, self.backoff_max, self.jitter, random)
        wait = min(self.interval_start + attempt * self.interval_step, self.interval_max)
        return max(0.0, wait * random() if self.jitter else wait)

    def allows(self, attempt: int) -> bool:
        """Return whether retry `attempt` (from 0) may be made."""
        return self.max_retries is None or attempt < self.max_retries

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any], source: str = "retry_policy") -> Self:
        """Make a policy from the `retry_policy` of a call or setting.

        Celery's keys ``retry_errors`` and ``timeout`` are ignored. Raises ConfigurationError, which names
        *source* and the invalid key.
        """
        known = set(cls._fields)
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name in _IGNORED:
                continue
            if name not in known:
                tail = did_you_mean(name, known, f"; the known keys are {', '.join(sorted(known))}")
                raise ConfigurationError(f"{source} has no {name!r}{tail}", setting=source)
            if not _suits(name, value):
                raise ConfigurationError(f"{source}[{name!r}] cannot be {value!r}", setting=source)
            values[name] = value
        return cls(**values)


_IGNORED = frozenset({"retry_errors", "timeout"})


def _suits(name: str, value: Any) -> bool:
    if name == "jitter":
        return isinstance(value, bool)
    if value is None:
        return name in ("max_retries", "backoff")
    if isinstance(value, bool) or not isinstance(value, int if name == "max_retries" else (int, float)):
        return False
    return 0 <= value < float("inf")


def backoff_delay(
    factor: float, retries: int, maximum: float, full_jitter: bool, random: Callable[[], float]
) -> float:
    """Return the seconds before the next retry: ``factor * 2 ** retries``, at most *maximum*.

    - factor, maximum: seconds.
    - retries (number): the number of earlier retries.
    - full_jitter (bool): choose at random between 0 and that.
    - random: returns a number in [0, 1).
    """
    wait = min(float(maximum), factor * 2.0 ** min(max(retries, 0), _MANY_DOUBLINGS))
    return max(0.0, wait * random() if full_jitter else wait)


#: For reconnecting to a server: no limit, 0.1 s doubling to 2 s, with jitter so that clients do not reconnect
#: all at once. Attempts are cheap, and longer delays would waste time after the server is back.
RECONNECT = RetryPolicy(max_retries=None, backoff=0.1, backoff_max=2.0, jitter=True)
