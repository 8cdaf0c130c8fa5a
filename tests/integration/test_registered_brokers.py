"""Brokers of other packages, found by the entry points of what is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qworker import transports
from qworker.conf import Settings
from qworker.errors import ConfigurationError
from qworker.testing import MemoryStore
from qworker.transports import open_broker
from qworker.transports.capabilities import UNKNOWN, capabilities_of
from qworker.transports.kombu.broker import OTHER
from qworker.transports.registered import registered

GOOD = """
from qworker.testing import MemoryStore
from qworker.transports.capabilities import Capabilities
CAPABILITIES = Capabilities("Mine", ("{scheme}",), *["as it does"] * 7)
def open_broker(url, conf):
    return MemoryStore()
"""


def install(directory: Path, package: str, scheme: str, text: str) -> None:
    """As pip would do it."""
    (directory / f"{package}.py").write_text(text.replace("{scheme}", scheme))
    info = directory / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[qworker.brokers]\n{scheme} = {package}:open_broker\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where packages are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_broker_and_its_row_are_found(packages: Path) -> None:
    install(packages, "broker_good", "good", GOOD)
    assert isinstance(open_broker("good://here", Settings({})), MemoryStore)
    assert capabilities_of("good://here").name == "Mine"


def test_a_broker_without_a_row_is_not_taken_for_one_of_kombus(packages: Path) -> None:
    install(packages, "broker_rowless", "rowless", GOOD.replace("CAPABILITIES =", "OTHERWISE ="))
    assert capabilities_of("rowless://here") is UNKNOWN
    assert capabilities_of("nobodys://here") is OTHER


OLD = """
from qworker.testing import MemoryStore
from qworker.transports.lease import Admin, Broker
class OldAdmin(Admin):
    def queues(self): return []
class OldBroker(MemoryStore):
    def __init__(self): ...
class Bare(Broker):
    missing = None
    def close(self): ...
open_broker = lambda url, conf: {opened}
"""
"""Brokers that were written before there were letters, revocations and so on beside the three sides."""


@pytest.mark.parametrize(
    ("opened", "said"),
    [
        ("OldBroker()", "its broker has no sender, consumer, admin, lacks, letters, revocations, presence"),
        ("OldAdmin()", "abstract class OldAdmin with abstract methods .*purge"),
        ("Bare(url, 1, 2, 3)", "missing 11 required keyword-only arguments: 'lacks', 'letters', 'revoc"),
        ("MemoryStore(shelves=1)", "unexpected keyword argument 'shelves'"),
        ("__import__('qworker.transports.of_old')", "No module named 'qworker.transports.of_old'"),
    ],
    ids=["fields", "methods", "arguments", "more arguments", "modules"],
)
def test_one_for_an_older_promise_is_told_from_others(packages: Path, opened: str, said: str) -> None:
    name = f"old{len(opened)}"
    install(packages, f"broker_{name}", name, OLD.replace("{opened}", opened))
    with pytest.raises(ConfigurationError, match=said) as raised:
        open_broker(f"{name}://here", Settings({}))
    assert f"broker_{name}:open_broker" in str(raised.value)
    assert "lacks features that this version of qworker requires of a broker" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("fails", "import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ("raises", "raise OSError('no disk')", "cannot be imported: OSError: no disk"),
        ("lacks", "other = 1", "cannot be imported: AttributeError"),
        ("constant", "open_broker = 1", "is not a function open_broker"),
        ("returns", "def open_broker(url, conf): return 7", "returned int, which is not a Broker"),
    ],
)
def test_what_is_wrong_is_one_error(packages: Path, name: str, text: str, said: str) -> None:
    install(packages, f"broker_{name}", name, text)
    with pytest.raises(ConfigurationError, match=said) as raised:
        open_broker(f"{name}://s3cr3t@here", Settings({}))
    assert f"broker_{name}" in str(raised.value)
    assert "s3cr3t" not in str(raised.value)


def test_two_for_one_scheme(packages: Path) -> None:
    for package in ("broker_one", "broker_two"):
        install(packages, package, "twice", GOOD)
    with pytest.raises(ConfigurationError, match="broker_one:open_broker and as broker_two:open_broker"):
        open_broker("twice://here", Settings({}))


def test_a_slip_in_the_scheme_finds_it(packages: Path) -> None:
    install(packages, "broker_named", "pigeonpost", GOOD)
    with pytest.raises(ConfigurationError, match="did you mean pigeonpost://"):
        open_broker("pigenpost://here", Settings({}))


def test_our_own_schemes_ask_nobody() -> None:
    """Looking for entry points takes 20 ms, which no start of a worker is to wait for."""
    script = (
        "import sys\nfrom qworker.conf import Settings\nfrom qworker.transports import open_broker\n"
        "import qworker.transports as t\n"
        "t.registered = lambda scheme: sys.exit('asked')\nopen_broker('sqlite:///x.db', Settings({}))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_nats_is_registered_as_others_are() -> None:
    assert "nats" not in transports.SCHEMES
    point = registered("nats")
    assert point is not None
    assert point.value == "qworker.transports.nats.broker:open_broker"
    assert capabilities_of("nats://h").name == "NATS JetStream"


def test_a_module_of_ours_that_is_gone_is_told_from_others(packages: Path) -> None:
    install(packages, "broker_moved", "moved", "import qworker.transports.of_old")
    with pytest.raises(ConfigurationError, match=r"lacks features that this version.*of_old"):
        open_broker("moved://here", Settings({}))
