"""A full disk: accepted jobs are stored completely, refused ones not at all, and running jobs still end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_disk_full import APART, REPOSITORY

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

SCRIPT = """
import json, os, sys
from qworker.errors import SpoolError
from qworker.spooler import NewJob, SpoolDirectory, Sync, Writer

writer = Writer(f"{sys.argv[1]}/spool", sync=Sync.DIRECTORY)
said, paths = {}, []
try:
    while True:
        paths.append(writer.write({"n": len(paths)}, bytes(30_000)))
except SpoolError as error:
    said["refused"] = str(error)
try:
    writer.write_many(NewJob({"n": "many"}, bytes(1000)) for _ in range(10_000))
except SpoolError as error:
    said["many"] = str(error)
with open(f"{sys.argv[1]}/filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError:
        pass
said["there"] = len(os.listdir(writer.path)) == len(paths)
directory = SpoolDirectory(writer.path)
done = []
while (claim := directory.next()) is not None:
    claim.begin()
    done.append((int(claim.pairs[b"n"]), len(claim.body)))
    claim.finish()
said["done"] = sorted(done) == [(n, 30_000) for n in range(len(paths))]
said["jobs"] = len(paths)
print(json.dumps(said))
"""


def test_full_disk_loses_no_job(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=1m none "{disk}" && exec "$@"'
    if subprocess.run([*APART, "sh", "-c", mount, "sh", "true"], capture_output=True).returncode:
        pytest.skip("a file system of its own can be mounted by nobody here: allow user namespaces")
    ended = subprocess.run(
        [*APART, "sh", "-c", mount, "sh", sys.executable, "-c", SCRIPT, str(disk)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert "No space left" in said["refused"]
    assert "nothing was enqueued" in said["refused"]
    assert "No space left" in said["many"]
    assert said["there"]
    assert said["done"]
    assert said["jobs"] > 10
