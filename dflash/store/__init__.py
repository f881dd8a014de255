"""Requests, stage keys, the keyed store, manifests, locks."""
