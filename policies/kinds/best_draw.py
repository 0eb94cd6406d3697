"""The best of several draws, listed with their number."""

from __future__ import annotations

from trimtab.policies.kinds.best_of import BestOfPolicy


class BestDrawPolicy(BestOfPolicy):
    """A :class:`BestOfPolicy` whose label has the number of its draws.

    Tables list a base's samples under the kind of the base, beside the base itself. A policy that
    a method learns from nothing has no base beside it; and the best of several draws returns more
    than one draw, so a table has to say how many there were.
    """

    @property
    def label(self) -> str:
        """What proposes, and how many proposals there are."""
        return f"{self.base.label}, best of {self.candidates}"
