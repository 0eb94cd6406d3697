"""The newest rows of some tensors, as a part of a method's state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Ring"]


class Ring(nn.Module):
    """A ring of rows; each of its tensors is a buffer of its name.

    Args:
        rows: most rows.
        shapes: shape of a row of each tensor, by name.
    """

    def __init__(self, rows: int, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.rows, self.written, self.names = rows, 0, tuple(shapes)
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(rows, *shape))

    @property
    def size(self) -> int:
        """How many rows there are."""
        return min(self.written, self.rows)

    @torch.no_grad()
    def keep(self, *parts: Tensor) -> None:
        """Write rows ``[B, ...]`` of all tensors, in their order, over the oldest ones."""
        self.written += len(parts[0])
        # Of more than fit the newest: where a place came twice, either row could stay.
        count = min(len(parts[0]), self.rows)
        places = torch.arange(self.written - count, self.written, device=parts[0].device)
        for name, part in zip(self.names, parts, strict=True):
            ring = self.get_buffer(name)
            ring[places % self.rows] = part[-count:].to(ring.dtype)

    def draw(self, count: int) -> tuple[Tensor, ...]:
        """Return ``count`` rows of each tensor, drawn with replacement."""
        rings = [self.get_buffer(name) for name in self.names]
        rows = torch.randint(self.size, (count,), device=rings[0].device)
        return tuple(ring[rows] for ring in rings)

    def get_extra_state(self) -> int:
        """Return the number of written rows, for checkpoints."""
        return self.written

    def set_extra_state(self, state: int) -> None:
        """Go on with a number of written rows."""
        self.written = int(state)
