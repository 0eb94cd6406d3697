"""Trimtab's settings, one folder for each group; Hydra finds them as ``pkg://trimtab.conf``."""
