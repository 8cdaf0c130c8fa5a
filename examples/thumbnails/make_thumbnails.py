"""Publish one task for each picture, show how far the large ones are, write the contact sheet."""

import time
from pathlib import Path

from tasks import thumbnail

OUT = Path("thumbnails")
LARGE = 200_000  # bytes


def main() -> None:
    OUT.mkdir(exist_ok=True)
    results = {}
    for path in sorted(Path("pictures").glob("*.png")):
        priority = 0 if path.stat().st_size > LARGE else 9  # 9 is the most urgent
        results[path] = thumbnail.apply_async((str(path), str(OUT / path.name)), priority=priority)

    waiting = dict(results)
    while waiting:
        for path, result in list(waiting.items()):
            if result.ready():
                del waiting[path]
                made = result.result
                print(
                    f"{path.name}: {made['width']} × {made['height']}"
                    if result.successful()
                    else f"{path.name}: {made}"
                )
            elif isinstance(progress := result.info, dict) and "of" in progress:
                print(f"{path.name}: row {progress['done']} of {progress['of']}")
        time.sleep(0.2)

    targets = [result.get()["target"] for result in results.values() if result.successful()]
    images = "\n".join(f'<img src="{Path(target).name}" alt="">' for target in targets)
    (OUT / "index.html").write_text(f"<!doctype html><title>Contact sheet</title>\n{images}\n")
    print(f"{len(targets)} thumbnails in {OUT / 'index.html'}")


if __name__ == "__main__":
    main()
