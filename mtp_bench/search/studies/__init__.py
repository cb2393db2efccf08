"""Optuna: the same question as a check, questions without a formula, and studies that many workers share."""
