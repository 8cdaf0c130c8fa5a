"""The spooler: jobs as files in a directory, which uWSGI's spooler and ours write and work off together.

Comes from:  ``Writer``, uWSGI, or anybody who writes the same files.
Goes to:     ``SpoolDirectory``, which claims one job after the other.
Thread:      see each module.

Modules, in reading order. A file: ``packet`` (its bytes), ``names``. Writing: ``place`` (the directory),
``disk`` (what has reached it), ``writing``. Claiming: ``locks``, ``attempts``, ``aside`` (what nobody can
run), ``claiming``. Waking: ``scanning``, ``inotify`` with ``watching``, ``candidates`` (what to try next),
and ``directory``, which has all of them.
"""

from qworker.spooler.claiming import Claim
from qworker.spooler.directory import SpoolDirectory
from qworker.spooler.packet import Packet, decode, encode
from qworker.spooler.writing import NewJob, Sync, Writer, sweep

__all__ = ["Claim", "NewJob", "Packet", "SpoolDirectory", "Sync", "Writer", "decode", "encode", "sweep"]
