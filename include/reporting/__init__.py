"""Reporting: the run's summary, report and alert texts."""
