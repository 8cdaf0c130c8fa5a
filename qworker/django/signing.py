"""signing: packages, which are what brokers keep of a task.

Comes from:  whoever calls a task, with a dictionary; workers, with its result.
Goes to:     the broker, as text; back again in the worker.
Thread:      any; only signers are kept.
A package is a pickle in base64, with the time and a signature. The signature is Django's: its key is the
SECRET_KEY and its salt is the project's name, as with django-q2, so that each reads packages of the other.
Who knows the key can make a worker run anything.
"""

import pickle
from functools import lru_cache
from typing import Any

from django.core.signing import BadSignature, TimestampSigner

from qworker.django.conf import conf

__all__ = ["PROTOCOL", "BadSignature", "PickleSerializer", "SignedPackage"]

PROTOCOL = 5
"""The newest that every Python reads that may run a worker beside us."""


class PickleSerializer:
    """What Django's signing asks of a serializer, with pickle."""

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
        """The signed text of *obj*, which may be anything that pickle takes.

        compressed (bool): compress it with zlib where that makes it shorter; None is the key ``compress``.
        Raises what pickle raises of an object that it cannot take.
        """
        compress = conf.compress if compressed is None else compressed
        return str(_signer().sign_object(obj, serializer=PickleSerializer, compress=compress))

    @staticmethod
    def loads(text: str | bytes) -> Any:
        """The object in *text*. Nothing of it is unpickled before its signature is verified.

        BadSignature when it was not signed with a key and a name of ours, or is no package at all. Raises
        what unpickling raises, such as ImportError, when it was and its classes are not here.
        """
        return PickleSerializer.loads(SignedPackage.verified(text))

    @staticmethod
    def verified(text: str | bytes) -> bytes:
        """The pickle in *text*, whose signature was verified; it is not unpickled.

        BadSignature as loads().
        """
        try:
            if isinstance(text, bytes):
                text = text.decode()
            return bytes(_signer().unsign_object(str(text), serializer=_AsItIs))
        except UnicodeError as error:
            raise BadSignature("a package is text of ASCII characters") from error


class _AsItIs:
    """What Django's signing asks of a serializer that leaves the bytes as they are."""

    @staticmethod
    def loads(data: bytes) -> bytes:
        return data


def _signer() -> TimestampSigner:
    return _made(conf.secret_key, conf.prefix, tuple(conf.secret_key_fallbacks))


@lru_cache(maxsize=8)
def _made(key: str, salt: str, fallback_keys: tuple[str, ...]) -> TimestampSigner:
    """A signer; it keeps nothing of what it has signed."""
    return TimestampSigner(key=key, salt=salt, fallback_keys=list(fallback_keys))
