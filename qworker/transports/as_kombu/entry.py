"""What kombu loads of us when it is imported: so it knows ``qworker+…://`` without a word from anybody.

Comes from:  the entry point of the name qworker in kombu's group of serializers, see pyproject.toml.
Goes to:     kombu's table of transports.
Thread:      the one that imports kombu.

kombu has no entry points for transports, only for serializers and matchers. It loads all serializers when it
is first used, and takes what it finds for the arguments of ``register``. So there is a serializer of that
name: JSON as kombu has it, under a content type that nobody accepts unless told to.
"""

from __future__ import annotations

import json

from qworker.transports import register

register()

SERIALIZER = (json.dumps, json.loads, "application/x-qworker-json", "utf-8")
