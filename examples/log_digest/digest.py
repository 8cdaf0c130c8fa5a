"""Publish one task for each log file, wait for all, print what they found together."""

from collections import Counter
from pathlib import Path

from tasks import NotALog, digest


def main() -> None:
    paths = sorted(str(path) for path in Path("logs").glob("*.log"))
    results = digest.apply_many([(path,) for path in paths])

    statuses: Counter[str] = Counter()
    pages: Counter[str] = Counter()
    lines = 0
    for result in results:
        try:
            found = result.get(timeout=60)
        except NotALog as error:
            print(f"left out: {error}")
            continue
        lines += found["lines"]
        statuses.update(found["statuses"])
        pages.update(found["pages"])

    print(f"{len(paths)} files, {lines:,} lines")
    for name, counts in (("status", statuses), ("page", pages)):
        for value, count in counts.most_common():
            print(f"  {name:<7} {value:<18} {count:>8,}  {'█' * round(40 * count / lines)}")


if __name__ == "__main__":
    main()
