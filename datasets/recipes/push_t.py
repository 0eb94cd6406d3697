"""Push Push-T's block onto its outline by one straight push after another, as a planner does.

The simulator's block has no friction with the disc, and it stands still as soon as nothing pushes
it. So a push at a point of its edge moves it along the edge's normal ``n`` and turns it about its
centre of mass, in the ratio of ``1 / m`` to ``(r x n) / I``, ``r`` from the centre to the point
(Mason, 1986, "Mechanics and Planning of Manipulator Pushing Operations", with inertia in place of
the friction on the ground). The planner follows this for many points at once and takes the push
that brings the corners nearest to their places for its time. The disc goes round the block to where
the push starts, pushes, and then the planner looks again.
"""

from __future__ import annotations

import heapq
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.settings import Bounds, CheckedSettings, NonNegative

__all__ = ["PushPlanner"]

Vector = NDArray[np.float64]

# Lengths are the simulator's pixels. The block in its own frame is a bar with a stem at its middle.
_CORNERS = np.array(
    [(-60, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)], float
)
_CENTRE = np.array([0.0, 45.0])
_INERTIA = 3000.0  # of a mass of one
_BOARD = 512
_PLACE, _ANGLE = np.array([256.0, 256.0]), np.pi / 4  # where it shall lie
_RADIUS = 15.0  # of the disc
_ROOM = (20.0, 491.0)  # where the disc's centre is free of the walls
_TOUCHING, _TRAVELLING = 18.0, 21.0  # distances from an edge: too near to pass, and at ease
_SPEED, _PRESSING = 20.0, 10.0  # what the disc covers in a step, about
_OVERHEAD = 3.0  # steps that a push costs beside its way


class PushPlanner(metaclass=CheckedSettings):
    """Plans pushes of Push-T's block and carries them out, with noise on its actions.

    Reads either kind of observation of :mod:`trimtab.envs.families.pusht` and returns where the
    disc shall go, in pixels.

    Args:
        task: not used.
        generator: decides the noise.
        noise: standard deviation of the noise added to each entry of an action, in pixels, while
            the corners are 100 pixels or more from their places; it shrinks with what is left.
        ahead: distance from the disc to its target, in pixels, while it travels.
        press: the same while it pushes.
        longest: length of the longest push, in pixels.

    Raises:
        TrimtabError: if a distance is less than one pixel, or more than the board is wide.
    """

    section = "dataset.controller"

    name: ClassVar[str] = "push_t"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        noise: NonNegative = 0.0,
        ahead: Annotated[float, Bounds(least=1, most=_BOARD)] = 50.0,
        press: Annotated[float, Bounds(least=1, most=_BOARD)] = 25.0,
        longest: Annotated[float, Bounds(least=1, most=_BOARD)] = 60.0,
    ) -> None:
        self.generator, self.noise = generator, noise
        self.ahead, self.press = ahead, press
        self.points, self.normals = _points(spacing=8.0)
        self.lengths = np.arange(1.0, longest + 1)
        self.way: list[Vector] = []  # to the start of the push
        self.start = self.end = np.zeros(2)
        self.patience = 0  # steps until the plan is given up
        self.left = 0.0  # how far the corners were from their places when it was made

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the disc's target ``[2]``.

        Raises:
            TrimtabError: if the observation is not one of Push-T.
        """
        disc, place, angle = _read(np.asarray(obs, float))
        while self.way and np.linalg.norm(self.way[0] - disc) < 6.0:
            self.way.pop(0)
        self.patience -= 1
        if self.patience < 0 or (not self.way and self._pushed(disc)):
            self._plan(disc, place, angle)
        goal, most = (self.way[0], self.ahead) if self.way else (self.end, self.press)
        step = goal - disc
        step *= min(1.0, most / max(float(np.linalg.norm(step)), 1e-9))
        noise = min(1.0, self.left / 100.0) * self.noise * self.generator.standard_normal(2)
        return np.asarray(disc + step + noise)

    def _pushed(self, disc: Vector) -> bool:
        """Return whether the disc has come to the end of its push."""
        way = self.end - self.start
        return float((self.end - disc) @ way) < float(np.linalg.norm(way))  # one pixel

    def _plan(self, disc: Vector, place: Vector, angle: float) -> None:
        """Choose the push that gains most for its time among those whose start can be reached."""
        turned = _rotation(angle)
        here = (disc - place) @ turned
        starts = self.points + _TRAVELLING * self.normals
        travel = np.linalg.norm(starts - here, axis=1)
        left = _left(place + turned @ _CENTRE, np.asarray(angle))
        gains = left - self._follow(place, angle)
        rates = gains / (_OVERHEAD + travel[:, None] / _SPEED + self.lengths / _PRESSING)
        rates[~_in_room(place + starts @ turned.T)] = -np.inf
        order = np.argsort(-rates.max(1), kind="stable")
        for chosen in order:
            way = _way(here, starts[chosen], place, turned)
            if way is not None:
                break
        else:
            chosen, way = order[0], []  # the disc is shut in: straight through, and look again
        length = self.lengths[rates[chosen].argmax()]
        start = self.points[chosen] + _RADIUS * self.normals[chosen]
        self.way = [place + turned @ point for point in way]
        self.start = place + turned @ start
        self.end = self.start - length * (turned @ self.normals[chosen])
        self.patience = 10 + int(travel[chosen] / 10 + length / 5)
        self.left = float(left)

    def _follow(self, place: Vector, angle: float) -> Vector:
        """Return how far the corners are from their places after each push [points, lengths]."""
        turned = _rotation(angle)
        centre = np.repeat((place + turned @ _CENTRE)[None], len(self.points), 0)
        angles = np.full(len(self.points), angle)
        disc = place + (self.points + _RADIUS * self.normals) @ turned.T
        way = -self.normals @ turned.T
        depth = ((self.points - _CENTRE) * self.normals).sum(1)  # of the edge below the centre
        possible = np.ones(len(self.points), bool)
        left = np.full((len(self.points), len(self.lengths)), np.inf)
        for pixel in range(len(self.lengths)):
            disc = disc + way
            possible &= _in_room(disc)
            normal = np.einsum("nij,nj->ni", _rotation(angles), self.normals)
            arm = disc - _RADIUS * normal - centre
            turning = _cross(arm, normal)
            # The disc has gone so far into the edge, and moves it out of its way.
            inside = np.minimum((arm * normal).sum(1) - depth, 0.0)
            moved = inside / (1.0 + turning**2 / _INERTIA)
            centre = centre + moved[:, None] * normal
            angles = angles + moved * turning / _INERTIA
            left[possible, pixel] = _left(centre, angles)[possible]
        return left


def _read(obs: Vector) -> tuple[Vector, Vector, float]:
    """Return the disc's place, the block's, and the block's angle in radian."""
    if obs.shape == (5,):
        return obs[:2], obs[2:4], float(obs[4])
    if obs.shape == (18,):  # the bar's outer corners come first
        bar = obs[2:4] - obs[:2]
        return obs[16:], (obs[:2] + obs[2:4]) / 2, float(np.arctan2(bar[1], bar[0]))
    raise TrimtabError(
        f"the push_t recipe reads Push-T's observations of 5 or 18 numbers, not of {obs.size}"
    )


def _rotation(angle: float | Vector) -> Vector:
    """Return matrices [..., 2, 2] that turn by ``angle`` [...]."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)


def _cross(a: Vector, b: Vector) -> Vector:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])


def _left(centre: Vector, angle: Vector) -> Vector:
    """Return the corners' mean distance from their places, by centre of mass and angle."""
    corners = centre[..., None, :] + (_CORNERS - _CENTRE) @ np.swapaxes(_rotation(angle), -1, -2)
    places = _PLACE + _CORNERS @ _rotation(_ANGLE).T
    return np.asarray(np.linalg.norm(corners - places, axis=-1).mean(-1))


def _in_room(points: Vector) -> NDArray[np.bool_]:
    return np.asarray(((points > _ROOM[0]) & (points < _ROOM[1])).all(-1))


def _normals(start: Vector, end: Vector) -> Vector:
    """Return the unit vectors that point outward from edges."""
    along = (end - start) / np.linalg.norm(end - start, axis=-1, keepdims=True)
    return np.stack([along[..., 1], -along[..., 0]], -1)


_NEXT = np.roll(_CORNERS, -1, 0)
_OUTWARD = _normals(_CORNERS, _NEXT)


def _grown(distance: float) -> Vector:
    """Return the corners [8, 2] of the block with each edge moved outward."""
    return np.asarray(_CORNERS + distance * (_OUTWARD + np.roll(_OUTWARD, 1, 0)))


def _points(spacing: float) -> tuple[Vector, Vector]:
    """Return points [N, 2] of the edges that the disc can push at, and their normals [N, 2]."""
    points, normals = [], []
    for start, end, normal in zip(_CORNERS, _NEXT, _OUTWARD, strict=True):
        length = float(np.linalg.norm(end - start))
        # At an inner corner the disc meets the other edge first.
        low, high = (_RADIUS + 1 if tuple(np.abs(at)) == (15, 30) else 2.0 for at in (start, end))
        count = int((length - low - high) / spacing) + 2
        for distance in np.linspace(low, length - high, count):
            points.append(start + (end - start) * distance / length)
            normals.append(normal)
    return np.array(points), np.array(normals)


def _within(point: Vector, polygon: Vector) -> bool:
    """Return whether a point lies in a polygon, by the edges that a ray from it meets."""
    a, b = polygon, np.roll(polygon, -1, 0)
    straddling = (a[:, 1] > point[1]) != (b[:, 1] > point[1])
    a, b = a[straddling], b[straddling]
    meets = a[:, 0] + (b[:, 0] - a[:, 0]) * (point[1] - a[:, 1]) / (b[:, 1] - a[:, 1])
    return bool((point[0] < meets).sum() % 2)


def _crosses(start: Vector, end: Vector, polygon: Vector) -> bool:
    """Return whether a segment meets an edge of a polygon or lies inside it."""
    a, b = polygon, np.roll(polygon, -1, 0)
    apart = _cross(end - start, a - start) * _cross(end - start, b - start) < 0
    across = _cross(b - a, start - a) * _cross(b - a, end - a) < 0
    return bool((apart & across).any()) or _within((start + end) / 2, polygon)


def _nearest_free(point: Vector, wall: Vector) -> Vector:
    """Return the nearest point that is ``_TRAVELLING`` from an edge and outside of ``wall``."""
    edges = _NEXT - _CORNERS
    along = np.clip(((point - _CORNERS) * edges).sum(1) / (edges**2).sum(1), 0, 1)
    beside = _CORNERS + along[:, None] * edges + _TRAVELLING * _OUTWARD
    outside = [other for other in (*beside, *_grown(_TRAVELLING)) if not _within(other, wall)]
    return min(outside, key=lambda other: float(np.linalg.norm(other - point)))


def _way(start: Vector, end: Vector, place: Vector, turned: Vector) -> list[Vector] | None:
    """Return the points of the shortest way round the block, in its frame; None if there is none.

    Dijkstra's algorithm on the corners of the grown block that see one another.
    """
    wall = _grown(_TOUCHING)
    first = []
    if _within(start, wall):  # off the block before anything else
        start = _nearest_free(start, wall)
        first = [start]
    nodes = np.array([start, end, *_grown(_TRAVELLING)])
    usable = np.flatnonzero(_in_room(place + nodes @ turned.T))
    shortest, before, waiting = {0: 0.0}, {0: 0}, [(0.0, 0)]
    while waiting:
        length, at = heapq.heappop(waiting)
        if at == 1:
            break
        for other in usable:
            total = length + float(np.linalg.norm(nodes[other] - nodes[at]))
            if total < shortest.get(other, np.inf) and not _crosses(nodes[at], nodes[other], wall):
                shortest[other], before[other] = total, at
                heapq.heappush(waiting, (total, int(other)))
    if 1 not in before:
        return None
    way = [1]
    while before[way[-1]] != 0:
        way.append(before[way[-1]])
    return [*first, *nodes[way[::-1]]]
