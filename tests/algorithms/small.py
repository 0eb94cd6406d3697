"""A task whose plans are of three actions, of which a run executes two, and small networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from trimtab.types import PolicySpec

PLAN = PolicySpec(3, 3, 2, (-1.0, -2.0), (1.0, 2.0))
RUN = replace(PLAN, horizon=2)
SIZE = torch.tensor([1.0, 2.0])  # half width of the limits, which scales actions
SMALL: dict[str, Any] = {"hidden": (16, 16), "learning_rate": 3e-3}
