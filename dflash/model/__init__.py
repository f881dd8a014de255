"""Anchors, drafter, target, objective and the checkpoint formats of others."""
