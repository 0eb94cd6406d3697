"""One thing that ``trimtab doctor`` looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``level`` is ok, note, warning or error."""

    level: str
    what: str
    message: str

    def to_json(self) -> dict[str, str]:
        """Return the finding as JSON values."""
        return asdict(self)
