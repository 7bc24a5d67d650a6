"""Problems that are checked and timed, their inputs and methods."""
