"""What the shop begins with."""

import shutil
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from qworker.django.models import Schedule
from qworker.django.tasks import Task, schedule
from shop.models import Customer, Order, Product

PRODUCTS = {"Teapot": ("24.00", 12), "Cup": ("4.50", 60), "Kettle": ("39.90", 3), "Spoon": ("1.20", 200)}
CUSTOMERS = ("Ada", "Grace", "Edsger")


def make_data() -> None:
    """Forget what was there, and make products, customers and schedules."""
    shutil.rmtree(settings.EMAIL_FILE_PATH, ignore_errors=True)
    for model in (Order, Product, Customer, Schedule, Task):
        model.objects.all().delete()
    Product.objects.bulk_create(
        Product(name=name, price=price, stock=stock) for name, (price, stock) in PRODUCTS.items()
    )
    Customer.objects.bulk_create(
        Customer(name=name, email=f"{name.lower()}@example.com") for name in CUSTOMERS
    )
    # It was due last night, and no cluster ran: it is called at once, and then every night.
    three = timezone.now().replace(hour=3, minute=0, second=0, microsecond=0)
    last_night = three if three < timezone.now() else three - timedelta(days=1)
    schedule("shop.tasks.report", name="nightly report", schedule_type=Schedule.DAILY, next_run=last_night)
    schedule("shop.tasks.refill", name="refill", schedule_type=Schedule.MINUTES, minutes=30)
