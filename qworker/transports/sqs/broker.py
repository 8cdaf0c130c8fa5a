"""Amazon SQS, with messages in the format of kombu's transport.

Comes from:  ``broker_url = "sqs://…"``.
Goes to:     ``transports/held/``, with the server and the queues beside this module.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.naming import install_command
from qworker.transports.capabilities import (
    DEAD_LETTERS,
    ETA,
    IN_A_HEADER,
    NO_FANOUT,
    PROCESSES_ONLY,
    Capabilities,
    Capability,
)
from qworker.transports.connect_errors import refuse_parameters, refuse_setting
from qworker.transports.held.broker import HeldBroker, held_broker, visibility_of
from qworker.transports.held.port import DEAD, QueueGone, Server
from qworker.transports.kombu.server import KombuServer

if TYPE_CHECKING:
    from qworker.conf import Settings

try:
    from botocore.exceptions import (
        ClientError,
        EndpointConnectionError,
        InvalidRegionError,
        NoCredentialsError,
    )
    from kombu.transport import SQS as untyped_sqs

    from qworker.transports.sqs.queue import NONSENSE, SqsQueue, code_of
except ImportError as import_error:
    raise ConfigurationError(
        f"{import_error.name or 'boto3'} is not installed, which sqs:// needs: {install_command('sqs')}",
        setting="broker_url",
    ) from import_error


kombu_sqs: Any = untyped_sqs

OPTIONS = "broker_transport_options"
LEASE_SECONDS = 30
"""How long received messages are hidden, until they are extended."""
SHELF_SECONDS = 120
"""How long a dead letter is hidden while it is being read."""
WAIT_SECONDS = 10
REFUSED = frozenset({
    "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidAccessKeyId",
    "AccessDenied", "AccessDeniedException", "AuthFailure",
})  # fmt: skip


class SqsServer(Server):
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
        self._region = options.get("region")
        if self._region is not None and not isinstance(self._region, str):
            raise ConfigurationError(
                f"broker_transport_options: region must be text such as eu-central-1, not {self._region!r}",
                setting=OPTIONS,
            )
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
            if _caused_by(cause, InvalidRegionError):
                raise ConfigurationError(
                    f"broker_transport_options: region {self._region!r} is not valid", setting=OPTIONS
                ) from error
            if _caused_by(cause, EndpointConnectionError) and self._region and not self._answered:
                text += f"; check whether region {self._region!r} is correct"
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
                setting=OPTIONS,
            ) from error

    def declare(self, connection: Any, queue: str) -> SqsQueue:
        hidden = SHELF_SECONDS if queue == DEAD else min(LEASE_SECONDS, self.visibility)
        try:
            return SqsQueue(connection.default_channel, queue, hidden, self.visibility)
        except KeyError as error:  # of an answer without the key
            if isinstance(error, (kombu_sqs.UndefinedQueueException, kombu_sqs.InvalidQueueException)):
                raise
            raise OSError(f"creating or finding a queue: {NONSENSE} ({error} is missing)") from error


def _unavailable(error: BaseException | None) -> type[BrokerUnavailable]:
    gone = any(word in code_of(error) for word in ("NonExistent", "DoesNotExist"))
    return QueueGone if gone else BrokerUnavailable


def _refuses(error: BaseException | None) -> bool:
    """Whether the credentials are wrong or missing."""
    if (answer := _caused_by(error, ClientError)) is not None:
        status = answer.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status in (401, 403) or code_of(answer) in REFUSED
    return _caused_by(error, NoCredentialsError) is not None


def _caused_by(error: BaseException | None, kind: type[Any]) -> Any:
    """Return *error* or one of its causes, if it is of *kind*; None otherwise."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


CAPABILITIES = Capabilities(
    "Amazon SQS",
    ("sqs", "sqs+https"),
    accepted="SQS has answered that it has the message; of many sent together, some may be accepted "
    "although an error was raised",
    redelivered="when its visibility timeout ends (`visibility_timeout`, 30 s if not set); a live "
    "worker renews that, so tasks may take longer",
    eta="in SQS, which delays a message by 15 minutes at most, so it is sent again until it is due (30 "
    "s early in a worker); FIFO queues: like the plain transports",
    priority="none: first come, first served",
    fanout=NO_FANOUT,
    dead_letters="sent to the queue `qworker-dead`, then acknowledged",
    delivery_count=IN_A_HEADER,
    note="At least once; in order in FIFO queues only. A purge also deletes running messages: they are "
    "lost if their worker dies.",
    lacks=frozenset(Capability) - {ETA, DEAD_LETTERS},
    in_part=PROCESSES_ONLY,
)


def open_broker(url: str | None, conf: Settings) -> HeldBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use."""
    refuse_setting(
        conf.broker_use_ssl,
        "SQS is reached by HTTPS, as sqs:// or sqs+https://; AWS_CA_BUNDLE names the file of your own "
        "certificate authority",
    )
    refuse_parameters(url or "", "broker_url")
    options = dict(conf.broker_transport_options)
    scheme, _, rest = (url or "").partition("://")
    if scheme.endswith("+https"):
        options["is_secure"] = True
    visibility = visibility_of(conf, LEASE_SECONDS)
    server = SqsServer(f"sqs://{rest}", options, visibility, conf.broker_connection_timeout)
    return held_broker(server.url, server, conf)
