"""Streams of JetStream, which the server keeps until they are deleted."""

import asyncio

from benchmarks.adapters.services import NATS_URL


def delete(beginning: str) -> None:
    """Delete the streams whose names begin so."""
    asyncio.run(_delete(beginning))


async def _delete(beginning: str) -> None:
    # In the environments of those who use NATS, and only there.
    import nats

    client = await nats.connect(NATS_URL)
    try:
        streams = client.jetstream()
        for stream in await streams.streams_info():
            name = stream.config.name or ""
            if name.startswith(beginning):
                await streams.delete_stream(name)
    finally:
        await client.close()
