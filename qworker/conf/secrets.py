"""Secrets: what must never be shown, and how it is masked.

Comes from:  names and values of settings, URLs, text that may hold a URL.
Goes to:     everything people read: logs, `qworker config`, `qworker report`, repr(app.conf), error messages.
Thread:      pure functions, any thread.
"""

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?|secret|token|credential|(^|_)(key|keys|auth)$", re.IGNORECASE
)
_NOT_SECRET = re.compile(r"routing_key|key_prefix|primary_key", re.IGNORECASE)
# Greedy up to the last "@": a password may hold "/" or "@" that nobody escaped; masking too much is the safe side.
_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://[^\s:/@?#]*):([^\s\"'<>]*)@")
_PARAMETER = re.compile(r"([?&;][^=&\s]*(?:pass|secret|token|key)[^=&\s]*=)[^&\s;]+", re.IGNORECASE)


def mask_urls(text: str) -> str:
    """The same text with the password of every URL in it replaced by asterisks."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))


def is_secret(name: str) -> bool:
    """Whether a setting or option of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None and _NOT_SECRET.search(name) is None


def mask(name: str, value: Any) -> Any:
    """The value as people may see it: secrets as asterisks, URLs without passwords, containers walked."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret(name) and not isinstance(value, (int, float)):
        return MASK
    if isinstance(value, str):
        return mask_urls(value)
    if isinstance(value, Mapping):
        return {key: mask(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(mask(name, item) for item in value)
    return value
