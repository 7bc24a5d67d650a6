"""What MPI libraries run: rules, messages, rounds; closed forms and work."""
