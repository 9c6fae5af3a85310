"""Federated learning on clients that differ."""
