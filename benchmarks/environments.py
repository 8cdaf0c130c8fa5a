"""One virtual environment per set of requirements, made on demand below benchmarks/.venvs.

qworker itself runs on the interpreter that runs the harness; the peers' environments are made from it too, so
all of them run on the same Python.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from benchmarks.peer import Peer

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".venvs"


def directory(peer: Peer) -> Path:
    """Where that peer's environment is; peers with the same requirements share one."""
    content = "\n".join((sys.version, *peer.requirements))
    name = peer.requirements[0].partition("==")[0].partition("[")[0]
    return ENVIRONMENTS / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def interpreter(peer: Peer) -> Path:
    """The Python that runs the peer: our own one for a peer without requirements."""
    if not peer.requirements:
        return Path(sys.executable)
    return directory(peer) / "bin" / "python"


def ensure(peer: Peer) -> None:
    """Make the peer's environment when it is missing; raises RuntimeError with pip's words when that
    fails."""
    if not peer.requirements:
        return
    home = directory(peer)
    finished = home / "requirements.txt"
    if finished.exists():
        return
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    _run(
        [
            str(home / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *peer.requirements,
        ]
    )
    finished.write_text("\n".join(peer.requirements) + "\n")


def version(peer: Peer) -> str:
    """The installed version of the peer's package, or "-"."""
    code = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
    done = subprocess.run(
        [str(interpreter(peer)), "-c", code], capture_output=True, text=True, cwd=HERE.parent
    )
    return done.stdout.strip() or "-"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip() or done.stdout.strip()}")
