"""The entry point that kombu loads when it is imported, so that it knows ``qworker+…://`` without
configuration.

Comes from:  the entry point named qworker in kombu's group of serializers, see pyproject.toml.
Goes to:     kombu's table of transports.
Thread:      the one that imports kombu.

kombu has no entry points for transports, only for serializers and matchers. It loads all serializers on first
use, and passes the object found to ``register``. So there is a serializer of that
name: kombu's JSON, under a content type that is not accepted by default.
"""

from __future__ import annotations

import json

from qworker.transports import register

register()

SERIALIZER = (json.dumps, json.loads, "application/x-qworker-json", "utf-8")
