"""The spooler: jobs as files in a directory, which uWSGI's spooler and ours write and work off together.

Modules, in reading order. A file: ``packet`` (its bytes), ``names``. Writing: ``place`` (the directory),
``disk`` (what has reached it), ``writing``.
"""

from qworker.spooler.packet import Packet, decode, encode
from qworker.spooler.writing import NewJob, Sync, Writer, sweep

__all__ = ["NewJob", "Packet", "Sync", "Writer", "decode", "encode", "sweep"]
