"""What a node is worth, P(its whole path is accepted): sources of values and the estimators that make them."""
