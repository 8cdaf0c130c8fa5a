"""Reference: the page of all settings, generated from their declarations.

Comes from:  `settings.SETTINGS`, and Celery's old names in `compat.OLD_NAMES`.
Goes to:     docs/reference/settings.md, with `python -m qworker.conf.reference > docs/reference/settings.md`.
Thread:      none; run manually, and by a test that compares the committed page.
"""

from typing import Any

from qworker.conf.compat import OLD_NAMES
from qworker.conf.setting import Setting
from qworker.conf.settings import SETTINGS

_HEAD = """# Settings

<!-- Made from the code by `python -m qworker.conf.reference`; change the declarations, not this page. -->

Setting names are Celery's if Celery has the setting. Each of these sources overrides the ones before:

1. the default,
2. the table `[tool.qworker]` of `pyproject.toml` in the working directory,
3. code: `QWorker("proj", name=value)`, `app.config_from_object(…)`, `app.conf.update(…)`; later
   calls override earlier ones,
4. the environment: `QWORKER_` and the name in upper case (`QWORKER_BROKER_URL`),
5. the command line.

Mappings, such as `beat_schedule`, are replaced as a whole, not merged.

`qworker config show` prints every value with its source, and `qworker config check` reports all
problems at once. Durations are seconds, `timedelta`, or text such as `"10s"` and `"1h30m"`; sizes are
numbers or text such as `"16MiB"`, and K, M, G are powers of 1024; lists and mappings in the environment are
written as JSON, lists of names also with commas.

A name that is spelled almost like a setting is an error, and so is an unknown argument of `QWorker(…)`.
Other names, in a configuration or by `app.conf.update(…)`, are your own settings: read them as
`app.conf.name`.
"""

# Sections by the first part of the name, in page order.
_SECTIONS = {
    "broker": "Broker and messages",
    "embedded": "Broker and messages",
    "message": "Broker and messages",
    "dead": "Broker and messages",
    "revoke": "Broker and messages",
    "revokes": "Broker and messages",
    "accept": "Broker and messages",
    "security": "Broker and messages",
    "task": "Tasks",
    "result": "Results",
    "database": "Results",
    "worker": "Worker",
    "spooler": "Spooler",
}
_GENERAL = "General"
_ORDER = (_GENERAL, "Broker and messages", "Tasks", "Results", "Worker", "Spooler")


def render() -> str:
    """Return the whole page as Markdown."""
    sections: dict[str, list[str]] = {title: [] for title in _ORDER}
    for setting in SETTINGS.values():
        title = _SECTIONS.get(setting.name.partition("_")[0], _GENERAL)
        sections[title].append(_entry(setting))
    body = "\n".join(f"## {title}\n\n" + "\n".join(entries) for title, entries in sections.items())
    return f"{_HEAD}\n{body}"


def _entry(setting: Setting) -> str:
    old = sorted(name for name, new in OLD_NAMES.items() if new == setting.name)
    facts = [f"Default: `{_literal(setting.default)}`", _accepts(setting)]
    if old:
        facts.append("Celery's old name: " + ", ".join(f"`{name}`" for name in old))
    return f"### `{setting.name}`\n\n{setting.doc}\n\n" + "\n".join(f"- {fact}" for fact in facts) + "\n"


def _accepts(setting: Setting) -> str:
    text = f"Type: {setting.kind.label}"
    if setting.choices:
        text += ": " + ", ".join(f"`{choice}`" for choice in setting.choices)
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("at least", setting.minimum), ("at most", setting.maximum))
        if bound is not None
    ]
    return text + (", " + ", ".join(bounds) if bounds else "") + (", or None" if setting.nullable else "")


def _literal(value: Any) -> str:
    return repr(value)


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
