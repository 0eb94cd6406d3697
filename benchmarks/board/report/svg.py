"""The parts of an SVG drawing as text; lengths are in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["dot", "drawing", "line", "text"]


def drawing(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return a whole drawing; ``title`` is read out where it cannot be seen."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    """Return a straight line; ``name`` is its class in the style sheet."""
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(x: float, y: float, radius: float) -> str:
    """Return a filled circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def text(x: float, y: float, words: str, anchor: str = "start", name: str = "") -> str:
    """Return words at a place; ``anchor`` says which end of them stands there."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{name}" {place}>{escape(words)}</text>'
