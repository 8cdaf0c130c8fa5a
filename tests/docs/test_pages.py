"""Tests of the page parser and runner: if they found nothing, every page would pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Block, Command, as_anywhere, blocks, commands
from tests.docs.test_docs import Reader

PAGE = """
```python
# made.py
value = 40
```
```python
# at the end of made.py
value += 1
```
Words.
```pycon
>>> import made
>>> made.value + 1
42
```
<!-- not run: it needs a printer -->
```console
$ lpr report.txt
```
```console
$ echo one; \\
  echo two
one
two
$ false  # exit 1
$ sleep 60 &
```
"""


def test_blocks_are_parsed_with_language_line_and_reason() -> None:
    found = list(blocks(PAGE))
    assert [(block.language, block.line, block.reason_not_run) for block in found] == [
        ("python", 2, None),
        ("python", 6, None),
        ("pycon", 11, None),
        ("console", 17, "it needs a printer"),
        ("console", 20, None),
    ]
    assert [block.file_name for block in found[:3]] == ["made.py", "made.py", None]
    assert [block.is_added for block in found[:3]] == [False, True, False]


def test_commands_are_parsed_with_output_exit_code_and_background() -> None:
    assert list(commands(list(blocks(PAGE))[4])) == [
        Command("echo one;   echo two", "one\ntwo", False, 0),
        Command("false", "", False, 1),
        Command("sleep 60", "", True, 0),
    ]


def test_log_lines_match_despite_other_times_and_directories() -> None:
    line = "[{}: INFO/MainProcess] ready; broker sqlite:///{}/.qworker/qworker.db, pool prefork × {}"
    shown = line.format("2026-03-01 08:00:00,120", "/srv/proj", 2)
    came = line.format("2031-12-24 23:59:59,999", "/tmp/test-7/project", 2)
    assert as_anywhere(shown) == as_anywhere(came)
    assert as_anywhere("qworker@web1, process 811") == as_anywhere("qworker@my-host.lan, process 12")
    assert as_anywhere(shown) != as_anywhere(came.replace("× 2", "× 3"))


@pytest.fixture
def reader(tmp_path: Path):
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def test_correct_page_passes(reader: Reader) -> None:
    for block in blocks(PAGE):
        if block.reason_not_run is None:
            reader.follow(block, "page")
    assert (
        (reader.directory / "made.py")
        .read_text()
        .endswith("value = 40\n# at the end of made.py\nvalue += 1\n")
    )
    assert len(reader.background) == 1


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "raise ValueError('no')\n"),
        ("python", "raise SystemExit(3)\n"),
        ("pycon", ">>> 1 + 1\n3\n"),
        ("console", "$ false\n"),
        ("console", "$ true  # exit 1\n"),
        ("console", "$ echo one\ntwo\n"),
        ("console", "$ echo started &\nnever\n"),
    ],
)
def test_wrong_page_fails(reader: Reader, language: str, text: str) -> None:
    with pytest.raises(AssertionError):
        reader.follow(Block(language, text, 1), "page")
