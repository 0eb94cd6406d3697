"""The parts of an SVG drawing as text; lengths are in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

__all__ = ["SHAPES", "drawing", "line", "mark", "text"]

SHAPES = 5
"""Number of shapes of a mark: disc, square, diamond, triangle, triangle on its head."""
_CORNERS = {1: (4, 45.0), 2: (4, 0.0), 3: (3, -90.0), 4: (3, 90.0)}
"""Number of corners of a shape, and the angle of the first, in degrees."""


def drawing(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return a whole drawing; ``title`` is read out where it cannot be seen."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    """Return a straight line; ``name`` is its class in the style sheet."""
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def mark(x: float, y: float, radius: float, shape: int = 0) -> str:
    """Return a filled mark; shapes are numbered, and after the last the first comes again."""
    shape %= SHAPES
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
    corners, start = _CORNERS[shape]
    places = []
    for corner in range(corners):
        angle = math.radians(start + 360.0 * corner / corners)
        # A little larger than a disc, so that it looks as large.
        places.append(f"{x + 1.25 * radius * math.cos(angle):.1f},"
                      f"{y + 1.25 * radius * math.sin(angle):.1f}")  # fmt: skip
    return f'<polygon class="mark" points="{" ".join(places)}"/>'


def text(x: float, y: float, words: str, anchor: str = "start", name: str = "") -> str:
    """Return words at a place; ``anchor`` says which end of them stands there."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{name}" {place}>{escape(words)}</text>'
