"""Draw sample pictures into pictures/: rings and slopes in many colours, a few of them large; and one broken
file."""

from pathlib import Path

import png

PICTURES = Path("pictures")


def draw(size: int, tint: int) -> list[bytes]:
    rows = []
    for y in range(size):
        row = bytearray()
        for x in range(size):
            ring = ((x - size // 2) ** 2 + (y - size // 2) ** 2) * 16 // size
            row += bytes((ring & 255, (x * 255 // size + tint) & 255, (y * tint // 8) & 255))
        rows.append(bytes(row))
    return rows


def make(small: int = 18, large: int = 3) -> None:
    PICTURES.mkdir(exist_ok=True)
    for number in range(small + large):
        size = 160 if number < small else 640
        png.write(
            PICTURES / f"{'small' if number < small else 'large'}-{number:02}.png",
            size,
            draw(size, number * 12),
        )
    (PICTURES / "broken.png").write_text("this is no picture")


if __name__ == "__main__":
    make()
