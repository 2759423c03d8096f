"""Pages in Airflow about the nightly runs: history, trends, reports and quarantine."""
