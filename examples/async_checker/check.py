"""Check two hundred pages and wait for the answers, all at once."""

import asyncio
import os
import time
from collections import Counter

from tasks import check

PAGES = 200
SITE = f"http://127.0.0.1:{os.environ.get('PORT', '8765')}"


async def main() -> None:
    started = time.monotonic()
    results = check.apply_many([(f"{SITE}/page/{number}",) for number in range(PAGES)])
    statuses = await asyncio.gather(*results)
    for status, count in sorted(Counter(statuses).items()):
        print(f"{status}: {count} pages")
    print(f"{PAGES} pages in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
