"""PyMySQL installed as MySQLdb, as in many Django projects: its errors are still recognized."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import pymysql
pymysql.version_info = (2, 2, 7, "final", 0)
pymysql.install_as_MySQLdb()
import django.db.backends.mysql.base  # imports modules of MySQLdb, and with them PyMySQL's once more
from pymysql.connections import Connection
from qworker.transports.sql.mysql import MySQLLink
try:
    Connection(host="127.0.0.1", port=1, user="nobody")
except MySQLLink.errors:
    print("known")
"""


def test_errors_of_pymysql_installed_as_mysqldb() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.stdout == "known\n", done.stderr
