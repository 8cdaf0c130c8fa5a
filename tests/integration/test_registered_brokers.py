"""Brokers of other packages, found through entry points."""

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
from qworker.transports.schemes import registered

GOOD = """
from qworker.testing import MemoryStore
from qworker.transports.capabilities import Capabilities
CAPABILITIES = Capabilities("Mine", ("{scheme}",), *["as it does"] * 7)
def open_broker(url, conf):
    return MemoryStore()
"""


def install(directory: Path, package: str, scheme: str, text: str) -> None:
    """Install a package like pip."""
    (directory / f"{package}.py").write_text(text.replace("{scheme}", scheme))
    info = directory / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[qworker.brokers]\n{scheme} = {package}:open_broker\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory for packages."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_registered_broker_and_capabilities_are_found(packages: Path) -> None:
    install(packages, "broker_good", "good", GOOD)
    assert isinstance(open_broker("good://here", Settings({})), MemoryStore)
    assert capabilities_of("good://here").name == "Mine"


def test_registered_broker_without_capabilities_is_unknown(packages: Path) -> None:
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
"""Brokers that were written for an older version, without letters, revocations and so on."""


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
def test_broker_for_an_older_version_is_reported(packages: Path, opened: str, said: str) -> None:
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
def test_invalid_entry_point_raises_configuration_error(
    packages: Path, name: str, text: str, said: str
) -> None:
    install(packages, f"broker_{name}", name, text)
    with pytest.raises(ConfigurationError, match=said) as raised:
        open_broker(f"{name}://s3cr3t@here", Settings({}))
    assert f"broker_{name}" in str(raised.value)
    assert "s3cr3t" not in str(raised.value)


def test_two_brokers_for_one_scheme_are_refused(packages: Path) -> None:
    for package in ("broker_one", "broker_two"):
        install(packages, package, "twice", GOOD)
    with pytest.raises(ConfigurationError, match="broker_one:open_broker and as broker_two:open_broker"):
        open_broker("twice://here", Settings({}))


def test_typo_in_the_scheme_suggests_the_broker(packages: Path) -> None:
    install(packages, "broker_named", "pigeonpost", GOOD)
    with pytest.raises(ConfigurationError, match="did you mean pigeonpost://"):
        open_broker("pigenpost://here", Settings({}))


def test_builtin_schemes_do_not_read_entry_points() -> None:
    """Reading entry points takes 20 ms, which would delay every start of a worker."""
    script = (
        "import sys\nfrom qworker.conf import Settings\nfrom qworker.transports import open_broker\n"
        "import qworker.transports as t\n"
        "t.registered = lambda scheme: sys.exit('asked')\nopen_broker('sqlite:///x.db', Settings({}))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_nats_is_found_through_its_entry_point() -> None:
    assert "nats" not in transports.SCHEMES
    point = registered("nats")
    assert point is not None
    assert point.value == "qworker.transports.nats.broker:open_broker"
    assert capabilities_of("nats://h").name == "NATS JetStream"


def test_import_of_a_removed_qworker_module_is_reported(packages: Path) -> None:
    install(packages, "broker_moved", "moved", "import qworker.transports.of_old")
    with pytest.raises(ConfigurationError, match=r"lacks features that this version.*of_old"):
        open_broker("moved://here", Settings({}))
