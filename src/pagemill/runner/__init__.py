"""Runners: what computes a batch. This package itself imports no torch; one of its modules does."""
