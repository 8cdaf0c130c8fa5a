"""Setting: what is declared about one setting, and how a raw value is read.

Comes from:  `settings`, which declares them all.
Goes to:     `sources` and the command line, which read values; the reference.
Thread:      any; never changed.
"""

from typing import Any, NamedTuple

from qworker.conf import kinds
from qworker.conf.kinds import Kind


class Setting(NamedTuple):
    """The declaration of one setting. `minimum` is inclusive; `nullable`: None may be given and means the
    default, or `none` where that is set."""

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
        """The value this setting takes for a raw value of any source; ValueError says what it must be."""
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
        """The default, as a copy where it could be changed."""
        return self.default.copy() if isinstance(self.default, (dict, list)) else self.default


def declare(kind: Kind, default: Any, doc: str, **bounds: Any) -> Any:
    """The declaration of a setting, as `settings.Declarations` has it; *bounds* are the other fields of
    Setting."""
    bounds.setdefault("nullable", default is None)
    return (kind, default, doc, bounds)
