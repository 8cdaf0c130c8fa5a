"""What the cluster does for the shop. These are plain functions: call them in a test as they stand."""

import time
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone

from shop.models import Order, Product

FROM = "shop@example.com"
LOW = 5
FULL = 20


class SoldOut(Exception):
    """There are fewer pieces than somebody wants."""


# -- mails, with hooks --


def send_confirmation(order_id: int) -> int:
    """Tell the customer that the order has come."""
    order = Order.objects.select_related("customer", "product").get(pk=order_id)
    text = f"Dear {order.customer},\nyou have ordered {order.quantity} × {order.product}."
    return send_mail(f"Your {order}", text, FROM, [order.customer.email])


def note_confirmation(task: Any) -> None:
    """The hook of send_confirmation: it is called with the task, whether that went well or not."""
    if task.success:
        Order.objects.filter(pk=task.args[0]).update(confirmed=task.stopped)


def make_invoice(order_id: int) -> str:
    """Return the text of an invoice."""
    order = Order.objects.select_related("customer", "product").get(pk=order_id)
    line = f"{order.quantity} × {order.product} at {order.product.price}"
    return f"Invoice {order.pk} for {order.customer}\n{line}\nTotal: {order.total}"


def mail_invoice(task: Any) -> None:
    """The hook of make_invoice: mails what it has returned."""
    if not task.success:
        send_mail("An invoice failed", task.result, FROM, ["owner@example.com"])
        return
    order = Order.objects.select_related("customer").get(pk=task.args[0])
    send_mail(f"Invoice {order.pk}", task.result, FROM, [order.customer.email])
    Order.objects.filter(pk=order.pk).update(invoiced=timezone.now())


# -- a chain: each is called when the one before has succeeded --


def reserve(order_id: int) -> int:
    """Take the pieces from the stock. Raises SoldOut, and then nothing is packed."""
    with transaction.atomic():
        order = Order.objects.select_related("product").get(pk=order_id)
        enough = Product.objects.filter(pk=order.product_id, stock__gte=order.quantity)
        if not enough.update(stock=F("stock") - order.quantity):
            raise SoldOut(f"{order} wants {order.quantity} × {order.product}")
        Order.objects.filter(pk=order_id).update(state=Order.State.RESERVED)
    return order.quantity


def pack(order_id: int) -> str:
    """Put the pieces into a box, which takes a while."""
    time.sleep(settings.PACE_SECONDS)
    Order.objects.filter(pk=order_id).update(state=Order.State.PACKED)
    return f"box {order_id}"


def ship(order_id: int) -> str:
    """Send the box away, which takes a while, too."""
    time.sleep(settings.PACE_SECONDS)
    Order.objects.filter(pk=order_id).update(state=Order.State.SHIPPED)
    return f"parcel {order_id}"


# -- called by schedules --


def refill() -> list[str]:
    """Order what there is little of; return what that was."""
    low = list(Product.objects.filter(stock__lt=LOW).order_by("name"))
    Product.objects.filter(pk__in=[product.pk for product in low]).update(stock=FULL)
    return [product.name for product in low]


def report() -> dict[str, int]:
    """Return how many orders are in each state."""
    states = Order.objects.values_list("state", flat=True)
    return {state: list(states).count(state) for state in sorted(set(states))}


# -- for each of many --


def stock_value(product_id: int, price: Decimal) -> Decimal:
    """Return what the pieces of a product are worth at *price*."""
    time.sleep(settings.PACE_SECONDS)
    pieces = Product.objects.filter(pk=product_id).aggregate(pieces=Sum("stock"))["pieces"]
    return price * pieces
