"""The signals of the scheduler, which are Celery's."""

from __future__ import annotations

import pytest

from qworker import signals
from qworker.beat.service import Beat
from tests.support.stores import make_app


@pytest.mark.parametrize("embedded", [False, True])
def test_beat_sends_init_signals(embedded: bool) -> None:
    app, _, _ = make_app(beat_store="memory://")
    beat = Beat(app, lambda name, error: None, embedded=embedded)
    sent: list[str] = []

    def init(sender: object, **kwargs: object) -> None:
        assert sender is beat
        sent.append("beat_init")

    def embedded_init(sender: object, **kwargs: object) -> None:
        sent.append("beat_embedded_init")

    signals.beat_init.connect(init)
    signals.beat_embedded_init.connect(embedded_init)
    try:
        beat.opened()
    finally:
        signals.beat_init.disconnect(init)
        signals.beat_embedded_init.disconnect(embedded_init)
    assert sent == (["beat_init", "beat_embedded_init"] if embedded else ["beat_init"])
