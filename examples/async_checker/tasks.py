"""One task: ask one page how it is."""

import asyncio
from urllib.parse import urlsplit

from qworker import QWorker

app = QWorker("async_checker", worker_async_concurrency=100)


class TryLater(Exception):
    """The page said that it is busy."""


@app.task(autoretry_for=(TryLater, OSError), default_retry_delay=0.5, max_retries=4)
async def check(url: str) -> int:
    """Return the HTTP status of *url*."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(
            f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        status = int((await reader.readline()).split()[1])
    finally:
        writer.close()
    if status == 503:
        raise TryLater(url)
    return status
