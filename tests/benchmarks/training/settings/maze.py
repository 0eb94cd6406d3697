"""Words of a command line: a task, and a clone of its demonstrations."""

from __future__ import annotations

ENV = "env=robotics/PointMaze-TwoRoutes-v0"
BC = [ENV, "algorithm=bc", "policy=flow", "dataset=two_routes"]
