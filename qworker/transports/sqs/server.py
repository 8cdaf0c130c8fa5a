"""Server: how SQS is connected to, and what its errors are.

Comes from:  the URL of the broker and ``broker_transport_options``.
Goes to:     kombu's transport for SQS, of which the connection and the names of queues are used.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.naming import install_command
from qworker.transports.kombu.server import DEAD, KombuServer
from qworker.transports.visibility.server import QueueGone, RemoteServer

try:
    from botocore.exceptions import ClientError, NoCredentialsError
    from kombu.transport import SQS as untyped_sqs

    from qworker.transports.sqs.queue import SqsQueue, code_of
except ImportError as import_error:
    raise ConfigurationError(
        f"{import_error.name or 'boto3'} is not installed, which sqs:// needs: {install_command('sqs')}",
        setting="broker_url",
    ) from import_error


kombu_sqs: Any = untyped_sqs

LEASE_SECONDS = 30
"""For how long messages are hidden, at least when they are received."""
SHELF_SECONDS = 120
"""For how long a dead letter is hidden that somebody looks at."""
WAIT_SECONDS = 10
REFUSED = frozenset({
    "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidAccessKeyId",
    "AccessDenied", "AccessDeniedException", "AuthFailure",
})  # fmt: skip


class SqsServer(RemoteServer):
    """options: those of kombu's transport. visibility: seconds after which a dead worker's messages come
    back."""

    def __init__(self, url: str, options: dict[str, Any], visibility: int, timeout: float) -> None:
        self.visibility = visibility
        self.wait_seconds = int(options.get("wait_time_seconds", WAIT_SECONDS))
        self._answered = False
        client = {
            "connect_timeout": timeout,
            "read_timeout": self.wait_seconds + 10,
            "max_pool_connections": 64,
            "retries": {"mode": "standard", "total_max_attempts": 2},
            **(options.get("client-config") or {}),
        }
        super().__init__(url, timeout)
        self._kombu = KombuServer(url, {**options, "client-config": client}, timeout)

    def connect(self) -> Any:
        try:
            connection = self._kombu.connect()
        except (BrokerUnavailable, ClientError) as error:
            cause, text = error.__cause__, str(error)
            if isinstance(error, ClientError):
                cause, text = error, f"{self.shown}: {error}"
            if not self._answered and _refuses(cause):
                raise ConfigurationError(text, setting="broker_url") from error
            raise BrokerUnavailable(text) from cause
        self._answered = True
        return connection

    @contextmanager
    def errors(self, connection: Any) -> Iterator[None]:
        try:
            with self._kombu.errors(connection):
                yield
        except ClientError as error:
            raise _unavailable(error)(f"{self.shown}: {error}") from error
        except BrokerUnavailable as error:
            raise _unavailable(error.__cause__)(str(error)) from error.__cause__
        except (kombu_sqs.UndefinedQueueException, kombu_sqs.InvalidQueueException) as error:
            raise ConfigurationError(
                f"broker_transport_options: predefined_queues: {error} (dead letters go to "
                f"{DEAD.replace('.', '-')})",
                setting="broker_transport_options",
            ) from error

    def declare(self, connection: Any, queue: str) -> SqsQueue:
        hidden = SHELF_SECONDS if queue == DEAD else min(LEASE_SECONDS, self.visibility)
        return SqsQueue(connection.default_channel, queue, hidden, self.visibility)


def _unavailable(error: BaseException | None) -> type[BrokerUnavailable]:
    gone = any(word in code_of(error) for word in ("NonExistent", "DoesNotExist"))
    return QueueGone if gone else BrokerUnavailable


def _refuses(error: BaseException | None) -> bool:
    """Whether it is the keys that are wrong, or lacking."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status in (401, 403) or code_of(error) in REFUSED
    return isinstance(error, NoCredentialsError) or (error is not None and _refuses(error.__cause__))
