"""Each URL scheme of Celery's result backends is supported or refused with a clear error."""

from __future__ import annotations

from contextlib import suppress

import pytest
from celery.app.backends import BACKEND_ALIASES

from qworker import QWorker
from qworker.errors import ConfigurationError

pytestmark = pytest.mark.compat

OURS = frozenset({"db", "disabled", "file", "mongodb", "redis", "rediss", "rpc", "sentinel"})
"""Schemes supported here. The error for others names alternatives."""
URLS = {
    "db": "db+sqlite:////nowhere/results.db",
    "file": "file:///nowhere",
    "sentinel": "sentinel://host:26379/0",
}
"""URLs of schemes that need more than a host."""


def opened(url: str) -> str:
    app = QWorker(
        "x",
        broker="memory://",
        backend=url,
        result_backend_transport_options={"master_name": "one"},
        set_as_current=False,
    )
    return type(app.backend).__name__


@pytest.mark.parametrize("scheme", sorted(BACKEND_ALIASES))
def test_each_scheme_is_supported_or_refused(scheme: str) -> None:
    if scheme in OURS:
        assert opened(URLS.get(scheme, f"{scheme}://host")).endswith("Backend")
    else:
        with pytest.raises(
            ConfigurationError, match=rf"there is no result store for {scheme}://; (use|did) "
        ):
            opened(f"{scheme}://host/x")


@pytest.mark.parametrize("scheme", sorted(BACKEND_ALIASES))
@pytest.mark.parametrize("rest", ["", "://", "://x", ":///x", "+x://y", "://user:pass word@h:many/x"])
def test_invalid_url_is_a_configuration_error(scheme: str, rest: str) -> None:
    with suppress(ConfigurationError):
        opened(scheme + rest)
