"""The machine's own: what it costs to hand a frame to another process. Every worker with children pays it."""

import os
from pathlib import Path

from benchmarks.limits.limit import BODY, Limit, rate

GROUP = "machine"


def _ping_pong(directory: Path, seconds: float) -> float:
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(there[1])
        while content := os.read(there[0], 4096):
            os.write(back[1], content)
        os._exit(0)

    def step() -> None:
        os.write(there[1], BODY)
        os.read(back[0], 4096)

    try:
        return rate(step, 1, seconds)
    finally:
        for descriptor in (*there, *back):
            os.close(descriptor)
        os.waitpid(child, 0)


def _frames(frames: int) -> Limit:
    reader, writer = 0, 1

    def measure(directory: Path, seconds: float) -> float:
        pipe = os.pipe()
        content = BODY * frames

        def step() -> None:
            os.write(pipe[writer], content)
            os.read(pipe[reader], 65_536)

        try:
            return rate(step, frames, seconds)
        finally:
            os.close(pipe[reader])
            os.close(pipe[writer])

    return Limit(f"pipe, {frames} frames of 300 B to a write", GROUP, measure)


LIMITS = (Limit("pipe, to another process and back", GROUP, _ping_pong), _frames(1), _frames(32))
