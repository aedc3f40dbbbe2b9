"""Tensor operations, each with a plain PyTorch reference."""
