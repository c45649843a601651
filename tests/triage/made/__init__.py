"""Incidents made up for the tests: what jobs leave behind, written by several launchers, frameworks and kernels."""
