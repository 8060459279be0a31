"""Models: blocks composed with a message passer."""

from sojourn.models.arhmm import ARHMM
from sojourn.models.base import Model
from sojourn.models.gaussian_hmm import GaussianHMM
from sojourn.models.lgssm import LGSSM
from sojourn.models.slds import SLDS

__all__ = ["ARHMM", "LGSSM", "SLDS", "GaussianHMM", "Model"]
