"""The schemes of Celery's result stores: each is one of ours, or is refused in a sentence."""

from __future__ import annotations

from contextlib import suppress

import pytest
from celery.app.backends import BACKEND_ALIASES

from qworker import QWorker
from qworker.errors import ConfigurationError

pytestmark = pytest.mark.compat

OURS = frozenset({"db", "disabled", "file", "mongodb", "redis", "rediss", "rpc", "sentinel"})
"""Those of a store that is here as well. The others are told of what there is."""
URLS = {
    "db": "db+sqlite:////nowhere/results.db",
    "file": "file:///nowhere",
    "sentinel": "sentinel://host:26379/0",
}
"""Where one needs more than a host."""


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
def test_each_is_a_store_or_a_sentence(scheme: str) -> None:
    if scheme in OURS:
        assert opened(URLS.get(scheme, f"{scheme}://host")).endswith("Backend")
    else:
        with pytest.raises(
            ConfigurationError, match=rf"there is no result store for {scheme}://; (use|did) "
        ):
            opened(f"{scheme}://host/x")


@pytest.mark.parametrize("scheme", sorted(BACKEND_ALIASES))
@pytest.mark.parametrize("rest", ["", "://", "://x", ":///x", "+x://y", "://user:pass word@h:many/x"])
def test_a_url_that_is_none_ends_in_a_sentence(scheme: str, rest: str) -> None:
    with suppress(ConfigurationError):
        opened(scheme + rest)
