"""Disque: nodes that hide a job they gave out until its retry time.

Modules, in reading order: ``url``, ``link`` (one connection), ``nodes`` (those of one user), ``job`` (what a
node says of a job), ``queue``, ``server``, ``broker``.
"""
