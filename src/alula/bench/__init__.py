"""Workloads, interleaved timing and result files."""
