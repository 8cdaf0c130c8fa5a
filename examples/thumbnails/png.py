"""Just enough PNG: 8-bit RGB, no interlace. Rows are bytes, three a pixel."""

import struct
import zlib
from pathlib import Path

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def write(path: Path, width: int, rows: list[bytes]) -> None:
    """Write a picture; the file appears whole or not at all."""
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    unfinished = path.with_suffix(".part")
    try:
        unfinished.write_bytes(
            SIGNATURE
            + b"".join(
                struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
                for kind, body in chunks
            )
        )
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path) -> tuple[int, list[bytes]]:
    """Return (width, rows) of a picture that write() made. Raises ValueError for any other file."""
    data = path.read_bytes()
    if not data.startswith(SIGNATURE):
        raise ValueError(f"{path} is not a PNG picture")
    width = height = 0
    packed = b""
    at = len(SIGNATURE)
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, *kind_of_pixels = struct.unpack(">IIBBBBB", body)
            if kind_of_pixels != [8, 2, 0, 0, 0]:
                raise ValueError(f"{path}: only 8-bit RGB without interlace is read here")
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    plain = zlib.decompress(packed)
    stride = 1 + 3 * width
    if any(plain[row * stride] for row in range(height)):
        raise ValueError(f"{path}: filtered rows are not read here")
    return width, [plain[row * stride + 1 : (row + 1) * stride] for row in range(height)]


def shrink(rows: list[bytes], factor: int) -> list[bytes]:
    """The mean of each *factor* × *factor* square; what does not fill a square at the edges is dropped."""
    small = []
    width = len(rows[0]) // 3 // factor
    area = factor * factor
    for top in range(0, len(rows) - factor + 1, factor):
        band = rows[top : top + factor]
        sums = [0] * (3 * width)
        for row in band:
            for channel in range(3):
                for x in range(factor):
                    for index, value in enumerate(row[3 * x + channel : 3 * width * factor : 3 * factor]):
                        sums[3 * index + channel] += value
        small.append(bytes(total // area for total in sums))
    return small
