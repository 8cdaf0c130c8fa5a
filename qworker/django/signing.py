"""signing: a stand-in until the real one is merged.

Comes from:  packages.
Goes to:     the queue's model.
Thread:      any.
"""

from __future__ import annotations

import pickle
from typing import Any

from django.core import signing


class PickleSerializer:
    """Pickle, for Django's signing."""

    @staticmethod
    def dumps(value: Any) -> bytes:
        """Pickle *value*."""
        return pickle.dumps(value)

    @staticmethod
    def loads(data: bytes) -> Any:
        """Unpickle *data*."""
        return pickle.loads(data)


class SignedPackage:
    """Packages as signed text."""

    @staticmethod
    def dumps(value: Any) -> str:
        """Sign *value*."""
        return str(signing.dumps(value, salt="default", serializer=PickleSerializer))

    @staticmethod
    def loads(text: str) -> Any:
        """Check and read *text*."""
        return signing.loads(text, salt="default", serializer=PickleSerializer)
