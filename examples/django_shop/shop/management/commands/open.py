"""open: everything at once: the data, a cluster, and the pages, until Ctrl-C."""

import signal
import subprocess
import sys
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from shop.data import make_data
from shop.models import Product

OWNER = "owner"
"""The name of who may see the admin, and the password: this is an example on your own machine."""


class Command(BaseCommand):
    """See the module."""

    help = "Makes data, starts a cluster and the web server; Ctrl-C stops both."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("address", nargs="?", default="127.0.0.1:8000", help="Where the pages are.")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        if not Product.objects.exists():
            make_data()
        users = get_user_model().objects
        if not users.filter(username=OWNER).exists():
            users.create_superuser(OWNER, f"{OWNER}@example.com", OWNER)
        address = options["address"]
        self.stdout.write(f"The shop is at http://{address}/")
        self.stdout.write(f"The admin is at http://{address}/admin/")
        self.stdout.write(f"(name {OWNER}, password {OWNER}). Ctrl-C closes both.\n")
        # A session of its own: Ctrl-C is for the web server, and the cluster ends after what runs.
        cluster = subprocess.Popen([sys.executable, sys.argv[0], "qcluster"], start_new_session=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            call_command("runserver", address, use_reloader=False)
        finally:
            cluster.send_signal(signal.SIGTERM)
            cluster.wait()
