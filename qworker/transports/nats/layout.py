"""What things are called in JetStream: streams, subjects, and the consumer of each queue.

Comes from:  the name of a queue, and the option ``stream``.
Goes to:     ``server.py``, ``queue.py``, ``admin.py``.
Thread:      any; pure.

Names of consumers and tokens of subjects may hold no dots, spaces, wildcards or path separators, and
JetStream makes a directory of a consumer's name. Queues may be called anything. So what is not a letter, a
digit, "-" or "_" is written as "=" and two hexadecimal digits for each byte of it; and what would be too long
so is written as its beginning and a digest. The description of the consumer says what the queue is called.
"""

from __future__ import annotations

from hashlib import blake2b
from string import ascii_letters, digits
from typing import NamedTuple

from qworker.transports.kombu.server import DEAD, FAILED

_PLAIN = frozenset((ascii_letters + digits + "-_").encode())
LONGEST = 120
"""Characters of a token, at most: a file system gives a name 255 bytes, and JetStream adds to it."""
_DIGEST_BYTES = 16
LETTERS = {DEAD: "dead", FAILED: "failed"}


def token(queue: str) -> str:
    """*queue* as a token of a subject, and as the name of a consumer. No two queues have the same one."""
    written = "".join(
        chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in queue.encode("utf-8", "surrogatepass")
    )
    if written and len(written) <= LONGEST:
        return written
    digest = blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{written[: LONGEST - 2 - 2 * _DIGEST_BYTES]}=={digest}"


class Layout(NamedTuple):
    """The names of all that is ours. stream: the stream of messages; those beside it begin with its name."""

    stream: str

    def letters_stream(self, kind: str) -> str:
        """Of letters of a *kind*: DEAD, FAILED."""
        return f"{self.stream}_{LETTERS[kind]}"

    @property
    def revoked_stream(self) -> str:
        return f"{self.stream}_revoked"

    @property
    def revoked_subject(self) -> str:
        return f"{self.stream}.revoked"

    def subject(self, queue: str) -> str:
        """Of the messages of *queue*."""
        return f"{self.stream}.queue.{token(queue)}"

    def letter_subject(self, kind: str, queue: str | None) -> str:
        """Of the letters of a *kind* that come from *queue*; None: from any."""
        return f"{self.stream}.{LETTERS[kind]}.{'*' if queue is None else token(queue)}"

    def consumer(self, queue: str, made: str) -> str:
        """Of *queue*, in a stream that was *made* then. A server that has lost its data counts from one
        again: with the same name an old acknowledgement would be one of a new message."""
        return f"{token(queue)}-{made}"
