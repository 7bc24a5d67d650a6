"""Several captures as one machine, several hosts as one cluster, links taken out."""
