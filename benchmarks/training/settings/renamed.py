"""Names that methods had before, for command lines and for rows that were written with them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# "DPPO" is what the field calls Diffusion Policy Policy Optimization (arXiv 2409.00588).
RENAMED: Mapping[str, str] = MappingProxyType({"d_ppo": "dropout_ppo"})
"""The former name of a method -> its name today."""
