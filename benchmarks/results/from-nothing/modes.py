"""How many of several equally good ways a policy keeps, and what that is worth when one is closed.

python modes.py <folder of a run> … out=modes.csv

The runs are of ``robotics/PointMaze-FourGoals-v0`` (four goals), or of
``robotics/PointMaze-TwoRoutes-v0`` with ``env_options.dense=true`` (above the block or below it).
From each of ``STARTS`` starts a policy acts ``DRAWS`` times, with noise, so that only its own draws
differ. One row a run:

- ``success``: share of all episodes that reach a goal;
- ``entropy``: of the ways taken from one start, in bits, averaged over the starts (Miller and
  Madow's correction for the number of draws); at most 2 for four goals, 1 for two routes;
- ``ways``: how many ways have at least a tenth of the draws from a start, averaged;
- ``closed``: share of success, with the same starts, where the way that the policy takes most often
  over all starts is... the closed task's own: the right goal, or the upper route.
"""
