"""Runs the Python and console blocks of every documentation page, in order, in a temporary directory,
except blocks marked as not run."""

from __future__ import annotations

import codeop
import doctest
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, Block, Command, as_anywhere, blocks, commands, pages

PATIENCE_SECONDS = 100.0
CODE_COLUMNS = 88
RUN = {"python", "pycon", "console"}
SHOWN = {"", "text", "toml", "ini", "json", "yaml", "sql", "sh", "mermaid", "dockerfile", "{eval-rst}"}
WITH_DOTS = r"\.\.\. OK$|^[.s]+ +\[100%\]$"
"""Output of Django and pytest."""
IMPORT = r"^(?:>>> |\.\.\. )? *(?:from ([\w.]+) import|import ([\w., ]+))"
THERE = {"qworker", "kombu", "sqlalchemy", "click", "uwsgi", "uwsgidecorators"}
"""Modules that are installed with qworker, or that it provides."""
MATCH = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def runs(page: Path) -> bool:
    return any(block.language in RUN for block in blocks(page.read_text(encoding="utf-8")))


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


class Reader:
    """Follows a page literally, in an empty directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "proj"
        self.directory.mkdir()
        programs = directory / "bin"
        programs.mkdir()
        # Scripts, not links: a virtual environment's Python finds its packages by the path it is called with.
        # -P as with installed commands, which do not search the working directory for modules.
        modules = {"qworker": "-P -m qworker", "django-admin": "-P -m django", "python": ""}
        for program, command in ((name, f"{sys.executable} {module}") for name, module in modules.items()):
            (programs / program).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / program).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONUNBUFFERED": "1",
            "PYTHONIOENCODING": "utf-8",
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        self.background: list[subprocess.Popen[bytes]] = []
        self.prompt: subprocess.Popen[str] | None = None

    def follow(self, block: Block, where: str) -> None:
        if block.file_name and block.language != "console":
            path = self.directory / block.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            before = path.read_text(encoding="utf-8") if block.is_added else ""
            path.write_text(before + block.text, encoding="utf-8")
        elif block.language == "console":
            for command in commands(block):
                self.type(command, where)
        elif block.language in ("python", "pycon"):
            self.execute(block, where)

    def type(self, command: Command, where: str) -> None:
        if command.background:
            self.start(command, where)
            return
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_SECONDS,
        )
        printed = self.placed(done.stdout.decode())
        assert done.returncode == command.exit_code, (
            f"{where}: {command.text}: exit {done.returncode}\n{printed}"
        )
        if command.expected:
            assert matches(command.expected, printed), (
                f"{where}: {command.text}\n{difference(command, printed)}"
            )

    def start(self, command: Command, where: str) -> None:
        log = self.directory.parent / f"background-{len(self.background)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command.text}"],
                cwd=self.directory,
                env=self.environment,
                stdout=out,
                stderr=out,
            )
        self.background.append(process)
        deadline = time.monotonic() + PATIENCE_SECONDS
        # There may be more output already.
        ways = (command.expected, f"{command.expected}\n...")
        while command.expected and not any(matches(way, self.placed(log.read_text()) + "\n") for way in ways):
            ended = process.poll() is not None
            assert not ended, f"{where}: {command.text} ended with {process.returncode}\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{where}\n{difference(command, log.read_text())}"
            time.sleep(0.05)

    def placed(self, printed: str) -> str:
        """*printed* with the page's directory replaced by the one that pages show."""
        programs = str(Path(sys.executable).parent)
        return printed.replace(programs, "/srv/proj/.venv/bin").replace(str(self.directory), "/srv/proj")

    def execute(self, block: Block, where: str) -> None:
        if self.prompt is None:
            self.prompt = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("prompt.py"))],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.prompt.stdin is not None
        assert self.prompt.stdout is not None
        self.prompt.stdin.write(
            json.dumps({"language": block.language, "text": block.text, "name": where}) + "\n"
        )
        self.prompt.stdin.flush()
        answer = self.prompt.stdout.readline()
        assert answer, f"{where}: the interpreter ended with {self.prompt.wait()}"
        error = json.loads(answer)["error"]
        assert error is None, f"{where}:\n{error}"

    def close(self) -> None:
        if self.prompt is not None:
            self.prompt.communicate()
        for process in self.background:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.background:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def matches(expected: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(as_anywhere(expected) + "\n", as_anywhere(printed), MATCH)


def difference(command: Command, printed: str) -> str:
    return f"the page shows:\n{command.expected}\n\nwhat came:\n{printed}"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in pages() if runs(page)], ids=name)
def test_page_runs(page: Path, reader: Reader) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason_not_run is None:
            reader.follow(block, f"{name(page)}:{block.line}")


@pytest.mark.parametrize("page", pages(), ids=name)
def test_blocks_have_a_known_language(page: Path) -> None:
    unknown = {block.language for block in blocks(page.read_text(encoding="utf-8"))} - RUN - SHOWN
    assert not unknown, f"use one of {sorted(RUN | SHOWN)}"


@pytest.mark.parametrize("page", pages(), ids=name)
def test_python_blocks_fit_the_page_width(page: Path) -> None:
    """Beside the sidebar. Sessions and consoles show the output, however wide."""
    found = (block for block in blocks(page.read_text(encoding="utf-8")) if block.language == "python")
    lines = [line for block in found for line in block.text.splitlines()]
    assert [line for line in lines if len(line) > CODE_COLUMNS] == []


@pytest.mark.parametrize("page", pages(), ids=name)
def test_console_output_is_not_abbreviated_within_lines(page: Path) -> None:
    """Whole lines may be left out, but not parts of lines: readers compare them with their output."""
    found = (block for block in blocks(page.read_text(encoding="utf-8")) if block.language == "console")
    lines = [line for block in found for each in commands(block) for line in each.expected.splitlines()]
    assert [line for line in lines if "..." in re.sub(WITH_DOTS, "", line) and line.strip() != "..."] == []


@pytest.mark.parametrize("page", pages(), ids=name)
def test_sessions_can_be_pasted_into_a_prompt(page: Path) -> None:
    """A statement with a block needs an empty line after it, so it must be the last of its session."""
    found = (block for block in blocks(page.read_text(encoding="utf-8")) if block.language == "pycon")
    assert [statement for block in found for statement in left_open(block)] == []


def left_open(block: Block) -> Iterator[str]:
    """The statements of a session, except the last, that need an empty line after them."""
    for example in doctest.DocTestParser().get_examples(block.text)[:-1]:
        if codeop.compile_command(example.source.removesuffix("\n")) is None:
            yield example.source


@pytest.mark.parametrize("page", pages(), ids=name)
def test_imported_packages_are_installed_on_the_page(page: Path) -> None:
    """Otherwise readers who only installed qworker cannot follow the page."""
    text = page.read_text(encoding="utf-8")
    found = [block for block in blocks(text) if block.reason_not_run is None]
    files = {Path(block.file_name).parts[0].removesuffix(".py") for block in found if block.file_name}
    imported = (
        {module for block in found for module in imports(block)} - files - THERE - sys.stdlib_module_names
    )
    installed = " ".join(re.findall(r"pip install (.+)", text)).replace("-", "_")
    assert [module for module in sorted(imported) if module not in installed] == []


def imports(block: Block) -> set[str]:
    """The top-level names of the modules that a block imports."""
    if block.language not in ("python", "pycon"):
        return set()
    found = re.findall(IMPORT, block.text, flags=re.MULTILINE)
    names = (name for module, several in found for name in (module, *several.split(",")))
    return {name.split()[0].partition(".")[0] for name in names if name.strip()}


@pytest.mark.parametrize("page", [*pages(), REPOSITORY / "CHANGELOG.md"], ids=name)
def test_links_are_not_broken(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            dead.append(target)
    assert not dead


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_index() -> None:
    """Or from the page of its folder, as ``api.md`` links the pages in ``api/``."""
    docs = REPOSITORY / "docs"
    index = docs / "index.md"
    missing = []
    for page in pages():
        if page.is_relative_to(docs) and page != index:
            above = page.parent.with_suffix(".md")
            leading = above if above.exists() else index
            if str(page.relative_to(leading.parent)) not in leading.read_text(encoding="utf-8"):
                missing.append(str(page.relative_to(docs)))
    assert not missing


def test_readme_shows_the_first_steps_in_order() -> None:
    """Running the blocks does not show whether each is below its sentence."""
    steps = (
        "$ pip install",
        "# tasks.py",
        "$ qworker start",
        ">>> add.delay",
        "$ qworker call",
        "$ make demo",
    )
    blocks = re.findall(r"```.*?```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == len(steps)
    assert [step for step, block in zip(steps, blocks, strict=True) if step not in block] == []
