"""A web site that takes half a second for every page: most are well, some are missing, some are well the
second time."""

import asyncio
import contextlib
import os

PORT = int(os.environ.get("PORT", "8765"))
DELAY = 0.5
asked: dict[str, int] = {}


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    path = request.split()[1]
    asked[path] = asked.get(path, 0) + 1
    await asyncio.sleep(DELAY)
    if path.endswith("7"):
        status = "404 Not Found"
    elif path.endswith("5") and asked[path] == 1:
        status = "503 Service Unavailable"
    else:
        status = "200 OK"
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", PORT, backlog=512)
    print(f"http://127.0.0.1:{PORT}/", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
