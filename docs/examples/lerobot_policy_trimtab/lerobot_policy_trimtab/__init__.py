"""Policies that ``trimtab export as=lerobot`` wrote, for LeRobot: ``policy.type=trimtab``."""

from lerobot_policy_trimtab.configuration_trimtab import TrimtabConfig

__all__ = ["TrimtabConfig"]
