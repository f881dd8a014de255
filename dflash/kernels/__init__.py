"""Fused linear losses and anchor attention: Triton kernels and their plain-PyTorch references."""
