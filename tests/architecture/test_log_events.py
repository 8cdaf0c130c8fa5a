"""Log records carry event names. The guide lists each of them, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from qworker.components.ending.outcomes import OUTCOMES
from tests.architecture.source import MODULES, REPOSITORY, tree

GUIDE = REPOSITORY / "docs/how-to/production.md"


def events() -> Iterator[str]:
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if not (
                isinstance(node, ast.keyword) and node.arg == "extra" and isinstance(node.value, ast.Dict)
            ):
                continue
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(key, ast.Constant), f"{module}:{node.value.lineno}"
                assert key.value == "event", f"{module}:{node.value.lineno}"
                assert isinstance(value, ast.Constant), f"{module}:{node.value.lineno}: name the event"
                yield str(value.value)
    yield from (rule.event for rule in OUTCOMES.values() if rule.event)


def test_guide_lists_every_log_event() -> None:
    _, _, rest = GUIDE.read_text().partition("| event | what has happened |")
    table = rest.partition("\n\n")[0]
    documented = re.findall(r"`([a-z-]+)`", table)
    found = set(events())
    assert len(found) > 20
    assert set(documented) == found
    assert len(documented) == len(set(documented))
