"""Invalid URLs of brokers: the error shows no part of a password."""

from __future__ import annotations

import pytest

from qworker.conf import Settings
from qworker.errors import ConfigurationError
from qworker.transports import open_broker

URLS_WITH_UNESCAPED_PASSWORDS = [
    f"{scheme}://user:s3c{sign}ret@h/0" for scheme in ("redis", "amqp", "ironmq", "mysql") for sign in "/?#"
]


@pytest.mark.parametrize(
    "url", [*URLS_WITH_UNESCAPED_PASSWORDS, "nats://user:s3c?ret@h", "disque://user:s3c?ret@h"]
)
def test_unescaped_password_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_broker(url, Settings({}))
    assert "s3c" not in str(refused.value)
    assert "ret@" not in str(refused.value)
    assert "%2F" in str(refused.value) or "%3F" in str(refused.value)
