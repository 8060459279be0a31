"""Bayesian state space models for time series of any length."""

__version__ = "0.1.0"
