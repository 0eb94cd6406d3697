"""What a run tells while it goes on, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Progress", "Result"]

Progress = Callable[[float, str], None]
"""Called with the share of the run that is done and a few words."""


@dataclass(frozen=True)
class Result:
    """The outcome of a run: its folder and what ``result.json`` in it says.

    Attributes:
        folder: of the run, on this machine.
        summary: what ``result.json`` says.
        already_done: whether it was there before.
        address: where it belongs, if that is not the folder.
    """

    folder: Path
    summary: dict[str, Any]
    already_done: bool
    address: str = ""

    @property
    def place(self) -> str:
        """Where the run is found, also from other machines."""
        return self.address or str(self.folder)
