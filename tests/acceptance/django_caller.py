"""A process of a Django project that runs code for a test: each line of JSON is code, each line of output
its answer.

Comes from:  django_site.py, over standard input.
Goes to:     whatever the code calls; standard output.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any


def main() -> None:
    import django

    django.setup()
    from qworker.django.execution.connections import close_all

    answers, sys.stdout = sys.stdout, sys.stderr
    names: dict[str, Any] = {}
    exec("from qworker.django.tasks import *\nfrom qworker.django.models import *", names)
    for line in sys.stdin:
        names["answer"] = None
        try:
            exec(json.loads(line), names)
            reply = {"answer": names["answer"]}
        except BaseException:  # noqa: BLE001 - reported to the test
            reply = {"error": traceback.format_exc()}
        close_all()  # tests count connections and cut them
        answers.write(json.dumps(reply, default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
