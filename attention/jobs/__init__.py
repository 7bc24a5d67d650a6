"""What `python -m attention` runs: jobs on threads of this process or on the ranks of mpirun."""
