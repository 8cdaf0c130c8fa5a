"""Waiting for what others do: as the suite does that we ship."""

from qworker.testing.contract.waiting import PATIENCE, until

__all__ = ["PATIENCE", "until"]
