"""Serialization: converts values to bytes and back, and checks sizes and content types.

Comes from:  protocol (bodies), backends (results).
Goes to:     messages and the result store.
Thread:      any.

``kombu_json`` handles JSON; kombu, which is imported on first use, handles every other content type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from enum import Enum
from importlib import import_module
from typing import Any

from qworker.errors import ConfigurationError, EncodeError, InvalidTaskMessage, SecurityError
from qworker.interrupts import reraise_interrupt
from qworker.message.exceptions import exception_from_dict, exception_to_dict
from qworker.message.kombu_json import MAX_DEPTH, TAG, LooksTagged, dumps, loads, too_deep
from qworker.naming import did_you_mean, install_command

__all__ = [
    "JSON", "MAX_BYTES", "MAX_DECOMPRESSED", "MAX_DEPTH", "check_accepted", "compress", "content_types",
    "decode", "decompress", "dumps", "encode", "encode_json", "exception_from_dict", "exception_to_dict",
    "explain", "loads", "serializer_of", "too_deep",
]  # fmt: skip

JSON = "application/json"
MAX_BYTES = 16 * 1024 * 1024  #: of one message body, decompressed
MAX_DECOMPRESSED = 1024**3  #: bytes, if there is no other limit, as for results

#: serializer name → content type, for kombu's own serializers; others are in kombu's registry
CONTENT_TYPES = {
    "json": JSON,
    "pickle": "application/x-python-serialize",
    "yaml": "application/x-yaml",
    "msgpack": "application/x-msgpack",
}
_NAMES = {content_type: name for name, content_type in CONTENT_TYPES.items()}
# A short list, because some Python codecs are slow on hostile input (idna) or do not return text.
_ENCODINGS = {
    "utf-8": "utf-8", "utf8": "utf-8", "binary": "utf-8", "us-ascii": "ascii", "ascii": "ascii",
    "latin-1": "latin-1", "latin1": "latin-1", "iso-8859-1": "latin-1", "utf-16": "utf-16",
    "utf-32": "utf-32",
}  # fmt: skip
_WIDE = frozenset({"utf-16", "utf-32"})  # a bracket is more than one byte in these


# -- encoding --


def encode(value: Any, serializer: str = "json", what: str = "value") -> tuple[str, str, bytes]:
    """Return (content type, content encoding, bytes) of `value`. Raises EncodeError, which names the place in
    `what` that cannot be encoded."""
    if serializer == "json":
        return JSON, "utf-8", encode_json(value, {what: value})
    from kombu import serialization
    from kombu.exceptions import SerializerNotInstalled

    try:
        if serializer != "pickle":
            value = plain_calls(value, arguments=True, subclasses=serializer == "msgpack")
        content_type, content_encoding, payload = serialization.dumps(value, serializer)  # type: ignore[no-untyped-call]
        data: bytes = payload.encode() if isinstance(payload, str) else payload
    except SerializerNotInstalled:
        raise _unknown_serializer(serializer) from None
    except Exception as error:  # serializers are third-party code and may raise anything
        reraise_interrupt(error)
        raise EncodeError(
            f"{what} cannot be serialised with {serializer}: {_short(error)}", what, type(value).__name__
        ) from error
    return content_type, content_encoding, data


def encode_json(value: Any, parts: Mapping[str, Any], limit: int = MAX_DEPTH) -> bytes:
    """Return UTF-8 JSON of `value`, nested no deeper than `limit`. Raises EncodeError, which names the place
    in `parts` that cannot be encoded."""
    try:
        data = dumps(value).encode()
    except Exception as error:  # __json__ and registered encoders are user code
        reraise_interrupt(error)
        raise explain(parts, error) from error
    if too_deep(data, limit):
        raise explain(parts, RecursionError())
    return data


def explain(parts: Mapping[str, Any], cause: Exception) -> EncodeError:
    """Return the EncodeError for `cause`, which names the first object in `parts` (name → value) that cannot
    be encoded."""
    for name, part in parts.items():
        found = _first_unserializable(part, name, 0)
        if found is not None:
            path, culprit, reason = found
            kind = type(culprit).__name__
            if reason is None:
                reason = f"{kind} is not JSON"
            return EncodeError(
                f"{path} cannot be serialised as JSON: {reason}. Pass plain data (such as its id), "
                f"{_advice(culprit)}give "
                f"{kind} a __json__() method, or choose a serializer that can",
                path,
                kind,
            )
    if isinstance(cause, RecursionError):
        names = " or ".join(parts)
        return EncodeError(f"{names} nests deeper than {MAX_DEPTH} levels, or contains itself; flatten it")
    return EncodeError(f"{' and '.join(parts)} cannot be serialised as JSON: {_short(cause)}")


def _advice(value: Any) -> str:
    """Return advice to annotate a type that tasks convert (``tasks/codecs.py``); "" for other types."""
    kind = type(value)
    if (
        issubclass(kind, Enum | timedelta)
        or hasattr(kind, "__dataclass_fields__")
        or hasattr(kind, "model_dump")
    ):
        return f"annotate the task's parameter or result with {kind.__name__}, "
    return ""


def _first_unserializable(value: Any, path: str, depth: int) -> tuple[str, Any, str | None] | None:
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, dict):
        if value.keys() == TAG:
            return path, value, str(LooksTagged())
        for key, item in value.items():
            if not isinstance(key, str | int | float | bool | type(None)):
                return f"a key of {path}", key, f"a {type(key).__name__} cannot be the key of an object"
            found = _first_unserializable(item, f"{path}[{key!r:.80}]", depth + 1)
            if found is not None:
                return found
        return None
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            found = _first_unserializable(item, f"{path}[{index}]", depth + 1)
            if found is not None:
                return found
        return None
    try:
        dumps(value)
    except TypeError:
        return path, value, None
    except Exception as error:  # noqa: BLE001 - __json__ and registered encoders are user code
        reraise_interrupt(error)
        return path, value, _short(error)
    return None


# -- decoding --


def plain_calls(value: Any, arguments: bool = False, subclasses: bool = False) -> Any:
    """Return `value` with its signatures as plain dicts.

    arguments: also those in the arguments of its calls. Pickle restores signatures, but without their app.
    YAML does not support them, and msgpack would count the members of a group instead of its fields.
    subclasses: also those in subclasses of dict, list and tuple, which msgpack writes as such. Raises
    TypeError then for keys that are not text.
    """
    kind = type(value)
    if isinstance(value, dict) and (kind is dict or subclasses or "subtask_type" in value):
        if subclasses and (keys := [key for key in value if not isinstance(key, str | bytes)]):
            raise TypeError(
                f"the key {keys[0]!r:.80} of a dictionary is not text, which msgpack's readers refuse"
            )
        of_task = not arguments and value.get("subtask_type", "") is None
        return {
            name: each if of_task and name in ("args", "kwargs") else plain_calls(each, arguments, subclasses)
            for name, each in value.items()
        }
    if kind is list or kind is tuple or (subclasses and isinstance(value, list | tuple)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(plain_calls(each, arguments, subclasses) for each in value)
    return value


def decode(
    data: bytes, content_type: str, content_encoding: str, accept: frozenset[str], limit: int | None = None
) -> Any:
    """Return the value of `data`.

    - accept: names of serializers, or content types.
    - limit: maximum bytes of `data`; None for any size.

    Raises SecurityError, before parsing, if the content type is not accepted, and InvalidTaskMessage, with
    the reason, if data cannot be decoded, is too large, or nests deeper than MAX_DEPTH.
    """
    check_accepted(content_type, accept)
    if limit is not None and len(data) > limit:
        raise InvalidTaskMessage(f"body of {len(data)} bytes is over the limit of {limit}")
    if content_type == JSON:
        return _decode_json(data, content_encoding)
    from kombu import serialization

    try:
        return serialization.loads(data, content_type, content_encoding, accept={content_type})  # type: ignore[no-untyped-call]
    except Exception as error:  # decoders are third-party code and may raise anything
        reraise_interrupt(error)
        raise InvalidTaskMessage(f"body is not valid {content_type}: {_short(error)}") from error


def _decode_json(data: bytes, content_encoding: str) -> Any:
    encoding = _ENCODINGS.get(content_encoding) or _ENCODINGS.get(str(content_encoding).lower())
    if encoding is None:
        raise InvalidTaskMessage(
            f"content encoding {content_encoding!r:.80} is not one of {', '.join(_ENCODINGS)}"
        )
    try:
        text = data.decode(encoding)
        if too_deep(data if encoding not in _WIDE else text.encode("utf-8", "replace")):
            raise InvalidTaskMessage(
                f"body nests deeper than {MAX_DEPTH} levels, or its brackets do not match"
            )
        return loads(text)
    except InvalidTaskMessage:
        raise
    except Exception as error:  # decoders of registered types are user code
        reraise_interrupt(error)
        raise InvalidTaskMessage(f"body is not valid JSON: {_short(error)}") from error


def content_types(names: Iterable[str], setting: str = "accept_content") -> frozenset[str]:
    """Return the content types of `names`, of serializers or content types. ConfigurationError for an unknown
    name."""
    return frozenset(CONTENT_TYPES.get(name) or _registered(name, setting) for name in names)


def serializer_of(content_type: str) -> str:
    """Return the name of the serializer for `content_type`, or `content_type` if there is none."""
    if content_type in _NAMES:
        return _NAMES[content_type]
    from kombu.serialization import registry

    return str(registry.type_to_name.get(content_type, content_type))


def _registered(name: str, setting: str) -> str:
    if name in _NAMES:
        return name
    from kombu.serialization import registry

    content_type = registry.name_to_type.get(name) or (name if name in registry.type_to_name else None)
    if content_type is None:
        raise _unknown_serializer(name, setting)
    return str(content_type)


def _unknown_serializer(name: str, setting: str = "task_serializer") -> ConfigurationError:
    from kombu.serialization import registry

    if name in registry.name_to_type:
        how = install_command(name) if name in CONTENT_TYPES else "install the package that provides it"
        return ConfigurationError(f"serializer {name!r} is not installed: {how}", setting=setting)
    known = sorted(registry.name_to_type)
    tail = did_you_mean(name, known, f"; use one of {', '.join(known)}")
    return ConfigurationError(f"there is no serializer {name!r}{tail}", setting=setting)


def check_accepted(content_type: str, accept: frozenset[str]) -> None:
    """Raise SecurityError if `content_type` is not in `accept` (serializer names or content types)."""
    if content_type in accept or _NAMES.get(content_type) in accept:
        return
    name = _NAMES.get(content_type, content_type)
    raise SecurityError(
        f"content type {content_type!r:.100} is not accepted; add {name!r:.100} to the setting "
        "accept_content only if everyone who can write to the broker is trusted"
    )


# -- compression --


def compress(data: bytes, method: str) -> tuple[str, bytes]:
    """Return (MIME name for the header ``compression``, compressed bytes). ConfigurationError for an unknown
    method."""
    from kombu import compression

    try:
        compressed, mime = compression.compress(data, method)  # type: ignore[no-untyped-call]
    except KeyError:
        known = ", ".join(sorted({*compression._aliases}))
        raise ConfigurationError(
            f"there is no compression {method!r}; use one of {known}", setting="task_compression"
        ) from None
    return mime, compressed


def decompress(data: bytes, mime: str, limit: int = MAX_DECOMPRESSED) -> bytes:
    """Decompress `data`, compressed as `mime`. InvalidTaskMessage if it is invalid or exceeds `limit`
    bytes."""
    open_ = _DECOMPRESSORS.get(mime)
    if open_ is None:
        raise InvalidTaskMessage(f"compression {mime!r:.80} is not one of {', '.join(_DECOMPRESSORS)}")
    try:
        stream = open_()
        decompressed: bytes = stream.decompress(data, limit + 1)
        complete = stream.eof
    except Exception as error:  # zlib, bz2, lzma and zstd have different errors, and lzma a memory limit
        reraise_interrupt(error)
        raise InvalidTaskMessage(f"body does not decompress as {mime}: {_short(error)}") from error
    if len(decompressed) > limit:
        raise InvalidTaskMessage(f"body decompresses to more than the limit of {limit} bytes")
    if not complete:
        raise InvalidTaskMessage(f"body ends in the middle of its {mime} data")
    return decompressed


def _zlib() -> Any:
    import zlib

    return zlib.decompressobj(wbits=47)  # zlib or gzip, which clients in other languages send


def _bz2() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


def _lzma() -> Any:
    import lzma

    return lzma.LZMADecompressor(memlimit=128 * 1024 * 1024)


def _zstd() -> Any:
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    return zstd.ZstdDecompressor()


# Not brotli, because common versions of its decompressor cannot limit the size.
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": _zlib, "gzip": _zlib, "zlib": _zlib,
    "application/x-bz2": _bz2, "bzip2": _bz2,
    "application/x-lzma": _lzma, "lzma": _lzma,
    "application/zstd": _zstd, "zstd": _zstd,
}  # fmt: skip


def _short(error: BaseException) -> str:
    """Describe `error` in one short line."""
    if isinstance(error, RecursionError):
        return "it nests too deep, or contains itself"
    text = str(error).partition("\n")[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
