"""Watching: finding the file of a spool directory to try next.

Modules, in reading order: ``scanning``, ``inotify``, ``watcher`` (names from the system's notifications),
``candidates``, ``directory`` (which combines them).
"""
