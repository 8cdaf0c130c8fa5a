"""Options of database URLs on real servers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from qworker.transports.sql.links import as_written_plainly, connector
from tests.servers import require

FIRST = "SET sql_mode = '', @first = 5"


def link_to(kind: str, query: str) -> Any:
    url = as_written_plainly(require(kind))
    return connector(f"{url}{'&' if '?' in url else '?'}{query}", 3.0, {})(False)


def test_postgresql_role_and_prepare_threshold() -> None:
    link = link_to("postgresql", f"prepare_threshold=none&options={quote('-c role=pg_monitor')}")
    try:
        assert link.ask("SELECT current_user::text")[0][0] == "pg_monitor"
        assert link._connection.prepare_threshold is None
    finally:
        link.close()


def test_mysql_init_command_keeps_strict_mode() -> None:
    link = link_to("mysql", f"init_command={quote(FIRST)}")
    try:
        ((mode, first),) = link.ask("SELECT @@sql_mode, @first")
    finally:
        link.close()
    assert (first, "STRICT_ALL_TABLES" in mode) == (5, True)


@pytest.mark.parametrize("mode", ["PREFERRED", "DISABLED"])
def test_mysql_optional_tls_modes(mode: str) -> None:
    link = link_to("mysql", f"ssl_mode={mode}")
    try:
        ((_, cipher),) = link.ask("SHOW STATUS LIKE 'Ssl_cipher'")
    finally:
        link.close()
    assert mode == "PREFERRED" or cipher == ""
