"""Letter: what the Listener is asked to tell the broker of a request.

Comes from:  Settler, EarlyAcks, and ResultWriter once a result is stored.
Goes to:     the Listener's mailbox.
Thread:      made by any, carried out by the listener.
"""

from __future__ import annotations

from typing import NamedTuple

from qworker.components.request import Request
from qworker.transports.lease import Settlement


class Letter(NamedTuple):
    """An order to the listener: settle *request* so (None: nothing is left to settle).

    final: the worker is done with the request. starts: it runs once this is known to be done, not before.
    anew: its message is gone, since it was acked before its run, and it is not to run here: it is sent once
    more.
    """

    request: Request | None
    settlement: Settlement | None
    final: bool = True
    starts: bool = False
    anew: bool = False
