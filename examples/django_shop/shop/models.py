"""What the shop has, who buys, and what they have bought."""

from decimal import Decimal

from django.db import models


class Product(models.Model):
    """Something to buy. stock: pieces in the shop."""

    name = models.CharField(max_length=80)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.name


class Customer(models.Model):
    """Somebody who buys."""

    name = models.CharField(max_length=80)
    email = models.EmailField()

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    """So many pieces of a product for a customer.

    confirmed: when the mail about it was sent. invoiced: when the invoice was.
    """

    class State(models.TextChoices):
        PLACED = "placed"
        RESERVED = "reserved"
        PACKED = "packed"
        SHIPPED = "shipped"

    STEPS = ("reserve", "pack", "ship")
    """The tasks that move an order on, one after another."""

    customer = models.ForeignKey(Customer, models.CASCADE)
    product = models.ForeignKey(Product, models.CASCADE)
    quantity = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=8, choices=State.choices, default=State.PLACED)
    placed = models.DateTimeField(auto_now_add=True)
    confirmed = models.DateTimeField(null=True, blank=True)
    invoiced = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"order {self.pk}"

    @property
    def total(self) -> Decimal:
        return self.product.price * self.quantity
