"""Plots, their data, and the HTML page of a run. Nothing here runs a model; matplotlib and pandas load with it."""
