"""Letter: what the Listener is asked to tell the broker of a request.

Comes from:  Settler, and ResultWriter once a result is stored.
Goes to:     the Listener's mailbox.
Thread:      made by any, carried out by the listener.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qworker.request import Request
from qworker.transports.lease import Settlement


class Letter(NamedTuple):
    """An order to the listener: settle *request* so (None: nothing is left to settle).

    then: called on the listener's thread once that is done. final: the worker is done with the request.
    """

    request: Request | None
    settlement: Settlement | None
    then: Callable[[], None] | None = None
    final: bool = True
