"""Partitions: which samples each client holds, and the laws that deal them."""
