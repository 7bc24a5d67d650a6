"""Tables of planner.py, one a module, and their machines."""
