"""Amazon's SQS, and servers that speak as it does: a transport of those that hide what they give out.

Modules, in reading order: ``queue`` (one queue's calls), ``server`` (connecting), ``broker``.
"""
