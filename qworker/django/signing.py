"""signing: packages, which are what brokers keep of a task.

Comes from:  callers of a task, with a dictionary; workers, with its result.
Goes to:     the broker, as text; back again in the worker.
Thread:      any; only signers are kept.
A package is a pickle in base64, with the time and a signature. The signature is Django's: its key is the
SECRET_KEY and its salt is the project's name, as with django-q2, so that each reads packages of the other.
The key permits running any code in a worker.
"""

import pickle
from functools import lru_cache
from typing import Any

from django.core.signing import BadSignature, TimestampSigner

from qworker.django.conf import conf

__all__ = ["PROTOCOL", "BadSignature", "PickleSerializer", "SignedPackage"]

PROTOCOL = 5
"""The newest protocol that every Python of a worker reads."""


class PickleSerializer:
    """A serializer for Django's signing, with pickle."""

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
        """Return the signed text of *obj*, which may be anything that can be pickled.

        compressed (bool): compress it with zlib where that makes it shorter; None is the key ``compress``.
        Raises pickle's errors for objects that cannot be pickled.
        """
        compress = conf.compress if compressed is None else compressed
        return str(_signer().sign_object(obj, serializer=PickleSerializer, compress=compress))

    @staticmethod
    def loads(text: str | bytes) -> Any:
        """Return the object in *text*. Nothing of it is unpickled before its signature is verified.

        BadSignature when it was not signed with one of our keys and names, or is not a package. Raises errors
        of unpickling, such as ImportError for missing classes.
        """
        return PickleSerializer.loads(SignedPackage.verified(text))

    @staticmethod
    def verified(text: str | bytes) -> bytes:
        """Return the pickle in *text*, whose signature was verified; it is not unpickled.

        BadSignature as loads().
        """
        try:
            if isinstance(text, bytes):
                text = text.decode()
            return bytes(_signer().unsign_object(str(text), serializer=_AsItIs))
        except UnicodeError as error:
            raise BadSignature("a package is text of ASCII characters") from error


class _AsItIs:
    """A serializer for Django's signing that leaves the bytes unchanged."""

    @staticmethod
    def loads(data: bytes) -> bytes:
        return data


def _signer() -> TimestampSigner:
    return _made(conf.secret_key, conf.prefix, tuple(conf.secret_key_fallbacks))


@lru_cache(maxsize=8)
def _made(key: str, salt: str, fallback_keys: tuple[str, ...]) -> TimestampSigner:
    """Return a signer; it stores nothing that it has signed."""
    return TimestampSigner(key=key, salt=salt, fallback_keys=list(fallback_keys))
