"""Sampling parameters, keyed noise and logit transforms."""
