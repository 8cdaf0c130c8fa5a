"""Certificates of a test run: our authority, what it has signed for a server and a client, and a stranger's
authority.

Comes from:  tests that speak TLS.
Goes to:     files in a directory of theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme


class Own(NamedTuple):
    """A certificate, and the key to it."""

    certificate: Path
    key: Path


class Certificates:
    """authority: whose word is to be taken. stranger: one who has signed nothing here. server: made for
    ``localhost``.
    client: ours. intruder: as the client's, but of the stranger's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        ours, strange = trustme.CA(), trustme.CA()
        self.authority, self.stranger = directory / "authority.pem", directory / "stranger.pem"
        ours.cert_pem.write_to_path(str(self.authority))
        strange.cert_pem.write_to_path(str(self.stranger))
        self.server = self._made(ours, "localhost")
        self.client = self._made(ours, "client@example.org")
        self.intruder = self._made(strange, "intruder@example.org")

    def _made(self, authority: trustme.CA, identity: str) -> Own:
        made = authority.issue_cert(identity)
        own = Own(self._directory / f"{identity}.pem", self._directory / f"{identity}.key")
        made.cert_chain_pems[0].write_to_path(str(own.certificate))
        made.private_key_pem.write_to_path(str(own.key))
        return own
