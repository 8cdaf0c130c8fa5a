"""schedule: calls at set times, once or periodically.

Comes from:  the admin, and the project's code.
Goes to:     the cluster, which sends due calls; ``recurrence``, which computes the next time.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo
from keyword import iskeyword
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from qworker.django.conf import conf
from qworker.django.labels import index_name
from qworker.django.models import literals, recurrence
from qworker.django.models.task import Task, shown_as
from qworker.errors import InvalidSchedule


def validate_cron(value: str) -> None:
    """Raise ValidationError for an invalid crontab."""
    try:
        recurrence.crontab_of(value)
    except InvalidSchedule as error:
        raise ValidationError(str(error)) from error


def validate_kwarg(value: str) -> None:
    """Raise ValidationError if *value* cannot be the name of an argument."""
    if not value.isidentifier() or iskeyword(value):
        raise ValidationError(_("%(value)s cannot be the name of an argument."), params={"value": value})


class Schedule(models.Model):
    """A call at set times.

    repeats: how many more times it is made; 0 pauses it, a negative number is no limit. args and kwargs are
    literals as text. task is the id of the task that was sent last.
    """

    ONCE, MINUTES, HOURLY, DAILY = recurrence.ONCE, recurrence.MINUTES, recurrence.HOURLY, recurrence.DAILY
    WEEKLY, BIWEEKLY, MONTHLY = recurrence.WEEKLY, recurrence.BIWEEKLY, recurrence.MONTHLY
    BIMONTHLY, QUARTERLY = recurrence.BIMONTHLY, recurrence.QUARTERLY
    YEARLY, CRON = recurrence.YEARLY, recurrence.CRON
    TYPE = (
        (ONCE, _("Once")),
        (MINUTES, _("Minutes")),
        (HOURLY, _("Hourly")),
        (DAILY, _("Daily")),
        (WEEKLY, _("Weekly")),
        (BIWEEKLY, _("Biweekly")),
        (MONTHLY, _("Monthly")),
        (BIMONTHLY, _("Bimonthly")),
        (QUARTERLY, _("Quarterly")),
        (YEARLY, _("Yearly")),
        (CRON, _("Cron")),
    )

    name = models.CharField(
        max_length=100,
        null=True,
        blank=True,
        verbose_name=_("Name"),
        help_text=_("The group of the scheduled tasks."),
    )
    func = models.CharField(
        max_length=256, verbose_name=_("Function"), help_text=_("Dotted path, such as module.tasks.function")
    )
    hook = models.CharField(
        max_length=256,
        null=True,
        blank=True,
        verbose_name=_("Hook"),
        help_text=_("Dotted path of a function that is called with each finished task"),
    )
    args = models.TextField(
        null=True, blank=True, verbose_name=_("Arguments"), help_text=_("For example, 1, 2, 'John'")
    )
    kwargs = models.TextField(
        null=True,
        blank=True,
        verbose_name=_("Keyword arguments"),
        help_text=_("For example, x=1, name='John'"),
    )
    schedule_type = models.CharField(
        max_length=2, choices=TYPE, default=ONCE, verbose_name=_("Schedule type"), help_text=_("How often")
    )
    minutes = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        verbose_name=_("Minutes"),
        help_text=_("Minutes between runs, for the type Minutes; 1 if empty"),
    )
    repeats = models.IntegerField(
        default=-1, verbose_name=_("Repeats"), help_text=_("How many more times; 0 = paused, -1 = forever")
    )
    next_run = models.DateTimeField(
        null=True,
        default=timezone.now,
        verbose_name=_("Next run"),
        help_text=_("When the schedule is due next"),
    )
    cron = models.CharField(
        max_length=100,
        null=True,
        blank=True,
        validators=[validate_cron],
        verbose_name=_("Cron"),
        help_text=_("Five fields, such as 0 4 * * mon-fri, for the type Cron"),
    )
    task = models.CharField(max_length=100, null=True, editable=False, verbose_name=_("Last task"))
    cluster = models.CharField(
        max_length=100,
        null=True,
        blank=True,
        default=None,
        verbose_name=_("Cluster"),
        help_text=_("The cluster that runs the tasks; the default cluster if empty"),
    )
    intended_date_kwarg = models.CharField(
        max_length=100,
        null=True,
        blank=True,
        validators=[validate_kwarg],
        verbose_name=_("Argument for the intended time"),
        help_text=_("Name of a keyword argument that receives the scheduled time"),
    )

    class Meta:
        verbose_name = _("Scheduled task")
        verbose_name_plural = _("Scheduled tasks")
        ordering = ["next_run"]
        indexes = [models.Index(name=index_name("schedule_next_run"), fields=["next_run"])]
        permissions = [("schedule_any_callable", _("Can schedule any function that can be imported"))]

    def __str__(self) -> str:
        return str(self.func)

    def parse_args(self) -> tuple[Any, ...]:
        """Return the positional arguments. Raises InvalidSchedule for invalid text."""
        return literals.positional(self.args)

    def parse_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments. Raises InvalidSchedule for invalid text."""
        return literals.keywords(self.kwargs)

    def calculate_next_run(self, next_run: datetime | None = None) -> datetime:
        """Return when it is due after *next_run*, by default its own ``next_run``.

        Times are local to its cluster's time zone. The result is aware in UTC if USE_TZ is set, else naive in
        the project's time zone. Raises InvalidSchedule for an invalid crontab.
        """
        due = next_run or self.next_run or timezone.now()
        return self._reckoned(recurrence.next_run, due)

    def first_run_after(self, due: datetime, now: datetime) -> datetime:
        """Return when it is first due after *now*, if it was due at *due*; *due* itself if that is later.
        Like calculate_next_run() otherwise."""
        return self._reckoned(recurrence.first_after, due, now)

    def _reckoned(self, reckon: Callable[..., datetime], *instants: datetime) -> datetime:
        """Return *reckon* of *instants* in the cluster's time zone."""
        named, own = conf.of(self.cluster or None).time_zone, timezone.get_default_timezone()
        zone: tzinfo | None = own if named == settings.TIME_ZONE else ZoneInfo(named)
        elsewhere = not settings.USE_TZ and zone is not own
        if elsewhere:
            instants = tuple(timezone.make_aware(each, own) for each in instants)
        elif not settings.USE_TZ:
            zone = None
        found = reckon(self.schedule_type, *instants, zone, minutes=self.minutes, cron=self.cron)
        return timezone.make_naive(found, own) if elsewhere else found

    def clean(self) -> None:
        """Raise ValidationError for invalid arguments, and for the type Cron without a crontab."""
        super().clean()
        mistakes: dict[str, Any] = {}
        readers: dict[str, Callable[[], Any]] = {"args": self.parse_args, "kwargs": self.parse_kwargs}
        for field, read in readers.items():
            try:
                read()
            except InvalidSchedule as error:
                mistakes[field] = str(error)
        if self.schedule_type == self.CRON and not self.cron:
            mistakes["cron"] = _("The type Cron needs a crontab.")
        if mistakes:
            raise ValidationError(mistakes)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save it. For a new one of the type Cron, ``next_run`` is set by the crontab."""
        if self._state.adding and self.schedule_type == self.CRON and self.cron:
            self.next_run = self.calculate_next_run(timezone.now())
        super().save(*args, **kwargs)

    @shown_as(_("Success"), boolean=True)
    def success(self) -> bool | None:
        """Return whether the last task succeeded; None if there is none."""
        task = self._last_task()
        return None if task is None else bool(task.success)

    @shown_as(_("Last run"))
    def last_run(self) -> str | None:
        """Return a link to the last task in the admin, or only its name without the admin; None if there is
        no task."""
        task = self._last_task()
        return None if task is None else link_to(task.pk, task.name, task.success)

    def _last_task(self) -> Task | None:
        if not self.task:
            return None
        found: Task | None = Task.objects.filter(id=self.task).only("name", "success").first()
        return found


def link_to(task_id: str, name: str, success: bool, site: str | None = None) -> str:
    """Return an HTML link to a task in the admin, its name in brackets; without the admin, only the name.

    site: the name of the admin site; None for the default one.
    """
    page = f"admin:{Task._meta.app_label}_{'success' if success else 'failure'}_change"
    try:
        return str(
            format_html('<a href="{}">[{}]</a>', reverse(page, args=(task_id,), current_app=site), name)
        )
    except NoReverseMatch:
        return str(format_html("[{}]", name))
