"""conf: a stand-in until the real one is merged.

Comes from:  the setting Q_CLUSTER.
Goes to:     models, migrations, admin.
Thread:      any.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings


class Conf:
    """What is asked of the real one here."""

    def _given(self, name: str, default: Any) -> Any:
        return getattr(settings, "Q_CLUSTER", {}).get(name, default)

    @property
    def label(self) -> str:
        """Heading in the admin."""
        return str(self._given("label", "Django Q"))

    @property
    def orm(self) -> str | None:
        """Alias of the database that is the broker."""
        alias: str | None = self._given("orm", None)
        return alias

    @property
    def broker(self) -> str:
        """Which broker."""
        return "orm" if self.orm else "redis"


conf = Conf()
