"""Decoder families, weight formats and where models come from."""
