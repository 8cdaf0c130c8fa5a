"""signing: packages, the signed text of a task that brokers store.

Comes from:  callers of a task, with a dictionary; the cache, with its result.
Goes to:     the broker or the cache, as text; back to a dictionary in the reader.
Thread:      any; only signers are cached.

A package is a pickle in base64 with a timestamp and a signature. As in django-q2, Django signs it with
SECRET_KEY and the project's name as the salt, so each can read the other's packages. Whoever has the key can
run any code in a worker.
"""

import pickle
from functools import lru_cache
from typing import Any

from django.core.signing import BadSignature, TimestampSigner

from qworker.django.conf import conf

__all__ = ["PROTOCOL", "BadSignature", "PickleSerializer", "SignedPackage"]

PROTOCOL = 5
"""The newest pickle protocol that all supported Pythons read."""


class PickleSerializer:
    """A pickle serializer for Django's signing."""

    @staticmethod
    def dumps(obj: Any) -> bytes:
        return pickle.dumps(obj, protocol=PROTOCOL)

    @staticmethod
    def loads(data: bytes) -> Any:
        return pickle.loads(data)


class SignedPackage:
    """Django-Q's name for two functions: dumps and loads."""

    @staticmethod
    def dumps(obj: Any, compressed: bool | None = None) -> str:
        """Return the signed text of *obj*, which must be picklable.

        compressed (bool): compress it with zlib if that makes it shorter; None uses the key ``compress``.
        Raises pickle's errors.
        """
        compress = conf.compress if compressed is None else compressed
        return str(_signer().sign_object(obj, serializer=PickleSerializer, compress=compress))

    @staticmethod
    def loads(text: str | bytes) -> Any:
        """Return the object in *text*, unpickled after its signature was verified.

        Raises BadSignature if it is not a package signed with this project's keys and name, and errors of
        unpickling, such as ImportError for missing classes.
        """
        return PickleSerializer.loads(SignedPackage.verified(text))

    @staticmethod
    def verified(text: str | bytes) -> bytes:
        """Return the pickle in *text* after verifying its signature, without unpickling it.

        Raises BadSignature like loads().
        """
        try:
            if isinstance(text, bytes):
                text = text.decode()
            return bytes(_signer().unsign_object(str(text), serializer=_AsItIs))
        except UnicodeError as error:
            raise BadSignature("a package must be ASCII text") from error


class _AsItIs:
    """A serializer for Django's signing that leaves the bytes unchanged."""

    @staticmethod
    def loads(data: bytes) -> bytes:
        return data


def _signer() -> TimestampSigner:
    return _made(conf.secret_key, conf.prefix, tuple(conf.secret_key_fallbacks))


@lru_cache(maxsize=8)
def _made(key: str, salt: str, fallback_keys: tuple[str, ...]) -> TimestampSigner:
    """Return a signer, which keeps nothing of what it signs."""
    return TimestampSigner(key=key, salt=salt, fallback_keys=list(fallback_keys))
