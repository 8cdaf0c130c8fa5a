"""The pages. They answer at once: what takes time is a task."""

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from qworker.django.models import Schedule
from qworker.django.status import Stat
from qworker.django.tasks import Task, async_chain, async_iter, async_task, fetch, fetch_group, queue_size
from shop.models import Customer, Order, Product

SHOWN = 12
"""Tasks and orders of a list."""


def answer(request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
    """The page *name*; only what changes of it, where the page itself asks for that each second."""
    part = "live" in request.GET
    return render(request, f"shop/{'live' if part else 'pages'}/{name}.html", context)


def products(request: HttpRequest) -> HttpResponse:
    """What there is, with a form to order it, and the last orders."""
    context = {
        "products": Product.objects.order_by("name"),
        "customers": Customer.objects.order_by("name"),
        "orders": Order.objects.select_related("customer", "product").order_by("-pk")[:SHOWN],
    }
    return answer(request, "products", context)


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    """Keep the order, and leave mail, invoice and parcel to the cluster.

    The tasks are in the same database as the order: either all are there or none.
    """
    quantity = request.POST.get("quantity", "")
    if not quantity.isdecimal() or not 1 <= int(quantity) <= 1000:
        messages.error(request, "How many shall it be? From 1 to 1000.")
        return redirect("products")
    with transaction.atomic():
        order = Order.objects.create(
            customer=get_object_or_404(Customer, pk=request.POST.get("customer")),
            product=get_object_or_404(Product, pk=request.POST.get("product")),
            quantity=int(quantity),
        )
        async_task("shop.tasks.send_confirmation", order.pk, hook="shop.tasks.note_confirmation")
        async_task("shop.tasks.make_invoice", order.pk, hook="shop.tasks.mail_invoice", group="invoices")
        steps: list[Any] = [(f"shop.tasks.{step}", (order.pk,)) for step in Order.STEPS]
        async_chain(steps, group=f"order {order.pk}")
    return redirect("order", order.pk)


def order(request: HttpRequest, order_id: int) -> HttpResponse:
    """How far an order is, and what its tasks have returned."""
    found = get_object_or_404(Order.objects.select_related("customer", "product"), pk=order_id)
    ended = {task.func.rpartition(".")[2]: task for task in fetch_group(f"order {order_id}") or ()}
    steps = [{"name": step, "task": ended.get(step)} for step in Order.STEPS]
    failed = next((task for task in ended.values() if not task.success), None)
    is_done = failed or len(ended) == len(steps)
    context = {
        "order": found,
        "steps": steps,
        "failed": failed,
        "why": failed and failed.result.partition(" : ")[0],
        "settled": bool(is_done and found.confirmed and found.invoiced),
    }
    return answer(request, "order", context)


@require_POST
def start_values(request: HttpRequest) -> HttpResponse:
    """Have the stock of each product valued, side by side; go where the answer will be."""
    arguments = Product.objects.order_by("name").values_list("pk", "price")
    return redirect("values", async_iter("shop.tasks.stock_value", list(arguments)))


def values(request: HttpRequest, task_id: str) -> HttpResponse:
    """What the stock of each product is worth, once all are valued."""
    task = fetch(task_id)
    context: dict[str, Any] = {"task": task, "settled": task is not None}
    if task is not None:
        # The results are in the order in which they came, and the arguments with them.
        names = dict(Product.objects.values_list("pk", "name"))
        found = zip((names.get(args[0], "?") for args in task.args), task.result, strict=True)
        context |= {"values": sorted(found), "total": sum(task.result)}
    return answer(request, "values", context)


def activity(request: HttpRequest) -> HttpResponse:
    """What the clusters do: who runs, what waits, what has ended, and what comes again."""
    tasks = Task.objects.order_by("-stopped")[:SHOWN]
    context = {
        "clusters": Stat.get_all(),
        "waiting": queue_size(),
        "successes": Task.objects.filter(success=True).count(),
        "failures": Task.objects.filter(success=False).count(),
        "tasks": [(task, task.short_result.partition(" : Traceback")[0]) for task in tasks],
        "schedules": Schedule.objects.order_by("next_run"),
    }
    return answer(request, "activity", context)
