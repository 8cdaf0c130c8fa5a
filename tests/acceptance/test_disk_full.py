"""A full disk: a small file system, mounted in a separate mount namespace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
APART = ["unshare", "--user", "--map-root-user", "--mount"]

SCRIPT = """
import json, os, sys
from pathlib import Path
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.lease import Ack, DeadLetter, Envelope
from qworker.transports.sql.embedded.broker import SQLiteBroker

disk = Path(sys.argv[1])
said = {}
filler = disk / "filler"

def fill(most=10**9):
    with filler.open("ab", buffering=0) as file:
        try:
            while file.tell() < most:
                file.write(bytes(4096))
        except OSError:
            pass

fill(2**21)
store = SQLiteBroker(f"sqlite:///{disk}/queue.db")
generation = store.consumer.register("w@test", ["q"], 1)
stored = []

# Full while publishing: what push() returned from is there, and the rest was refused with a reason.
try:
    while True:
        store.sender.push([Envelope("q", str(len(stored)), None, bytes(3000))])
        stored.append(str(len(stored)))
except BrokerUnavailable as error:
    said["push"] = str(error)
fill()
for attempt in range(3):
    try:
        store.sender.push([Envelope("q", "refused", None, bytes(100_000))])
    except BrokerUnavailable:
        said["refusals"] = attempt + 1

# Full while working: nothing is settled by halves.
try:
    leased = store.consumer.lease(["q"], 10_000).messages
    store.consumer.settle(generation, [DeadLetter(message.tag, "x" * 5000) for message in leased])
except BrokerUnavailable as error:
    said["work"] = str(error)

# A second process that comes now is told so as well.
other = SQLiteBroker(f"sqlite:///{disk}/other/queue.db")
try:
    other.sender.push([Envelope("q", "other", None, b"")])
except (BrokerUnavailable, ConfigurationError) as error:
    said["new file"] = str(error)

# Room again: everything goes on, with the same connections.
filler.unlink()
store.sender.push([Envelope("q", "after", None, b"")])
store.consumer.deregister()
generation = store.consumer.register("w@test", ["q"], 1)
found = store.consumer.lease(["q"], 10_000).messages
said["kept"] = [message.headers for message in found] == [*stored, "after"]
said["lost"] = len(store.consumer.settle(generation, [Ack(message.tag) for message in found]))
said["stored"] = len(stored)
said["left"] = len(store.consumer.lease(["q"], 10).messages) + len(store.admin.dead())
store.close()
print(json.dumps(said))
"""


@pytest.mark.acceptance
@pytest.mark.fault
def test_full_disk_loses_nothing_and_is_reported(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run([*APART, "true"], capture_output=True).returncode:
        pytest.skip(
            "this system lets nobody mount a small file system apart from others (unshare --user --mount)"
        )
    mount = f"mount -t tmpfs -o size=6m tmpfs '{tmp_path}' && exec '{sys.executable}' -c \"$0\" '{tmp_path}'"
    ended = subprocess.run(
        [*APART, "sh", "-c", mount, SCRIPT],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    full = f"the disk of {tmp_path}/queue.db is full: free some space; nothing was written"
    assert (said["push"], said["work"]) == (full, full)
    assert said["refusals"] == 3
    assert f"{tmp_path}/other" in said["new file"]
    assert "full" in said["new file"]
    assert said["stored"] > 50
    assert (said["kept"], said["lost"], said["left"]) == (True, 0, 0)
