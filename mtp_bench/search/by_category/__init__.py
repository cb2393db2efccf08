"""Over kinds of text: weighted categories, the worst one, and what a tree tuned on one costs another."""
