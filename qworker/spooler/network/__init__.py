"""Jobs over the network: a server and a client for uWSGI's packets, on TCP and UNIX sockets.

Comes from:  ``send``, uWSGI, nginx, or any other client of the protocol.
Goes to:     spool files, written by the server.
Thread:      see each module.

Intended differences from uWSGI:

- malformed pairs are refused; uWSGI reports them as enqueued and drops them later.
- ``:port`` is the loopback; with uWSGI it is every network. Other addresses need a list of networks or a key.
- buffer-size is 65,535 unless it is set; with uWSGI it is 4,096.
- a job is kept when its client disconnects before the answer; uWSGI removes it.
- ``priority`` has only digits, and ``at`` is a number; uWSGI accepts anything.
- pickled arguments of decorated functions are refused unless they are signed.
- an incomplete request does not block others; with uWSGI it occupies a worker.
- modifier2 = 1 means our extension, and is ignored by uWSGI. ``Limits(extension=False)`` ignores it, too.

Modules, in reading order: ``framing`` (the format), ``peers`` (addresses and access), ``receiving`` (the
bytes of one connection), ``server``, ``client``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.spooler.network.client import SpoolConnection, send, spool_to
    from qworker.spooler.network.framing import Limits, read_key
    from qworker.spooler.network.peers import Access
    from qworker.spooler.network.server import SpoolServer

_MODULE_OF = {
    "Access": "peers",
    "Limits": "framing",
    "SpoolConnection": "client",
    "SpoolServer": "server",
    "read_key": "framing",
    "send": "client",
    "spool_to": "client",
}
"""The module of each public name. Imported on first use, so that a client does not import the server."""
__all__ = ["Access", "Limits", "SpoolConnection", "SpoolServer", "read_key", "send", "spool_to"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'qworker.spooler.network' has no attribute {name!r}")
    value = getattr(import_module(f"qworker.spooler.network.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
