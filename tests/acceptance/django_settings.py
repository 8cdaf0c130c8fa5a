"""The settings of the Django projects that django_site.py creates, from the JSON in $DJANGO_SITE.

Comes from:  DJANGO_SETTINGS_MODULE in the processes of a DjangoSite.
Goes to:     Django.
"""

from __future__ import annotations

import json
import os

from tests.support.django_databases import use_pymysql

_given = json.loads(os.environ["DJANGO_SITE"])

SECRET_KEY = "of tests of faults, and of nothing else; as long as Django wants keys to be"
USE_TZ = True
TIME_ZONE = "Europe/Amsterdam"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.acceptance.django_pages"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "qworker.django"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SILENCED_SYSTEM_CHECKS = ["models.W037", "mysql.W002"]

globals().update(_given)

if any(each["ENGINE"].endswith("mysql") for each in _given["DATABASES"].values()):
    use_pymysql()
