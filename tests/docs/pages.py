"""Parses the documentation's pages: their code blocks, and which of them to run.

Reads README.md and docs/**/*.md; test_docs runs the blocks.

The rules for pages:

- ``python``: a block whose first line is ``# name.py`` is written to that file, and one that begins with
  ``# at the end of name.py`` is appended to it; any other runs as if typed at a prompt, after the blocks
  before it.
- ``pycon``: a session at the prompt; the output must match, ``...`` standing for anything.
- ``console``: each ``$ `` line is a shell command that must succeed (or end in ``# exit N``), and the
  lines below it are its output, where a line that is only ``...`` stands for any lines. A command that ends
  in `` &`` keeps running until the end of the page; its expected lines are waited for. Times, process ids,
  host names and ids may differ; the page's directory is ``/srv/proj``, with programs in ``.venv/bin``.
- ``toml``, ``ini``, ``json``: written to the file that the first line names in a comment, if it does.
- ``<!-- not run: reason -->`` above a block says why it is not run.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*|\{[\w-]+\})\s*$")
NOT_RUN = re.compile(r"^\s*<!-- not run: (?P<reason>.+) -->\s*$")
FILE_NAME = re.compile(r"^# (?P<added>at the end of )?(?P<name>[\w./-]+\.[a-z]+)$")
EXIT_CODE = re.compile(r"\s+# exit (?P<code>\d+)$")

VARYING = {
    rf"\b{re.escape(socket.gethostname())}\b": "web1",
    r"(\w+)@[\w.-]+, process \d+": r"\1@web1, process 811",
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: ": "[2026-03-01 08:00:00,000: ",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00": "2026-03-01T08:00:00.000000+00:00",
    r"^\d\d:\d\d:\d\d\b": "08:00:00",
    r"\b\d+\.\d+( ?)s\b": r"0.1\1s",
    r"\b\d+ MB\b": "48 MB",
    r"\b(process|worker \d ready for work at|at) \d+\b": r"\1 811",
    r"(?<=web1)(\s+)\d+(?=\s|$)": r"\g<1>811",
    r"^\s*\d+(?=\s+\d+ MB )": "827",
    r"\b3\.\d\d\.\d+\b": "3.11.7",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "57b6e37c-670c-45d6-95f1-8fbe5915194f",
    r"uwsgi_spoolfile_on_\w+": "uwsgi_spoolfile_on_web1_811_1_2_3_4",
    r"\bCluster [a-z]+(-[a-z]+)+ \[": "Cluster twelve-leopard-kilo-yellow [",
    r"^[.s]+( +\[100%\])": r".\1",
    r"\b\d+ (passed|skipped|deselected)\b": r"9 \1",
    r"sqlite:////\S+?/(?=(\.qworker/)?\w+\.db)": "sqlite:////srv/proj/",
}
"""Output that differs between machines, and its replacement in comparisons: hosts, times, durations,
memory, process ids, ids, and numbers of tests."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    reason_not_run: str | None = None

    @property
    def file_name(self) -> str | None:
        """The file that this block is written to, from its first line."""
        found = FILE_NAME.match(self.text.partition("\n")[0])
        return found["name"] if found else None

    @property
    def is_added(self) -> bool:
        """Whether the text is appended to an existing file."""
        found = FILE_NAME.match(self.text.partition("\n")[0])
        return found is not None and found["added"] is not None


@dataclass(frozen=True)
class Command:
    """One ``$ `` line. expected: its output, "" if the page does not show it."""

    text: str
    expected: str
    background: bool
    exit_code: int


def pages() -> list[Path]:
    """README.md, CONTRIBUTING.md, the examples' READMEs, and everything under docs/ that is not generated."""
    found = sorted(path for path in (REPOSITORY / "docs").rglob("*.md") if "_build" not in path.parts)
    examples = sorted((REPOSITORY / "examples").rglob("README.md"))
    return [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *found, *examples]


def blocks(text: str) -> Iterator[Block]:
    """Every fenced block in order."""
    inside: list[str] | None = None
    language = indent = ""
    begun = 0
    reason = None
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if inside is None and fence:
            inside, language, indent, begun = [], fence["language"], fence["indent"], number
        elif inside is not None and fence and not fence["language"]:
            yield Block(language, "".join(inside), begun, reason)
            inside, reason = None, None
        elif inside is not None:
            inside.append(line.removeprefix(indent) + "\n")
        elif line.strip():
            marked = NOT_RUN.match(line)
            reason = marked["reason"] if marked else None
    assert inside is None, f"the block of line {begun} is never closed"


def as_anywhere(printed: str) -> str:
    """*printed*, or the output that a page shows, with everything VARYING replaced."""
    for varying, common in VARYING.items():
        printed = re.sub(varying, common, printed, flags=re.MULTILINE)
    return printed


def commands(block: Block) -> Iterator[Command]:
    """The shell commands of a console block with the output of each; a backslash continues a line."""
    text = ""
    expected: list[str] = []
    continued = False
    for line in block.text.splitlines():
        if continued or line.startswith("$ "):
            if not continued:
                if text:
                    yield _command(text, expected)
                text, expected = "", []
            text += line if continued else line.removeprefix("$ ")
            continued = line.endswith("\\")
            text = text.removesuffix("\\")
        else:
            assert text, f"line {block.line}: a console block begins with a command"
            expected.append(line)
    if text:
        yield _command(text, expected)


def _command(text: str, expected: list[str]) -> Command:
    code = EXIT_CODE.search(text)
    text = EXIT_CODE.sub("", text).strip()
    background = text.endswith(" &")
    return Command(
        text.removesuffix(" &"), "\n".join(expected).strip(), background, int(code["code"]) if code else 0
    )
