"""Models: blocks composed with a message passer."""

from sojourn.models.arhmm import ARHMM
from sojourn.models.base import Model
from sojourn.models.gaussian_hmm import GaussianHMM
from sojourn.models.lgssm import LGSSM

__all__ = ["ARHMM", "LGSSM", "GaussianHMM", "Model"]
