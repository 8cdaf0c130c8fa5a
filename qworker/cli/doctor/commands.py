"""`qworker doctor`: checks common problems, and says what to do.

Comes from:  users whose tasks do not run; deployments, which stop when the exit code is not 0.
Goes to:     `examinations`, one function for each check.
Thread:      main.
"""

from __future__ import annotations

import sys

import click

from qworker.cli.discovery import AppChoice
from qworker.cli.doctor.examinations import EXAMINATIONS, Examination, Finding
from qworker.cli.options import app_option, json_option, open_app
from qworker.cli.output import count, print_json
from qworker.conf import mask_urls
from qworker.errors import QWorkerError

_SIGNS = {"error": "✗", "warning": "!", "ok": "✓"}
_PLAIN_SIGNS = {"error": "x", "warning": "!", "ok": "-"}
_COLORS = {"error": "red", "warning": "yellow", "ok": "green"}


@click.command(epilog="Exit codes: 0 no errors (there may be warnings); 1 errors were found.")
@app_option
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@json_option
def doctor(app: str | None, strict: bool, as_json: bool) -> int:
    """Look for problems, and say what to do."""
    choice = open_app(app, tasks=False)
    findings: list[Finding] = []
    for examination in EXAMINATIONS:
        findings += _examine(examination, choice)
    # A broker that cannot be opened is reported once, not by each check.
    findings = list(dict.fromkeys(findings))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        _print(findings)
    bad = ("error", "warning") if strict else ("error",)
    return 1 if any(finding.severity in bad for finding in findings) else 0


def _examine(examination: Examination, choice: AppChoice) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(examination(choice))
    except QWorkerError as error:
        findings.append(Finding("error", str(error)))
    return findings


def _print(findings: list[Finding]) -> None:
    signs = _SIGNS if "utf" in (getattr(sys.stdout, "encoding", None) or "").lower() else _PLAIN_SIGNS
    for finding in findings:
        sign = click.style(signs[finding.severity], _COLORS[finding.severity])
        click.echo(f"{sign} {mask_urls(finding.what)}")
        if finding.advice:
            click.echo(f"    {mask_urls(finding.advice)}")
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = sum(finding.severity == "warning" for finding in findings)
    click.echo(f"\n{count(errors, 'error')}, {count(warnings, 'warning')}.")
