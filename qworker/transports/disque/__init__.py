"""Disque: nodes that hide a job they gave out until its retry time.

Modules, in reading order: ``url``, ``link`` (one connection), ``nodes`` (those of one user),
``queue`` (one queue, and all of a worker at once), ``broker`` (and connecting).
"""
