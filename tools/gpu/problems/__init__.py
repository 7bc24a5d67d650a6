"""What is checked and timed: problems, their inputs, the ways to solve them."""
