"""A page that sends mails, and does not wait for them."""

import time
from html import escape
from urllib.parse import parse_qs

import mails
import uwsgi

FORM = """<!doctype html><title>Mails</title>
<form method="post"><input name="to" placeholder="to" required> <input name="subject" placeholder="subject">
<select name="how"><option>now<option>soon<option>first<option>letter</select> <button>Send</button></form>
<p>{said}</p><p>{waiting} waiting, {sent} sent.</p>"""


def enqueue(how, to, subject):
    """Enqueue a mail and return the name of its job."""
    if how == "soon":
        job = mails.send(to, subject, at=str(int(time.time()) + 2))
    elif how == "first":
        job = mails.send(to, subject, text="In a hurry.", priority="1")
    elif how == "letter":
        job = mails.send_letter({"to": to, "body": "Dear reader,\n" + "and so on, " * 10_000})
    else:
        job = mails.send(to, subject)
    return job.decode()


def application(environ, start_response):
    said = ""
    if environ["REQUEST_METHOD"] == "POST":
        length = min(int(environ.get("CONTENT_LENGTH") or 0), 10_000)
        fields = {
            key: values[0] for key, values in parse_qs(environ["wsgi.input"].read(length).decode()).items()
        }
        said = enqueue(fields.get("how", "now"), fields["to"], fields.get("subject", "Hello"))
    sent = len(list(mails.OUTBOX.glob("*.eml")))
    page = FORM.format(said=escape(said), waiting=len(uwsgi.spooler_jobs()), sent=sent).encode()
    start_response("200 OK", [("Content-Type", "text/html"), ("Content-Length", str(len(page)))])
    return [page]
