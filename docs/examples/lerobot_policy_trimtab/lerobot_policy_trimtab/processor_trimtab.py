"""LeRobot's steps around a policy of Trimtab: the graph reads and gives raw units."""

from __future__ import annotations

from typing import Any

from lerobot.processor import (
    AddBatchDimensionProcessorStep,
    DeviceProcessorStep,
    PolicyProcessorPipeline,
    RenameObservationsProcessorStep,
)
from lerobot.processor.factory import make_policy_processor_pipelines

from lerobot_policy_trimtab.configuration_trimtab import TrimtabConfig


def make_trimtab_pre_post_processors(
    config: TrimtabConfig, dataset_stats: dict[str, Any] | None = None
) -> tuple[PolicyProcessorPipeline, PolicyProcessorPipeline]:
    """Return the steps before the policy and those after it, without any normalisation.

    Args:
        config: of the policy.
        dataset_stats: not used: the statistics of the training are in the bundle.
    """
    before = [
        RenameObservationsProcessorStep(rename_map={}),
        AddBatchDimensionProcessorStep(),
        DeviceProcessorStep(device=config.device),
    ]
    return make_policy_processor_pipelines(before, [DeviceProcessorStep(device="cpu")])
