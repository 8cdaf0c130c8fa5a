"""Pages of the Django test projects: each calls a task; one of them fails afterwards.

Comes from:  ROOT_URLCONF. Goes to: the queue, within the transaction of the request.
"""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.http import HttpRequest, HttpResponse
from django.urls import path

from qworker.django.tasks import async_task


def order(_request: HttpRequest, key: str) -> HttpResponse:
    Group.objects.create(name=key)
    return HttpResponse(async_task("tests.acceptance.django_tasks.work", key))


def fail(request: HttpRequest, key: str) -> HttpResponse:
    order(request, key)
    raise ValueError("a page that fails")


urlpatterns = [path("order/<key>/", order), path("fail/<key>/", fail)]
