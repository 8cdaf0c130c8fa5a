"""Secrets: which values are secret, and how they are masked for display.

Comes from:  names and values of settings, URLs, text that may contain URLs.
Goes to:     logs, `qworker config`, `qworker report`, repr(app.conf), error messages.
Thread:      any; pure functions.
"""

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?|secret|token|credential|(^|_)(key|keys|auth|dsn)$", re.IGNORECASE
)
_NOT_SECRET = re.compile(r"routing_key|key_prefix|primary_key", re.IGNORECASE)
_USER = re.compile(r"://[^\s:/@?#]*:")
_TOKEN = re.compile(r"\b((?:nats|tls)://)[^\s:/@?#\"'<>]+@")
"""URLs of NATS may contain a token instead of a user and password."""
_END = re.compile(r"[\s\"'<>]")
_NAME = re.compile(r"([^=&\s]++)(=?)")  # possessive, for linear time
_VALUE = re.compile(r"[^&\s;]+")
_SECRET_PARAMETER = re.compile(r"pass|secret|token|key", re.IGNORECASE)


def mask_urls(text: str) -> str:
    """Return *text* with passwords and secret parameters of URLs replaced by asterisks."""
    if "://" not in text:
        return text
    return _without_parameters(_without_passwords(_TOKEN.sub(rf"\1{MASK}@", text)))


def _without_passwords(text: str) -> str:
    pieces = []
    done = at = 0
    stop = last = -1
    while user := _USER.search(text, at):
        if user.end() > stop:
            end = _END.search(text, user.end())
            stop = len(text) if end is None else end.start()
            # The last "@", because a password may contain unescaped "/" or "@"; masking too much is safe.
            last = text.rfind("@", user.end(), stop)
        if last < user.end():
            at = user.start() + 3
        else:
            pieces += [text[done : user.end()], MASK]
            done = at = last
    return "".join((*pieces, text[done:]))


def _without_parameters(text: str) -> str:
    pieces = []
    done = 0
    for name in _NAME.finditer(text):
        if name.start() < done or not name[2] or not _is_secret_parameter(text, name):
            continue
        if value := _VALUE.match(text, name.end()):
            pieces += [text[done : value.start()], MASK]
            done = value.end()
    return "".join((*pieces, text[done:]))


def _is_secret_parameter(text: str, match: re.Match[str]) -> bool:
    name = match[1]
    if text[match.start() - 1 : match.start()] != "&":
        starts = [at for at in map(name.find, "?;") if at >= 0]
        name = name[min(starts) :] if starts else ""
    return _SECRET_PARAMETER.search(name) is not None


def is_secret(name: str) -> bool:
    """Return whether a setting or option of this name is a secret."""
    return _SECRET_NAME.search(name) is not None and _NOT_SECRET.search(name) is None


def mask(name: str, value: Any) -> Any:
    """Return *value* for display: secrets and passwords in URLs, also in containers, become asterisks."""
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
