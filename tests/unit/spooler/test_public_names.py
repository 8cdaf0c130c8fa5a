"""Public names of the package, and its imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

import qworker.spooler


def test_all_public_names_exist() -> None:
    assert all(hasattr(qworker.spooler, name) for name in qworker.spooler.__all__)
    assert set(qworker.spooler.__all__) <= set(dir(qworker.spooler))
    with pytest.raises(AttributeError, match="nothing"):
        qworker.spooler.nothing  # noqa: B018


def test_importing_writer_is_cheap() -> None:
    program = (
        "import sys; from qworker.spooler import Writer; "
        "print({'ctypes', 'json', 'asyncio', 'qworker.spooler.watching.directory'} & {*sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"
