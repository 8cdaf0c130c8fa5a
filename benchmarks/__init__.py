"""Peers side by side: qworker and other task queues measured in one run, on one machine.

`python -m benchmarks run` starts each peer in a virtual environment of its own, gives all of them the same
work, and writes a report with ratios. This package is imported inside every peer's environment too, so it
stays empty.
"""
