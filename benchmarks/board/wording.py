"""What every form of a leaderboard says in words: the names of scores, and how to read tables."""

from __future__ import annotations

__all__ = ["AGGREGATE_READING", "METRIC_NAMES", "READING"]

METRIC_NAMES = {"success": "success rate", "return": "return (sum of rewards)"}
READING = (
    "Each row is one configuration at the last evaluation of each of its seeds. Brackets are 95 "
    "percent intervals over seeds; with one seed they are over its episodes alone. With three "
    "seeds they are wide, because three seeds tell little: a gain is found with 80 percent power "
    "only if it is more than three times the standard deviation between seeds. IQM is the "
    "interquartile mean over seeds. Methods stand in its order, and in that of the mean where it "
    "is equal. Best takes each seed's best checkpoint afterwards and is "
    "optimistic. Gain is the mean minus that of the baseline, and lowest seed the gain of the seed "
    "that gained least. P(better) is the chance that a random seed beats a random seed of the "
    "baseline. docs/statistics.md says how the intervals are made and how often they hold the "
    "truth."
)
AGGREGATE_READING = (
    "Success rates of all seeds in all environments of a table. Methods share a table only if they "
    "were run in the same environments, because only then do their rows compare. The environments "
    "are taken as given, the seeds as a sample."
)
