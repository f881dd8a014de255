"""Roles, packets and the channel that moves features from targets to drafters."""
