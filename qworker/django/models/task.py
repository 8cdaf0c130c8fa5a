"""task: ended tasks with their results.

Comes from:  the cluster, which saves a row when a task has ended.
Goes to:     the functions of ``tasks.py``, the admin, and other readers of results.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import models
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _
from picklefield import PickledObjectField

from qworker.django.labels import SUCCESS, index_name
from qworker.safe_repr import storable

# -- display: how a model's method is shown in a list --

Method = TypeVar("Method", bound=Callable[..., Any])


def shown_as(description: Any, boolean: bool = False) -> Callable[[Method], Method]:
    """Decorate a method. description: lazily translated text, its column's heading. boolean: show an icon."""

    def mark(method: Method) -> Method:
        method.__dict__["short_description"] = description
        if boolean:
            method.__dict__["boolean"] = True
        return method

    return mark


ID_LENGTH = 32
"""Length of a task's id, a UUID in hexadecimal."""
SHORT = 100
"""Characters of a result that a list shows."""


class Task(models.Model):
    """A task that has ended.

    args, kwargs and result are any picklable objects. started is when it was sent. func and hook are dotted
    paths.
    """

    id = models.CharField(
        max_length=ID_LENGTH,
        primary_key=True,
        editable=False,
        verbose_name=_("Task id"),
        help_text=_("32 hexadecimal digits."),
    )
    name = models.CharField(
        max_length=100,
        editable=False,
        verbose_name=_("Name"),
        help_text=_("A readable name, by which results can be found."),
    )
    func = models.CharField(
        max_length=256, verbose_name=_("Function"), help_text=_("Dotted path of the function.")
    )
    hook = models.CharField(
        max_length=256,
        null=True,
        verbose_name=_("Hook"),
        help_text=_("Dotted path of a function that is called with the finished task."),
    )
    args = PickledObjectField(null=True, protocol=-1, verbose_name=_("Arguments"))
    kwargs = PickledObjectField(null=True, protocol=-1, verbose_name=_("Keyword arguments"))
    result = PickledObjectField(
        null=True,
        protocol=-1,
        verbose_name=_("Result"),
        help_text=_("What the function returned, or the error."),
    )
    group = models.CharField(
        max_length=100,
        null=True,
        editable=False,
        verbose_name=_("Group"),
        help_text=_("Results of a group can be fetched together."),
    )
    cluster = models.CharField(
        max_length=100,
        null=True,
        blank=True,
        default=None,
        verbose_name=_("Cluster"),
        help_text=_("The cluster that ran the task."),
    )
    started = models.DateTimeField(
        editable=False, verbose_name=_("Started"), help_text=_("When the task was sent.")
    )
    stopped = models.DateTimeField(
        editable=False, verbose_name=_("Stopped"), help_text=_("When the task ended.")
    )
    success = models.BooleanField(
        default=True,
        editable=False,
        verbose_name=_("Success"),
        help_text=_("No if the task raised an exception or timed out."),
    )
    attempt_count = models.IntegerField(
        default=0, verbose_name=_("Attempts"), help_text=_("How many times the task was run.")
    )
    package = models.TextField(null=True, default=None, editable=False)
    """The signed package that was run, for resubmitting it: stored for failures, and for successes with
    options. "" if it could not be stored; None if the other fields are sufficient."""

    class Meta:
        verbose_name = _("Task")
        verbose_name_plural = _("Tasks")
        ordering = ["-stopped"]
        indexes = [
            models.Index(
                name=index_name(SUCCESS), fields=["group", "name", "func"], condition=models.Q(success=True)
            ),
            # The admin's lists are in the reverse order.
            models.Index(name=index_name("task_stopped"), fields=["success", "stopped", "id"]),
            models.Index(name=index_name("task_group"), fields=["group", "stopped"]),
            models.Index(name=index_name("task_name"), fields=["name"]),
            models.Index(name=index_name("task_func"), fields=["func", "stopped"]),
        ]

    def __str__(self) -> str:
        return str(self.name or self.id)

    @staticmethod
    def get_task(task_id: str) -> Task | None:
        """Return the task with this id or name; of several with a name, the one that stopped last. None if
        there is none."""
        return _found(Task.objects.all(), task_id)

    @staticmethod
    def get_result(task_id: str) -> Any:
        """Return the result of the task with this id or name; None if there is none."""
        task = _found(Task.objects.only("result"), task_id)
        return None if task is None else task.result

    @staticmethod
    def get_task_group(group_id: str, failures: bool = True) -> Any:
        """Return the tasks of a group, as a queryset. failures: include failed tasks."""
        return _of_group(group_id, failures)

    @staticmethod
    def get_result_group(group_id: str, failures: bool = False) -> Any:
        """Return the results of a group, as a queryset of values. failures: include those of failed tasks."""
        return _of_group(group_id, failures).values_list("result", flat=True)

    @staticmethod
    def get_group_count(group_id: str, failures: bool = False) -> int:
        """Return the number of tasks in a group. failures: count only failed ones."""
        tasks = _in_group(group_id)
        return int((tasks.filter(success=False) if failures else tasks).count())

    @staticmethod
    def delete_group(group_id: str, objects: bool = False) -> Any:
        """Remove a group from its tasks; return their number. objects: delete the tasks instead, and return
        what a queryset's delete() returns."""
        tasks = _in_group(group_id)
        return tasks.delete() if objects else tasks.update(group=None)

    def group_result(self, failures: bool = False) -> Any:
        """Like get_result_group() for the group of this task; None if it has none."""
        return self.get_result_group(self.group, failures) if self.group else None

    def group_count(self, failures: bool = False) -> int | None:
        """Like get_group_count() for the group of this task; None if it has none."""
        return self.get_group_count(self.group, failures) if self.group else None

    def group_delete(self, tasks: bool = False) -> Any:
        """Like delete_group() for the group of this task; None if it has none."""
        return self.delete_group(self.group, tasks) if self.group else None

    @shown_as(_("Time taken"))
    def time_taken(self) -> float:
        """Return the seconds from sending to the end."""
        return float((self.stopped - self.started).total_seconds())

    @property
    def short_result(self) -> str:
        """Return the result as text, cut at a hundred characters."""
        return str(Truncator(str(self.result)).chars(SHORT))


def _found(tasks: Any, task_id: str) -> Task | None:
    if storable(task_id) != task_id:  # no database accepts it
        return None
    if len(task_id) != ID_LENGTH:  # most tasks are looked up by their ids
        named: Task | None = tasks.filter(name=task_id).first()
        return named
    either = tasks.filter(models.Q(id=task_id) | models.Q(name=task_id))
    by_id = models.Case(models.When(id=task_id, then=0), default=1)
    found: Task | None = either.order_by(by_id, "-stopped").first()
    return found


def _of_group(group_id: str, failures: bool) -> Any:
    """Return a group's tasks in the order in which they ended, like the cache: for a chain, that of its
    links."""
    tasks = _in_group(group_id).order_by("stopped", "id")
    return tasks if failures else tasks.filter(success=True)


def _in_group(group_id: str) -> Any:
    tasks, text = Task.objects, str(group_id)
    return tasks.filter(group=group_id) if storable(text) == text else tasks.none()


class SuccessManager(models.Manager):
    """Selects tasks that succeeded. Not by ``success=True``, for which Django's SQL has no comparison with a
    value: SQLite would not use the index, and would read and sort the whole table."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(success__in=[True])


class Success(Task):
    """A task that succeeded."""

    objects = SuccessManager()

    class Meta:
        proxy = True
        verbose_name = _("Successful task")
        verbose_name_plural = _("Successful tasks")
        ordering = ["-stopped"]


class FailureManager(models.Manager):
    """Selects tasks that failed; see SuccessManager."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(success__in=[False])


class Failure(Task):
    """A task that failed."""

    objects = FailureManager()

    class Meta:
        proxy = True
        verbose_name = _("Failed task")
        verbose_name_plural = _("Failed tasks")
        ordering = ["-stopped"]


class Part(models.Model):
    """An ended call of an iterable whose other calls have not all ended or, if id and whole are the same, the
    iterable itself. Parts are not tasks: lists and ``save_limit`` ignore them. A part also locks a schedule's
    name: see ``tasks.schedule()``.

    - whole: the id of the iterable. started: when the call was sent. changed: when the row was written.
    - row: the call as packed by ``task_rows``; for the iterable, its signed package without arguments.
    - needed, ended: for the iterable, how many calls it has, and how many have ended; then COLLECTED.
    """

    COLLECTED = -1

    id = models.CharField(max_length=ID_LENGTH, primary_key=True)
    whole = models.CharField(max_length=ID_LENGTH)
    started = models.DateTimeField()
    changed = models.DateTimeField()
    row = models.BinaryField()
    needed = models.IntegerField(null=True)
    ended = models.IntegerField(null=True)

    class Meta:
        db_table = "qworker_part"
        default_permissions = ()
        indexes = [
            models.Index(name="qworker_part_whole", fields=["whole", "changed"]),
            models.Index(name="qworker_part_changed", fields=["needed", "changed"]),
        ]

    def __str__(self) -> str:
        return str(self.id)
