"""The reader of pages itself: a harness that runs nothing would pass everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Block, Command, blocks, commands
from tests.docs.test_docs import Reader

PAGE = """
```python
# made.py
value = 41
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


def test_blocks_are_found_with_language_line_and_reason() -> None:
    found = list(blocks(PAGE))
    assert [(block.language, block.line, block.reason_not_run) for block in found] == [
        ("python", 2, None),
        ("pycon", 7, None),
        ("console", 13, "it needs a printer"),
        ("console", 16, None),
    ]
    assert found[0].file_name == "made.py"


def test_commands_have_output_exit_code_and_background() -> None:
    assert list(commands(list(blocks(PAGE))[3])) == [
        Command("echo one;   echo two", "one\ntwo", False, 0),
        Command("false", "", False, 1),
        Command("sleep 60", "", True, 0),
    ]


@pytest.fixture
def reader(tmp_path: Path):
    reader = Reader(tmp_path)
    yield reader
    reader.close()


def test_a_page_that_is_right_passes(reader: Reader) -> None:
    for block in blocks(PAGE):
        if block.reason_not_run is None:
            reader.follow(block, "page")
    assert (reader.directory / "made.py").read_text() == "# made.py\nvalue = 41\n"
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
def test_a_page_that_is_wrong_fails(reader: Reader, language: str, text: str) -> None:
    with pytest.raises(AssertionError):
        reader.follow(Block(language, text, 1), "page")
