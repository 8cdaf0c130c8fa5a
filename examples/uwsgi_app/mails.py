"""Mails: written to the folder outbox, in the background; and what happens at its times."""

import os
import time
from email.message import EmailMessage
from pathlib import Path

import uwsgi
from uwsgidecorators import cron, spool, spoolraw, timer

OUTBOX = Path(__file__).resolve().parent / "outbox"


@spool(pass_arguments=True)
def send(to, subject, text=""):
    """Arguments of plain data are passed; when it raises, it is tried again."""
    deliver(to, subject, text)


@spoolraw
def send_letter(job):
    """A letter may be long, so it is the body; what is returned says what becomes of the job."""
    if "@" not in job["to"]:
        print(f"nobody can be reached at {job['to']}", flush=True)
    else:
        deliver(job["to"], "A letter", job.get("body", ""))
    return uwsgi.SPOOL_OK


@timer(1, target="spooler")
def count(signum):
    """Runs in the spooler every second, between the jobs."""
    write("waiting", str(len(uwsgi.spooler_jobs())))


@cron(-1, -1, -1, -1, -1, target="spooler")
def every_minute(signum):
    write("minute", time.strftime("%H:%M"))


def deliver(to, subject, text):
    mail = EmailMessage()
    mail["To"], mail["Subject"] = to, subject
    mail.set_content(text)
    write(f"{time.time_ns()}.eml", mail.as_string())


def write(name, text):
    """Whole or not at all: a job may be ended at any time, and is run again then."""
    OUTBOX.mkdir(exist_ok=True)
    temporary = OUTBOX / f".{name}.{os.getpid()}"
    temporary.write_text(text)
    temporary.rename(OUTBOX / name)
