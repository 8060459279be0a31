"""Conjugate blocks: prior, coordinates, statistics, metric."""

from sojourn.blocks.base import Block, Pilot
from sojourn.blocks.emission import Emission
from sojourn.blocks.regression import Regression, RegressionStatistics
from sojourn.blocks.transition import Transition, TransitionStatistics

__all__ = [
    "Block",
    "Emission",
    "Pilot",
    "Regression",
    "RegressionStatistics",
    "Transition",
    "TransitionStatistics",
]
