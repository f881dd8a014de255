"""Preflight, advice on the topology, pipeline simulation, power."""
