"""The tables of planner.py, a module each, and the machines in them."""
