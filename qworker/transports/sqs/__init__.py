"""Amazon's SQS, and servers that speak as it does.

Modules, in reading order: ``queue`` (one queue's calls), ``server`` (connecting), ``sender``, ``consumer``,
``admin``, ``broker``.
"""
