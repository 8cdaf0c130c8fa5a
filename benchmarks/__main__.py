"""`python -m benchmarks`: list, setup, run, report. Without a command it runs everything, which takes some 20 minutes."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import environments, markdown, report, results, run
from benchmarks.peers import PEERS
from benchmarks.workloads import WORKLOADS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, or 1 when a cell failed, 2 for a wrong command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given or ["run"])
    return int(options.command(options))


def _names(table: dict[str, Any]) -> Any:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in table]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(table)}")
        return names

    return parse


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError("give a number above 0 and up to 10")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    peers = {
        "type": _names(PEERS),
        "default": list(PEERS),
        "metavar": "NAME,NAME",
        "help": "which peers; default: all",
    }

    show = commands.add_parser("list", help="show peers and workloads")
    show.set_defaults(command=_list)

    setup = commands.add_parser("setup", help="make the peers' environments")
    setup.add_argument("--peers", **peers)
    setup.set_defaults(command=_setup)

    go = commands.add_parser("run", help="measure and write the report")
    go.add_argument("--peers", **peers)
    go.add_argument(
        "--workloads",
        type=_names(WORKLOADS),
        default=list(WORKLOADS),
        metavar="NAME,NAME",
        help="which; default: all",
    )
    go.add_argument("--rounds", type=int, default=1, choices=range(1, 21), metavar="N", help="default: 1")
    go.add_argument(
        "--scale", type=_positive, default=1.0, metavar="X", help="0.1 = a tenth of the tasks; default: 1"
    )
    go.add_argument(
        "--out", type=Path, default=Path("benchmarks/results"), metavar="DIR", help="default: %(default)s"
    )
    go.set_defaults(command=_run)

    again = commands.add_parser("report", help="write the report of an earlier run again")
    again.add_argument("results", type=Path, metavar="RESULTS.JSON")
    again.add_argument("--out", type=Path, default=None, metavar="DIR", help="default: beside the results")
    again.set_defaults(command=_report)
    return parser


def _list(_: argparse.Namespace) -> int:
    print("workloads:", ", ".join(WORKLOADS))
    for peer in PEERS.values():
        print(f"{peer.name:18} {peer.note}")
    return 0


def _setup(options: argparse.Namespace) -> int:
    for name in options.peers:
        environments.ensure(PEERS[name])
        print(f"{name:18} {PEERS[name].package} {environments.version(PEERS[name])}")
    return 0


def _run(options: argparse.Namespace) -> int:
    # Asked to end, we must still pass through the cells' clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = run.execute(options.peers, options.workloads, options.rounds, options.scale, options.out)
    print(markdown.document(found))
    for path in report.write(found, options.out):
        print(f"wrote {path}", file=sys.stderr)
    return 1 if any(cell.error for cell in found.cells) else 0


def _report(options: argparse.Namespace) -> int:
    found = results.load(options.results)
    for path in report.write(found, options.out or options.results.parent):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
