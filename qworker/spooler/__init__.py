"""The spooler: jobs as files in a directory, which uWSGI's spooler and ours write and work off together.

Modules, in reading order. A file: ``packet`` (its bytes), ``names``.
"""

from qworker.spooler.packet import Packet, decode, encode

__all__ = ["Packet", "decode", "encode"]
