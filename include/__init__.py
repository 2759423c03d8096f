"""Airflow-free library of the listing enhancement pipeline, one package per stage."""
