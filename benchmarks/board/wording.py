"""What every form of a leaderboard says in words: the names of scores, and how to read tables."""

from __future__ import annotations

__all__ = ["AGGREGATE_READING", "GLOSSES", "METRIC_NAMES", "READING"]

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
GLOSSES = {
    "Method": "One configuration: the algorithm, and in brackets what tells it from others of it.",
    "IQM": "Interquartile mean over seeds: the mean without the lowest and the highest quarter. "
    "In brackets its 95 percent interval.",
    "Mean": "Mean over seeds of the last evaluation. In brackets its 95 percent interval.",
    "Median": "Median over environments of the mean over seeds, with its 95 percent interval.",
    "Best": "Mean over seeds of each seed's best evaluation, chosen afterwards: optimistic.",
    "Gain": "The mean minus that of the baseline, with its 95 percent interval.",
    "Baseline": "What the gain is measured against; for what steers a policy, that policy frozen.",
    "Lowest seed": "The gain of the seed that gained least.",
    "P(better)": "The chance that a random seed beats a random seed of the baseline; 0.5 is no "
    "difference. In brackets its 95 percent interval.",
    "Trained for": "Environment steps, or gradient updates where a method takes no steps; a range "
    "where seeds stopped at different counts.",
    "Seeds": "Number of runs that differ in nothing but their seed.",
    "Episodes": "Number of episodes of the last evaluation, all seeds together.",
    "Optimality gap": "How far scores fall short of 1 on average, with its 95 percent interval.",
    "Environments": "Number of environments in which the method was run.",
    "Runs": "Number of runs, all seeds and environments together.",
}
"""What the columns of tables mean, by their heading without the brackets."""
