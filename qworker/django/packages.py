"""packages: a stand-in until the real one is merged.

Comes from:  the queue of django-q2.
Goes to:     the store.
Thread:      any.
"""

from __future__ import annotations

import json

from qworker.transports.lease import Envelope


def envelope_of(package_text: str) -> Envelope:
    """The message of one package."""
    headers = json.dumps({"id": "0" * 32, "task": "qworker.django", "lang": "py"})
    return Envelope("default", headers, None, json.dumps([[package_text], {}, {}]).encode())
