"""Results on stdout and in files, and what a terminal gets beside them: colours, progress."""
