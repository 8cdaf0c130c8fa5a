"""Amazon's SQS, and compatible servers: they reserve delivered messages.

Modules, in reading order: ``queue`` (one queue's calls), ``broker`` (connecting).
"""
