"""masking: what a configuration looks like to people.

Comes from:  raw values of settings, whatever they are.
Goes to:     errors, checks, and the command that shows a configuration.
Thread:      any; nothing is kept.
"""

from collections.abc import Mapping
from typing import Any

from qworker.conf.secrets import MASK, is_secret, mask_urls

_ALSO_SECRET = frozenset({"dsn"})
_ADDRESSES = frozenset({"disque_nodes", "host"})


def masked(name: str, value: Any) -> Any:
    """The value of a setting as people may see it.

    name: of the setting, or of the option in it. Asterisks stand for what is secret, and for passwords in
    URLs; of an object that may hold one only the type is told.
    """
    if value is None or isinstance(value, bool):
        return value
    if is_secret(name) or name.lower() in _ALSO_SECRET:
        return MASK
    if isinstance(value, str):
        if name.lower() in _ADDRESSES and "@" in value and "://" not in value:
            return f"{MASK}@{value.rpartition('@')[2]}"  # somebody's password, without a URL around it
        return mask_urls(value)
    if isinstance(value, Mapping):
        return {key: masked(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(name, item) for item in value]
    return value if isinstance(value, int | float) else f"<{type(value).__name__}>"
