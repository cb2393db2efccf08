"""Measured mode: candidates near the optimum decode for real, losers are stopped early, ties go to the smaller."""
