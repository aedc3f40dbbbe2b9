"""Sampling: parameters, keyed noise, logit transforms, and the target's own choice at a row."""
