"""Several hosts on one Linux machine, for tests and measurements on real MPI: network namespaces with limited links."""
