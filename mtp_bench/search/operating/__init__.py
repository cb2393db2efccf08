"""Over batch sizes and contexts: the best of every cell, schedule, map, Pareto front, bounds on sharing a budget."""
