"""Signals: all are in the table of arguments and in the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.dispatch import Signal

from qworker.django import signals

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "signals.md"


def test_table_has_all_signals():
    assert {name for name, found in vars(signals).items() if isinstance(found, Signal)} == set(
        signals.ARGUMENTS
    )


@pytest.mark.parametrize("name", signals.ARGUMENTS)
def test_receiver_gets_sender_and_arguments(name):
    got = []

    def receiver(sender, signal, **arguments):
        got.append((sender, arguments))

    signal = getattr(signals, name)
    arguments = {argument: object() for argument in signals.ARGUMENTS[name]}
    signal.connect(receiver)
    try:
        signal.send(signals.SENDER, **arguments)
    finally:
        signal.disconnect(receiver)
    assert got == [("django_q", arguments)]


@pytest.mark.parametrize("name", signals.ARGUMENTS)
def test_reference_lists_the_arguments(name):
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    assert all(f"`{argument}`" in line for argument in signals.ARGUMENTS[name])
