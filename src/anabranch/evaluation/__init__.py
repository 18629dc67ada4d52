"""Evaluation: suites, runs, measures, reports."""
