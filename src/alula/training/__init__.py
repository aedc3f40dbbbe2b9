"""Drafters: data that the target writes itself, EAGLE-3 training, evaluation, export."""
