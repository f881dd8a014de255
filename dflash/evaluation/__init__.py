"""Speculative decoding and acceptance."""
