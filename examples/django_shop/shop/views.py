"""The pages. They answer at once: what takes time is a task."""

from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from qworker.django.tasks import async_chain, async_iter, async_task, fetch
from shop.models import Customer, Order, Product


def products(request: HttpRequest) -> HttpResponse:
    """What there is, with a form to order it."""
    context = {"products": Product.objects.order_by("name"), "customers": Customer.objects.order_by("name")}
    return render(request, "shop/products.html", context)


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    """Keep the order, and leave mail, invoice and parcel to the cluster.

    The tasks are in the same database as the order: either all are there or none.
    """
    with transaction.atomic():
        order = Order.objects.create(
            customer=get_object_or_404(Customer, pk=request.POST["customer"]),
            product=get_object_or_404(Product, pk=request.POST["product"]),
            quantity=int(request.POST["quantity"]),
        )
        async_task("shop.tasks.send_confirmation", order.pk, hook="shop.tasks.note_confirmation")
        async_task("shop.tasks.make_invoice", order.pk, hook="shop.tasks.mail_invoice", group="invoices")
        steps: list[Any] = [(f"shop.tasks.{step}", (order.pk,)) for step in ("reserve", "pack", "ship")]
        async_chain(steps, group=f"order {order.pk}")
    return redirect("order", order.pk)


def order(request: HttpRequest, order_id: int) -> HttpResponse:
    """How far an order is."""
    return render(request, "shop/order.html", {"order": get_object_or_404(Order, pk=order_id)})


@require_POST
def start_values(request: HttpRequest) -> HttpResponse:
    """Have the stock of each product valued, side by side; go where the answer will be."""
    arguments = Product.objects.order_by("name").values_list("pk", "price")
    return redirect("values", async_iter("shop.tasks.stock_value", list(arguments)))


def values(request: HttpRequest, task_id: str) -> JsonResponse:
    """The values, in the order of the products' names; 202 until all are there."""
    task = fetch(task_id)
    if task is None:
        return JsonResponse({"ready": False}, status=202)
    return JsonResponse({"ready": True, "values": task.result, "total": sum(task.result)})
