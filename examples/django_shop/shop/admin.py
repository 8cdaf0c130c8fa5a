"""The shop in the admin. Tasks, what waits, and schedules are there by themselves."""

from django.contrib import admin

from shop.models import Customer, Order, Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("name", "price", "stock")


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ("name", "email")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("id", "customer", "product", "quantity", "state", "confirmed", "invoiced")
    list_filter = ("state",)
