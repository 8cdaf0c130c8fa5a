"""layers: the sources of a configuration's values, and their errors.

Comes from:  the setting Q_CLUSTER, and the ALT_CLUSTERS in it.
Goes to:     ``cluster.py``, which takes values from them; ``checks.py``, which reports mistakes.
Thread:      any; no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.conf import settings

from qworker.conf.secrets import MASK, is_secret, mask_urls
from qworker.conf.setting import Setting
from qworker.django.settings.keys import KEYS, SAME_FOR_ALL, SPELLINGS
from qworker.errors import ConfigurationError
from qworker.naming import close_matches
from qworker.safe_repr import safe_repr

SETTING = "Q_CLUSTER"


class Mistake(NamedTuple):
    """An error in Q_CLUSTER. key: its name. message: one or two sentences for users."""

    key: str
    message: str


class Layer(NamedTuple):
    """Keys and raw values from one source. where: the source as written in Python."""

    where: str
    values: Mapping[str, Any]

    def find(self, key: Setting) -> tuple[str, Any] | None:
        """Return where *key* is set in this layer, and its raw value; None if it is not set."""
        spellings = (key.name, *(old for old, name in SPELLINGS.items() if name == key.name))
        for name in spellings:
            if name in self.values:
                return self.written(name), self.values[name]
        return None

    def written(self, name: str) -> str:
        """Return how the key *name* of this layer is written in Python."""
        return f"{self.where}[{name!r}]"


def root() -> Layer:
    """Return the layer of Q_CLUSTER itself; empty without the setting."""
    given = getattr(settings, SETTING, None)
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{SETTING} must be a mapping of keys to values, not of the type {type(given).__name__}",
            setting=SETTING,
        )
    return Layer(SETTING, given)


def alternatives() -> dict[str, Layer]:
    """Return the layers of ALT_CLUSTERS by cluster; {} without any. Raises ConfigurationError if it is
    invalid."""
    key = KEYS["alt_clusters"]
    found = root().find(key)
    if found is None:
        return {}
    where, value = found
    return {
        cluster: Layer(f"{where}[{cluster!r}]", values) for cluster, values in read(key, where, value).items()
    }


def layers_of(cluster: str | None) -> list[Layer]:
    """Return the layers for this cluster, in order of precedence; None is the outer cluster."""
    layer = alternatives().get(cluster) if cluster else None
    if layer is None:
        return [root()]
    permitted = {name: value for name, value in layer.values.items() if _may_differ(name)}
    return [Layer(layer.where, permitted), root()]


def read(key: Setting, where: str, value: Any) -> Any:
    """Return the value that a raw value stands for. Raises ConfigurationError with the place, the value and
    the permitted values."""
    try:
        return None if value is None and key.nullable else key.kind.read(value)
    except ValueError as error:
        shown = safe_repr(masked(key.name, value), 80)
        joined = "and" if str(error).startswith("has") else "but"
        raise ConfigurationError(f"{where} is {shown}, {joined} {error}", setting=key.name) from None


def _key(name: object) -> Setting | None:
    """Return the key with this spelling; None if there is none."""
    spelled = SPELLINGS.get(name, name) if isinstance(name, str) else ""
    key = KEYS.get(spelled.lower())
    return key if key is not None and key.name == spelled else None


def _may_differ(name: str) -> bool:
    key = _key(name)
    return key is not None and key.name not in SAME_FOR_ALL


# -- errors --


def wrong_values() -> list[Mistake]:
    """Return the invalid values in Q_CLUSTER and its ALT_CLUSTERS."""
    try:
        root()
    except ConfigurationError as error:
        return [Mistake(SETTING, str(error))]
    found = []
    for layer, name, value in _entries():
        if key := _key(name):
            try:
                read(key, layer.written(name), value)
            except ConfigurationError as error:
                found.append(Mistake(key.name, str(error)))
    return found


def unknown_keys() -> list[Mistake]:
    """Return the unknown keys, each with a suggestion."""
    found = []
    for layer, name, _ in _entries():
        if _key(name) is None:
            lower = str(name).lower()
            hint = [lower] if lower in KEYS else close_matches(lower, KEYS, 1)
            did_you_mean = f"; did you mean {KEYS[hint[0]].name!r}?" if hint else ""
            found.append(Mistake(str(name), f"{layer.where} has the unknown key {name!r}{did_you_mean}"))
    return found


def other_spellings() -> list[Mistake]:
    """Return the keys in an alternative spelling."""
    return [
        Mistake(SPELLINGS[name], f"{layer.written(name)} is an old spelling of {SPELLINGS[name]!r}")
        for layer, name, _ in _entries()
        if name in SPELLINGS
    ]


def ignored_keys() -> list[Mistake]:
    """Return the keys in ALT_CLUSTERS that have an effect only outside it."""
    return [
        Mistake(key.name, f"{layer.written(name)} has no effect: {key.name!r} is the same for all clusters")
        for layer, name, _ in _entries()
        if layer.where != SETTING and (key := _key(name)) is not None and key.name in SAME_FOR_ALL
    ]


def _entries() -> Iterator[tuple[Layer, str, Any]]:
    """Yield all keys and raw values, each with its layer. Layers that cannot be read are skipped."""
    found: list[Layer] = []
    try:
        found.append(root())
        found.extend(alternatives().values())
    except ConfigurationError:
        pass  # wrong_values() reports it
    for layer in found:
        for name, value in layer.values.items():
            yield layer, name, value


# -- masking: displays a configuration without secrets --

_ADDRESSES = frozenset({"disque_nodes", "host"})


def masked(name: str, value: Any) -> Any:
    """Return the value of a setting for display.

    name: of the setting, or of the option in it. Secrets, and passwords in URLs, become asterisks. Objects
    that may contain secrets are replaced by their type.
    """
    if value is None or isinstance(value, bool):
        return value
    if is_secret(name):
        return MASK
    if isinstance(value, str):
        if name.lower() in _ADDRESSES and "@" in value and "://" not in value:
            return f"{MASK}@{value.rpartition('@')[2]}"  # a password outside a URL
        return mask_urls(value)
    if isinstance(value, Mapping):
        return {key: masked(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [masked(name, item) for item in value]
    return value if isinstance(value, int | float) else f"<{type(value).__name__}>"
