"""A private SQS: moto's server, which answers boto like Amazon. Its data is lost when it ends, unless
keeps is set.

Comes from:  test_sqs.py, tests/integration/test_sqs_store.py and tests/contract/place_sqs.py; benchmarks,
             with ``python -m tests.acceptance.sqs_server --port N``.
Goes to:     moto_server.py.
Thread:      the test's; the kernel kills the server if the test's process dies.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import boto3

from tests.acceptance.private_servers import Server

REGION = "us-east-1"
PROGRAM = Path(__file__).with_name("moto_server.py")


class Sqs(Server):
    """port: to listen on; 0: a free one. keeps: whether its data survives a restart, as Amazon's."""

    binary = "moto"

    def __init__(self, port: int = 0, keeps: bool = False) -> None:
        self._wanted = port
        self._keeps = keeps
        super().__init__()

    @property
    def url(self) -> str:
        return f"sqs://key:secret@127.0.0.1:{self.port}/"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Only sets the port: it creates its file itself."""
        self.port = self._wanted or self.port

    def command(self) -> list[str]:
        kept = ["--keep", str(self.directory / "queues")] if self._keeps else []
        return [sys.executable, str(PROGRAM), *kept, "-H", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5.0).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def client(self) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )

    def reset(self) -> None:
        """Delete all queues."""
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset", method="POST")
        urllib.request.urlopen(request, timeout=10.0).close()

    def counts(self, queue: str) -> tuple[int, int, int]:
        """The numbers of receivable, delayed and in-flight messages of *queue*."""
        client = self.client()
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        ready, delayed, hidden = (
            int(found[f"ApproximateNumberOfMessages{kind}"]) for kind in ("", "Delayed", "NotVisible")
        )
        return ready, delayed, hidden


def main() -> None:
    parser = argparse.ArgumentParser(description="SQS as moto plays it. It prints its URL and runs.")
    parser.add_argument("--port", type=int, default=0)
    server = Sqs(parser.parse_args().port)
    print(server.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    server.close()


if __name__ == "__main__":
    main()
