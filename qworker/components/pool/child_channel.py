"""ChildChannel: the parent's ends of a child's socket and two pipes.

Comes from:  ChildHandle, with jobs to send and jobs to recall.
Goes to:     the child: frames through the socket, and through the pipes a token for each job and orders to
             cancel one.
Thread:      under the pool's lock, except received(), hang_up() and close(), which belong to the pool thread.
"""

import os
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

from qworker.components.pool.frames import RECEIVE_BYTES, FrameBuffer, Job, pack, pack_tokens, take_tokens

FRAME_BYTES = 128 * 1024
"""Approximate size of the bodies in a frame."""


class ChildChannel:
    """The channel to one child, which inherits their_socket, token_reader and order_reader."""

    def __init__(self) -> None:
        self.unsent: deque[memoryview] = deque()
        """Frames as memoryviews, so that the rest of a large one is not copied for each send."""
        self._buffer = FrameBuffer()
        self.socket, self.their_socket = socket.socketpair()
        self.socket.setblocking(False)
        for end in (self.socket, self.their_socket):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.token_reader, self._token_writer = os.pipe()
        self.order_reader, self._order_writer = os.pipe()
        for file in (self.token_reader, self.order_reader, self._order_writer):
            os.set_blocking(file, False)
        self._open = True

    def spawned(self) -> None:
        """Close our copies of the child's ends, except for the tokens, which may be recalled."""
        self.their_socket.close()
        os.close(self.order_reader)
        self.order_reader = -1

    def add(self, jobs: list[Job]) -> None:
        """Send the tokens of *jobs*, and queue the jobs for flush(): large ones in several frames, so that
        the child begins before all have arrived."""
        # Tokens first: a child that finds no token for a job assumes that it was recalled.
        os.write(self._token_writer, pack_tokens([job[0] for job in jobs]))
        first = size = 0
        for index, job in enumerate(jobs, 1):
            body: object = job[-1]  # may be of any type, as it is untrusted; the child will refuse it
            size += len(body) if isinstance(body, bytes | str) else 0
            if size >= FRAME_BYTES or index == len(jobs):
                self.unsent.append(memoryview(pack(jobs[first:index])))
                first, size = index, 0

    def flush(self) -> bool:
        """Send queued frames; return False if the socket is full and some are left."""
        while self.unsent:
            data = self.unsent[0]
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                return False
            except OSError:
                self.unsent.clear()  # the child is dead; the pool thread will notice and end its jobs
                break
            if sent < len(data):
                self.unsent[0] = data[sent:]
            else:
                self.unsent.popleft()
        return True

    def recalled(self) -> list[int]:
        """Take back the tokens of the jobs that have not started, and return their sequence numbers."""
        return take_tokens(self.token_reader) if self._open else []

    def cancel(self, sequence: int) -> None:
        """Order the child to cancel an async job."""
        try:
            os.write(self._order_writer, pack_tokens([sequence]))
        except OSError:
            pass  # the child is dead or does not react; its limit will end it

    # -- pool thread --

    def received(self) -> Iterator[Any]:
        """Yield the received frames, and None if the child has closed the socket. Raises one of NO_FRAMES for
        invalid data, after the valid frames."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            yield from self._buffer.feed(data)
        else:
            yield None

    def hang_up(self) -> None:
        """Make the child end after its current jobs. Safe to call twice."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        """Close all ends. Safe to call twice."""
        if self._open:
            self._open = False
            self.socket.close()
            self.their_socket.close()
            os.close(self.token_reader)
            os.close(self._token_writer)
            os.close(self._order_writer)
            if self.order_reader >= 0:
                os.close(self.order_reader)
