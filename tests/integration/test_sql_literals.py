"""Literals written without the drivers are read correctly by the servers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qworker.transports.sql.links import connector
from tests.servers import require

NUMBERS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(st.text(), st.binary() | st.none() | NUMBERS)))
def test_mysql_reads_row_literals(rows: list[tuple[str, Any]]) -> None:
    link = connector(require("mysql"), 4.0, {})(False)
    try:
        link.do(
            "CREATE TEMPORARY TABLE t (id integer AUTO_INCREMENT PRIMARY KEY, "
            "a longtext CHARACTER SET utf8mb4, b longblob)"
        )
        link.do_many("INSERT INTO t (a, b) VALUES (%s, %s)", rows)
        wanted = [(text, str(value).encode() if isinstance(value, int) else value) for text, value in rows]
        assert link.ask("SELECT a, b FROM t ORDER BY id") == wanted
    finally:
        link.close()


@given(st.lists(TEXT | st.none()), st.lists(st.binary() | st.none()), st.lists(NUMBERS | st.none()))
def test_postgresql_reads_array_literals(
    texts: list[str | None], blobs: list[bytes | None], numbers: list[int | None]
) -> None:
    link = connector(require("postgresql"), 4.0, {})(False)
    try:
        link.use_client_cursor()
        ((found_texts, found_blobs, found_numbers),) = link.ask(
            "SELECT CAST(%s AS text[]), CAST(%s AS bytea[]), CAST(%s AS bigint[])", (texts, blobs, numbers)
        )
        assert (found_texts, found_blobs, found_numbers) == (texts, blobs, numbers)
    finally:
        link.close()
