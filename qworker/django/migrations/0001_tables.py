"""The tables of tasks and schedules as in django-q2 1.11 and, with its label, its queue.

Comes from:  Django's command migrate.
Goes to:     the database.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

import django.utils.timezone
from django.db import migrations, models
from picklefield.fields import PickledObjectField

from qworker.django.labels import PREDECESSOR, SUCCESS, index_name, label
from qworker.django.models.schedule import validate_cron, validate_kwarg
from qworker.django.tables import operations as repeatable
from qworker.django.tables.predecessor import MIGRATIONS

LABEL = label()
ADOPTING = LABEL == PREDECESSOR
TYPES = [
    ("O", "Once"),
    ("I", "Minutes"),
    ("H", "Hourly"),
    ("D", "Daily"),
    ("W", "Weekly"),
    ("BW", "Biweekly"),
    ("M", "Monthly"),
    ("BM", "Bimonthly"),
    ("Q", "Quarterly"),
    ("Y", "Yearly"),
    ("C", "Cron"),
]


OLD_QUEUE: list[Any] = [
    repeatable.CreateModel(
        name="OrmQ",
        fields=[
            ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
            ("key", models.CharField(max_length=100)),
            ("payload", models.TextField()),
            ("lock", models.DateTimeField(null=True)),
        ],
        options={"verbose_name": "Queued task", "verbose_name_plural": "Queued tasks"},
    )
]


class Migration(migrations.Migration):
    initial = True
    replaces = [(LABEL, name) for name in MIGRATIONS] if ADOPTING else []
    dependencies: list[Any] = []
    operations: list[Any] = [
        repeatable.CreateModel(
            name="Schedule",
            fields=[
                (
                    "id",
                    models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                (
                    "name",
                    models.CharField(
                        blank=True,
                        help_text="The group of the scheduled tasks.",
                        max_length=100,
                        null=True,
                        verbose_name="Name",
                    ),
                ),
                (
                    "func",
                    models.CharField(
                        help_text="Dotted path, such as module.tasks.function",
                        max_length=256,
                        verbose_name="Function",
                    ),
                ),
                (
                    "hook",
                    models.CharField(
                        blank=True,
                        help_text="Dotted path of a function that is called with each finished task",
                        max_length=256,
                        null=True,
                        verbose_name="Hook",
                    ),
                ),
                (
                    "args",
                    models.TextField(
                        blank=True, help_text="For example, 1, 2, 'John'", null=True, verbose_name="Arguments"
                    ),
                ),
                (
                    "kwargs",
                    models.TextField(
                        blank=True,
                        help_text="For example, x=1, name='John'",
                        null=True,
                        verbose_name="Keyword arguments",
                    ),
                ),
                (
                    "schedule_type",
                    models.CharField(
                        choices=TYPES,
                        default="O",
                        help_text="How often",
                        max_length=2,
                        verbose_name="Schedule type",
                    ),
                ),
                (
                    "minutes",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="Minutes between runs, for the type Minutes; 1 if empty",
                        null=True,
                        verbose_name="Minutes",
                    ),
                ),
                (
                    "repeats",
                    models.IntegerField(
                        default=-1,
                        help_text="How many more times; 0 = paused, -1 = forever",
                        verbose_name="Repeats",
                    ),
                ),
                (
                    "next_run",
                    models.DateTimeField(
                        default=django.utils.timezone.now,
                        help_text="When the schedule is due next",
                        null=True,
                        verbose_name="Next run",
                    ),
                ),
                (
                    "cron",
                    models.CharField(
                        blank=True,
                        help_text="Five fields, such as 0 4 * * mon-fri, for the type Cron",
                        max_length=100,
                        null=True,
                        validators=[validate_cron],
                        verbose_name="Cron",
                    ),
                ),
                (
                    "task",
                    models.CharField(editable=False, max_length=100, null=True, verbose_name="Last task"),
                ),
                (
                    "cluster",
                    models.CharField(
                        blank=True,
                        default=None,
                        help_text="The cluster that runs the tasks; the default cluster if empty",
                        max_length=100,
                        null=True,
                        verbose_name="Cluster",
                    ),
                ),
                (
                    "intended_date_kwarg",
                    models.CharField(
                        blank=True,
                        help_text="Name of a keyword argument that receives the scheduled time",
                        max_length=100,
                        null=True,
                        validators=[validate_kwarg],
                        verbose_name="Argument for the intended time",
                    ),
                ),
            ],
            options={
                "verbose_name": "Scheduled task",
                "verbose_name_plural": "Scheduled tasks",
                "ordering": ["next_run"],
                "permissions": [("schedule_any_callable", "Can schedule any function that can be imported")],
            },
        ),
        repeatable.CreateModel(
            name="Task",
            fields=[
                (
                    "id",
                    models.CharField(
                        editable=False,
                        help_text="32 hexadecimal digits.",
                        max_length=32,
                        primary_key=True,
                        serialize=False,
                        verbose_name="Task id",
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        editable=False,
                        help_text="A readable name, by which results can be found.",
                        max_length=100,
                        verbose_name="Name",
                    ),
                ),
                (
                    "func",
                    models.CharField(
                        help_text="Dotted path of the function.", max_length=256, verbose_name="Function"
                    ),
                ),
                (
                    "hook",
                    models.CharField(
                        help_text="Dotted path of a function that is called with the finished task.",
                        max_length=256,
                        null=True,
                        verbose_name="Hook",
                    ),
                ),
                (
                    "args",
                    PickledObjectField(editable=False, null=True, protocol=-1, verbose_name="Arguments"),
                ),
                (
                    "kwargs",
                    PickledObjectField(
                        editable=False, null=True, protocol=-1, verbose_name="Keyword arguments"
                    ),
                ),
                (
                    "result",
                    PickledObjectField(
                        editable=False,
                        help_text="What the function returned, or the error.",
                        null=True,
                        protocol=-1,
                        verbose_name="Result",
                    ),
                ),
                (
                    "group",
                    models.CharField(
                        editable=False,
                        help_text="Results of a group can be fetched together.",
                        max_length=100,
                        null=True,
                        verbose_name="Group",
                    ),
                ),
                (
                    "cluster",
                    models.CharField(
                        blank=True,
                        default=None,
                        help_text="The cluster that ran the task.",
                        max_length=100,
                        null=True,
                        verbose_name="Cluster",
                    ),
                ),
                (
                    "started",
                    models.DateTimeField(
                        editable=False, help_text="When the task was sent.", verbose_name="Started"
                    ),
                ),
                (
                    "stopped",
                    models.DateTimeField(
                        editable=False, help_text="When the task ended.", verbose_name="Stopped"
                    ),
                ),
                (
                    "success",
                    models.BooleanField(
                        default=True,
                        editable=False,
                        help_text="No if the task raised an exception or timed out.",
                        verbose_name="Success",
                    ),
                ),
                (
                    "attempt_count",
                    models.IntegerField(
                        default=0, help_text="How many times the task was run.", verbose_name="Attempts"
                    ),
                ),
            ],
            options={"verbose_name": "Task", "verbose_name_plural": "Tasks", "ordering": ["-stopped"]},
        ),
        repeatable.AddIndex(
            model_name="task",
            index=models.Index(
                condition=models.Q(("success", True)),
                fields=["group", "name", "func"],
                name=index_name(SUCCESS),
            ),
        ),
        repeatable.CreateModel(
            name="Failure",
            fields=[],
            options={
                "verbose_name": "Failed task",
                "verbose_name_plural": "Failed tasks",
                "ordering": ["-stopped"],
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=(f"{LABEL}.task",),
        ),
        repeatable.CreateModel(
            name="Success",
            fields=[],
            options={
                "verbose_name": "Successful task",
                "verbose_name_plural": "Successful tasks",
                "ordering": ["-stopped"],
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=(f"{LABEL}.task",),
        ),
        *(OLD_QUEUE if ADOPTING else []),
    ]
