"""The pages."""

from django.contrib import admin
from django.urls import path
from shop import views

urlpatterns = [
    path("", views.products, name="products"),
    path("orders/", views.place_order, name="place-order"),
    path("orders/<int:order_id>/", views.order, name="order"),
    path("values/", views.start_values, name="start-values"),
    path("values/<str:task_id>/", views.values, name="values"),
    path("activity/", views.activity, name="activity"),
    path("admin/", admin.site.urls),
]
