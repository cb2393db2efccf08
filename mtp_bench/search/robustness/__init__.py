"""How far the choice hangs on the sample: held-out figures, estimators side by side, the size another sample takes."""
