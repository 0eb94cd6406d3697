"""Trimtab: a benchmark suite in which small policies steer, fine-tune and are measured.

Importing this package loads nothing heavy: a robot opens a bundle with
``from trimtab.policies.runtime import load_policy`` and needs numpy and onnxruntime alone.
"""

__version__ = "0.1.0"
