"""Setting: the declaration of one setting, and the conversion of a raw value.

Comes from:  the modules of the topics, and `django.settings.keys`.
Goes to:     `settings`, which collects them; `resolved`; the reference.
Thread:      any; immutable.
"""

from typing import Any, NamedTuple

from qworker.conf import kinds
from qworker.conf.kinds import Kind


class Setting(NamedTuple):
    """The declaration of one setting.

    - kind, default, doc: its type, default value and description.
    - choices: the allowed values; () for any.
    - minimum, maximum: inclusive limits.
    - nullable (bool): None may be given. It means the value of *none*, or if that is None, the default.
    """

    name: str
    kind: Kind
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    nullable: bool = False
    none: Any = None

    def read(self, value: Any) -> Any:
        """Convert a raw value of any source. Raises ValueError, which says what is expected."""
        if value is None or (
            self.nullable and isinstance(value, str) and value.strip().lower() in ("none", "null")
        ):
            if self.nullable:
                return self.fresh_default() if self.none is None else self.none
            raise ValueError("must not be None; leave it out to get the default")
        result = self.kind.read(value)
        if self.choices and result not in self.choices:
            raise ValueError("must be one of " + ", ".join(self.choices))
        if self.minimum is not None and result < self.minimum:
            raise ValueError(f"must be at least {self.minimum:g}")
        if self.maximum is not None and result > self.maximum:
            raise ValueError(f"must be at most {self.maximum:g}")
        return self.default | result if self.kind is kinds.POLICY else result

    def fresh_default(self) -> Any:
        """Return the default, copied if it is mutable."""
        return self.default.copy() if isinstance(self.default, (dict, list)) else self.default


def declare(kind: Kind, default: Any, doc: str, **bounds: Any) -> Any:
    """Declare a setting in a class for collect(). bounds: other fields of Setting."""
    bounds.setdefault("nullable", default is None)
    return (kind, default, doc, bounds)


def collect(*topics: type) -> dict[str, Setting]:
    """Return the declarations in these classes, and delete them there: values are attributes of instances."""
    settings = {}
    for topic in topics:
        for name in topic.__annotations__:
            kind, default, doc, bounds = getattr(topic, name)
            settings[name] = Setting(name, kind, default, doc, **bounds)
            delattr(topic, name)
    return settings
