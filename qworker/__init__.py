"""qworker: a distributed task queue."""

__version__ = "0.1.0"
