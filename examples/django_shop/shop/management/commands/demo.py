"""demo: makes data, starts a cluster, orders through the pages, and tells what came of it."""

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.test import Client
from django.urls import resolve, reverse

from qworker.django.cluster import Cluster
from qworker.django.models import Schedule
from qworker.django.tasks import Task, fetch, fetch_group
from shop.data import make_data
from shop.models import Customer, Order, Product

ORDERS = (
    *(("Ada", "Teapot", 1), ("Ada", "Cup", 4), ("Grace", "Kettle", 1), ("Grace", "Spoon", 12)),
    *(("Edsger", "Cup", 2), ("Edsger", "Kettle", 30)),
)
SOLD_OUT = 1
"""Of these: nobody has thirty kettles."""
PATIENCE_SECONDS = 25.0


class Command(BaseCommand):
    """See the module."""

    help = "Makes data, starts a cluster, orders through the pages, and tells what came of it."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        make_data()
        cluster = Cluster()
        cluster.start()
        try:
            valuing = browse()
            await_that(lambda: orders_done() and fetch(valuing) and schedules_done())
            self.tell(fetch(valuing).result)
        finally:
            cluster.stop()
        self.stdout.write("The cluster has stopped.")

    def tell(self, values: list[Decimal]) -> None:
        """Print what has happened. values: of the stock of each product."""
        for order in Order.objects.select_related("customer", "product").order_by("pk"):
            mails = f"confirmed {bool(order.confirmed)}, invoice {bool(order.invoiced)}"
            what = f"{order.quantity:>3} × {order.product.name}"
            self.stdout.write(f"{order}: {order.customer.name:<7}{what:<14}{order.state:<9}{mails}")
        for task in Task.objects.filter(success=False):
            self.stdout.write(f"failed: {task.func}: {task.result.partition(' : ')[0]}")
        shipped = fetch_group("order 1")
        self.stdout.write(f"chain of order 1: {[task.result for task in shipped.order_by('started')]}")
        self.stdout.write(f"stock: {[str(value) for value in values]}, together {sum(values)}")
        for each in Schedule.objects.order_by("name"):
            last = Task.objects.filter(group=each.name).latest("stopped")
            self.stdout.write(f"schedule {each.name}: {last.result}; next {each.next_run:%H:%M}")
        # Processes may write into one file: Django names it by the second and an address in memory.
        texts = (path.read_bytes() for path in settings.EMAIL_FILE_PATH.iterdir())
        mails = sum(text.count(b"\nSubject: ") for text in texts)
        self.stdout.write(f"mails: {mails}")


def browse() -> str:
    """Order as visitors do, and have the stock valued; return the id of the task that does that."""
    client = Client(SERVER_NAME="localhost")
    for customer, product, quantity in ORDERS:
        form = {
            "customer": Customer.objects.get(name=customer).pk,
            "product": Product.objects.get(name=product).pk,
            "quantity": quantity,
        }
        placed = client.post(reverse("place-order"), form)
        if client.get(placed["Location"]).status_code != 200:
            raise CommandError(f"the page of the order {form} is missing")
    valuing = client.post(reverse("start-values"))["Location"]
    return resolve(valuing).kwargs["task_id"]


def orders_done() -> bool:
    """Whether all mails are sent, and all parcels that can be."""
    waiting = Order.objects.filter(confirmed=None) | Order.objects.filter(invoiced=None)
    shipped = Order.objects.filter(state=Order.State.SHIPPED).count()
    return not waiting.exists() and shipped == len(ORDERS) - SOLD_OUT and failed() == SOLD_OUT


def failed() -> int:
    """How many tasks have failed."""
    return Task.objects.filter(success=False).count()


def schedules_done() -> bool:
    """Whether each schedule has called its task."""
    names = list(Schedule.objects.values_list("name", flat=True))
    return all(Task.objects.filter(group=name).exists() for name in names)


def await_that(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds. Raises CommandError when that takes too long."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise CommandError(f"not done after {PATIENCE_SECONDS:.0f} s; is another cluster running?")
        time.sleep(0.1)
