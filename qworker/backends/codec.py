"""ResultCodec: how a result store writes values as bytes, and reads them again.

Comes from:  a store, with metadata, results, groups, and the bodies and parts of joins.
Goes to:     the store, which keeps the bytes; readers of results.
Thread:      any; it never changes.

Values are written with ``result_serializer``, compressed with ``result_compression``, and signed with a
``security_key``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qworker import states
from qworker.backends.waiters import Found, Meta
from qworker.clock import Clock
from qworker.errors import DamagedResult, EncodeError, InvalidTaskMessage, SecurityError
from qworker.message.serialization import compress, content_types, decode, decompress, encode, encode_json
from qworker.safe_repr import safe_repr

if TYPE_CHECKING:
    from qworker.message.signing import Signer

About = tuple[str, ...]
"""The kind and the owner of a value, which are signed with it: ``("group", group_id)``."""

COMPRESSED = b"\x00celery-compressed\x00"
"""Prefix of a compressed payload, followed by the MIME name and a NUL."""


class ResultCodec:
    """The codec of a store with the settings *conf*. url: returns the store's, as shown in errors."""

    def __init__(self, conf: Any, clock: Clock, url: Callable[[], str]) -> None:
        self._url = url
        self.serializer: str = conf.result_serializer
        self._compression: str | None = conf.result_compression
        self._max_bytes: int = conf.message_max_bytes
        self._signer: Signer | None = None
        if (keys := conf.security_key) is not None:
            from qworker.message.signing import Signer  # loads OpenSSL

            self._signer = Signer(keys, clock)
        accept = conf.result_accept_content or conf.accept_content
        self._accept = content_types([*accept, self.serializer], "result_accept_content")
        (content_type,) = content_types([self.serializer], "result_serializer")
        self.content = content_type, "utf-8" if self.serializer in ("json", "yaml") else "binary"
        """The content type and the encoding of what it writes."""

    @property
    def signs(self) -> bool:
        """Whether values are signed, and only signed values are read."""
        return self._signer is not None

    # -- writing --

    def encode(self, meta: Meta) -> bytes:
        """Serialise metadata. Raises EncodeError, which names the part that cannot be serialised, or says
        that the result is too large."""
        data = self.encode_value(meta, ("result",), {"the result": meta.get("result"), "the metadata": meta})
        # Only the result counts, because the ids of a hundred thousand children may be larger.
        if len(data) > self._max_bytes:
            self.encode_result(meta.get("result"))
        return data

    def encode_result(self, result: Any, about: About = ()) -> bytes:
        """Serialise a result. Raises EncodeError when it has more than ``message_max_bytes``, too."""
        data = self.encode_value(result, about)
        if len(data) > self._max_bytes:
            raise EncodeError(
                f"the result takes {len(data)} bytes, over the limit of {self._max_bytes} "
                "(message_max_bytes): store the data somewhere and return its key"
            )
        return data

    def encode_value(self, value: Any, about: About = (), parts: Mapping[str, Any] | None = None) -> bytes:
        """Serialise any value. EncodeError names one of its *parts* (name → value)."""
        data = self._serialised(value, parts)
        if self._compression:
            mime, body = compress(data, self._compression)
            data = b"%s%s\x00%s" % (COMPRESSED, mime.encode(), body)
        return data if self._signer is None else self._signer.seal(data, *about)

    def _serialised(self, value: Any, parts: Mapping[str, Any] | None = None) -> bytes:
        if self.serializer == "json":
            return encode_json(value, parts or {"the result": value})
        return encode(value, self.serializer, "the result")[2]

    def check_encodable(self, result: Any) -> None:
        """Raise EncodeError if *result* could not be stored."""
        self._serialised(result)

    def shown(self, value: Any) -> Any:
        """Return *value*, an argument of a call, or its repr if the metadata cannot contain it (one level
        deeper), so that it cannot prevent the state from being stored."""
        try:
            self._serialised([value])
        except EncodeError:
            return safe_repr(value)
        return value

    # -- reading --

    def decode(self, data: bytes | str, task_id: str | None = None) -> Meta:
        """Undo encode(). Raises DamagedResult for damaged data, a content type that is not accepted, a
        missing signature with a security_key, or a signature for another task than *task_id*."""
        meta = self.decode_value(data, ("result",), task_id)
        if not isinstance(meta, dict) or not isinstance(meta.get("status"), str) or "result" not in meta:
            raise self.damaged(task_id, f"is damaged: {data[:80]!r} is not metadata")
        if self._signer is not None and task_id is not None and meta.get("task_id") != task_id:
            raise self.damaged(task_id, "is another task's")
        return meta

    def found(self, data: bytes | str, task_id: str) -> Found:
        """Return decode(), or the DamagedResult that it raises."""
        try:
            return self.decode(data, task_id)
        except DamagedResult as error:
            return error

    def status_of(self, data: bytes | str) -> str:
        """Return the state in the output of encode(). Unreadable data counts as PENDING, which any state
        replaces."""
        try:
            return str(self.decode(data)["status"])
        except DamagedResult:
            return states.PENDING

    def decode_value(self, data: bytes | str, about: About = (), task_id: str | None = None) -> Any:
        """Return the value serialised in *data*, compressed or not; raises DamagedResult for *task_id*."""
        payload = data.encode() if isinstance(data, str) else bytes(data)
        try:
            if self._signer is not None:  # check the signature before parsing
                payload = self._signer.unseal(payload, *about)
        except SecurityError as error:
            raise self.damaged(task_id, f"is refused: {error}") from error
        try:
            if payload.startswith(COMPRESSED):
                mime, _, payload = payload[len(COMPRESSED) :].partition(b"\x00")
                payload = decompress(payload, mime.decode("ascii", "replace"))
            return decode(payload, *self.content, self._accept)
        except (InvalidTaskMessage, SecurityError) as error:
            from qworker.message.signing import SEAL

            why = (
                f"cannot be read as {self.serializer}: {error}. Was it written with another "
                "result_serializer?"
            )
            if self._signer is None and SEAL in payload:
                why = "is signed, and this process has no security_key: set it here, too"
            raise self.damaged(task_id, why) from error

    def called(self, task_id: str | None) -> str:
        """Return the name of the stored result of *task_id* (None if unknown) in errors."""
        whose = "a stored result" if task_id is None else f"the stored result of task {task_id}"
        return f"{self._url()}: {whose}"

    def damaged(self, task_id: str | None, why: str) -> DamagedResult:
        """Return the error that says *why* the stored result of *task_id* cannot be read."""
        return DamagedResult(f"{self.called(task_id)} {why}", task_id)
