"""What is remembered: nodes, chains and the stores that hold them."""
