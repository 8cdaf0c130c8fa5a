"""`python -m benchmarks`: list, setup, run, growth, steady, fleet, schedulers, django, spooler, report.
Without a command it runs all workloads: some 40 minutes."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import (
    django,
    django_page,
    environments,
    fleet,
    growth,
    markdown,
    report,
    results,
    run,
    schedulers,
    spooler,
    spooler_page,
    steady,
)
from benchmarks.growth import CURVES
from benchmarks.peers import GROUPS, PEERS
from benchmarks.schedulers import SCHEDULERS
from benchmarks.workloads import WORKLOADS


def main(arguments: Sequence[str] | None = None, find: Callable[[str], object | None] = find_spec) -> int:
    """Run one command; the exit code is 0, or 1 when a cell failed, 2 for a wrong command line. find: tells
    whether a package is installed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given or ["run"])
    if options.command in (_run, _growth, _schedulers, _report) and find("matplotlib") is None:
        # Said before anything is measured, and not after forty minutes.
        print(
            'matplotlib, which draws the charts, is not installed: pip install -e ".[bench]"', file=sys.stderr
        )
        return 2
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


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1440:
        raise argparse.ArgumentTypeError("give minutes above 0 and up to a day")
    return value


def _numbers(text: str) -> list[int]:
    values = [int(part.replace("_", "")) for part in text.split(",")]
    if not all(1 <= value <= 1_000_000 for value in values):
        raise argparse.ArgumentTypeError("give numbers from 1 to a million")
    return values


def _urls(text: str) -> list[str]:
    return [url for url in text.split(",") if url]


def _chosen(options: argparse.Namespace, default: Sequence[str]) -> list[str]:
    """The peers that --peers and --groups name together; `default` without both."""
    wanted = {GROUPS[group] for group in options.groups or ()}
    named = set(options.peers or ())
    if not wanted and not named:
        return list(default)
    return [name for name, peer in PEERS.items() if name in named or peer.group in wanted]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    peers: dict[str, Any] = {
        "type": _names(PEERS),
        "metavar": "NAME,NAME",
        "help": "which peers; default: all",
    }
    groups: dict[str, Any] = {
        "type": _names(GROUPS),
        "metavar": "NAME,NAME",
        "help": f"all peers of: {', '.join(GROUPS)}",
    }
    scale: dict[str, Any] = {
        "type": _positive,
        "default": 1.0,
        "metavar": "X",
        "help": "0.1 = a tenth of the tasks; default: 1",
    }
    minutes: dict[str, Any] = {"type": _minutes, "default": 40.0, "metavar": "N"}
    out: dict[str, Any] = {
        "type": Path,
        "default": Path("benchmarks/results"),
        "metavar": "DIR",
        "help": "default: %(default)s",
    }

    show = commands.add_parser("list", help="show peers and workloads")
    show.set_defaults(command=_list)

    setup = commands.add_parser("setup", help="make the peers' environments")
    setup.add_argument("--peers", **peers)
    setup.add_argument("--groups", **groups)
    setup.set_defaults(command=_setup)

    go = commands.add_parser("run", help="measure and write the report")
    go.add_argument("--peers", **peers)
    go.add_argument("--groups", **groups)
    go.add_argument(
        "--workloads",
        type=_names(WORKLOADS),
        default=list(WORKLOADS),
        metavar="NAME,NAME",
        help="which; default: all",
    )
    go.add_argument("--rounds", type=int, default=1, choices=range(1, 21), metavar="N", help="default: 1")
    go.add_argument("--scale", **scale)
    go.add_argument("--minutes", **minutes, help="begin no cell after; for each round; default: 40")
    go.add_argument("--out", **out)
    go.set_defaults(command=_run)

    grow = commands.add_parser("growth", help="measure how the cost of a task grows, and write the curves")
    grow.add_argument("--peers", **peers)
    grow.add_argument("--groups", **groups)
    grow.add_argument(
        "--curves",
        type=_names(CURVES),
        default=list(CURVES),
        metavar="NAME,NAME",
        help=f"of {', '.join(CURVES)}",
    )
    grow.add_argument("--scale", **scale)
    grow.add_argument("--minutes", **minutes, help="begin no point after; default: 40")
    grow.add_argument("--out", **out)
    grow.set_defaults(command=_growth)

    long = commands.add_parser("steady", help="measure a broker while millions of tasks pass through it")
    long.add_argument("--peers", **{**peers, "help": "which peers; default: SQLite and PostgreSQL"})
    long.add_argument("--groups", **groups)
    long.add_argument("--tasks", type=int, default=5_000_000, metavar="N", help="default: %(default)s")
    long.add_argument(
        "--waiting",
        type=int,
        default=1_000_000,
        metavar="N",
        help="messages due tomorrow; default: %(default)s",
    )
    long.add_argument("--out", **out)
    long.set_defaults(command=_steady)

    many = commands.add_parser("fleet", help="measure what idle workers cost a broker")
    many.add_argument(
        "--urls", type=_urls, default=["redis://"], metavar="URL,URL", help="of brokers; default: redis://"
    )
    many.add_argument(
        "--workers",
        type=_numbers,
        default=[10, 100, 1000],
        metavar="N,N",
        help="how many there are; default: 10,100,1000",
    )
    many.add_argument("--seconds", type=float, default=20.0, metavar="N", help="of idleness; default: 20")
    many.add_argument("--calls", type=int, default=300, metavar="N", help="default: %(default)s")
    many.add_argument("--out", **out)
    many.set_defaults(command=_fleet)

    look = commands.add_parser("schedulers", help="measure what it costs to look after many entries")
    look.add_argument(
        "--peers",
        type=_names(SCHEDULERS),
        default=list(SCHEDULERS),
        metavar="NAME,NAME",
        help=f"of {', '.join(SCHEDULERS)}",
    )
    look.add_argument(
        "--points",
        type=_numbers,
        default=schedulers.POINTS,
        metavar="N,N",
        help=f"numbers of entries; default: {','.join(map(str, schedulers.POINTS))}",
    )
    look.add_argument(
        "--bursts", type=int, default=1, metavar="N", help="minutes whose calls are timed; default: 1"
    )
    look.add_argument(
        "--leaders", type=int, default=5, metavar="N", help="how many leaders are killed; default: 5"
    )
    look.add_argument("--scale", **{**scale, "help": "0.1 = a tenth of the seconds of idleness; default: 1"})
    look.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="write the report of earlier runs instead"
    )
    look.add_argument("--out", **out)
    look.set_defaults(command=_schedulers)

    pair = commands.add_parser("django", help="measure qworker.django beside django-q2")
    for option, known in (
        ("packages", django.APPS),
        ("brokers", django.BROKERS),
        ("workloads", django.WORKLOADS),
    ):
        pair.add_argument(
            f"--{option}",
            type=_names(known),
            default=list(known),
            metavar="NAME,NAME",
            help=f"of {', '.join(known)}",
        )
    pair.add_argument("--rounds", type=int, default=1, choices=range(1, 21), metavar="N", help="default: 1")
    pair.add_argument("--scale", **scale)
    pair.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="write the report of earlier runs instead"
    )
    pair.add_argument("--out", **out)
    pair.set_defaults(command=_django)

    beside = commands.add_parser("spooler", help="measure the spooler beside uWSGI's")
    for option, names in (("workloads", spooler.WORKLOADS), ("places", spooler.PLACES)):
        beside.add_argument(
            f"--{option}",
            type=_names(dict(names)),
            default=list(names),
            metavar="NAME,NAME",
            help=f"of {', '.join(names)}",
        )
    beside.add_argument("--rounds", type=int, default=3, choices=range(1, 21), metavar="N", help="default: 3")
    beside.add_argument("--scale", **scale)
    beside.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="write the report of earlier runs instead"
    )
    beside.add_argument("--out", **out)
    beside.set_defaults(command=_spooler)

    again = commands.add_parser("report", help="write one report of earlier runs")
    again.add_argument("results", type=Path, metavar="RESULTS.JSON", nargs="+")
    again.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="default: beside the first of them"
    )
    again.set_defaults(command=_report)
    return parser


def _list(_: argparse.Namespace) -> int:
    print("workloads:", ", ".join(WORKLOADS))
    print("curves:", ", ".join(CURVES))
    for peer in PEERS.values():
        print(f"{peer.group:10} {peer.name:28} {peer.note}")
    return 0


def _setup(options: argparse.Namespace) -> int:
    for name in _chosen(options, list(PEERS)):
        environments.ensure(PEERS[name])
        print(f"{name:28} {PEERS[name].package} {environments.version(PEERS[name])}")
    return 0


def _end(*_: object) -> None:
    """Pass through the cells' clean-up, which a second signal does not interrupt: a worker left behind would
    take the tasks of the next cell."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def _run(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _end)
    found = run.execute(
        _chosen(options, list(PEERS)),
        options.workloads,
        options.rounds,
        options.scale,
        options.out,
        options.minutes,
    )
    print(markdown.document(found))
    for path in report.write(found, options.out):
        print(f"wrote {path}", file=sys.stderr)
    return 1 if any(cell.error for cell in found.cells) else 0


def _growth(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _end)
    found = growth.execute(
        _chosen(options, growth.OURS), options.curves, options.scale, options.out, options.minutes
    )
    print(markdown.document(found))
    for path in report.write(found, options.out):
        print(f"wrote {path}", file=sys.stderr)
    return 1 if any(point.error for point in found.growth) else 0


def _steady(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _end)
    peers = _chosen(options, ["qworker", "qworker-postgresql"])
    found = steady.execute(peers, options.tasks, options.waiting, options.out)
    print(steady.document(found))
    return 1 if any(each.error or each.lost for each in found) else 0


def _fleet(options: argparse.Namespace) -> int:
    found = fleet.execute(options.urls, options.workers, options.seconds, options.calls, options.out)
    print(fleet.document(found))
    return 1 if any(each.lost for each in found) else 0


def _schedulers(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _end)
    if options.read:
        found = schedulers.load(options.read)
    else:
        found = schedulers.execute(
            options.peers, options.points, options.bursts, options.leaders, options.scale, options.out
        )
    from benchmarks import scheduler_page  # with matplotlib

    for path in scheduler_page.write(found, options.out):
        print(f"wrote {path}", file=sys.stderr)
    print(scheduler_page.document(found))
    return 1 if any(point.error for point in found.points) else 0


def _django(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _end)
    if options.read:
        found = django.load(options.read)
    else:
        found = django.execute(
            options.packages, options.brokers, options.workloads, options.rounds, options.scale, options.out
        )
    for path in django_page.write(found, options.out):
        print(f"wrote {path}", file=sys.stderr)
    print(django_page.document(found))
    return 1 if any(cell.error for cell in found.cells) else 0


def _spooler(options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _end)
    if options.read:
        found = spooler.load(options.read)
    else:
        found = spooler.execute(options.workloads, options.places, options.rounds, options.scale, options.out)
    for path in spooler_page.write(found, options.out):
        print(f"wrote {path}", file=sys.stderr)
    print(spooler_page.document(found))
    return 1 if any(each.error for each in found.measured) else 0


def _report(options: argparse.Namespace) -> int:
    found = results.merge([results.load(path) for path in options.results])
    for path in report.write(found, options.out or options.results[0].parent):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
