"""MongoDB: messages are documents, which workers take with an update that sets the owner.

Modules, in reading order: ``layout`` (the collections, and how a message is one), ``server`` (the client, and
what its errors mean), ``broker`` (and its administration) with its ``sender`` and ``consumer``, ``letters``
(dead letters and failed tasks), ``claim``, ``result_documents`` (results beside the ack),
``reclaim`` (from dead workers), ``watch`` (the change stream, and polling without it).
"""

from __future__ import annotations

from importlib import import_module

from qworker.errors import ConfigurationError
from qworker.naming import install_command

try:
    import_module("pymongo")
except ImportError as error:
    raise ConfigurationError(
        f"mongodb:// needs PyMongo, which is not installed: {install_command('mongodb')}",
        setting="broker_url",
    ) from error
