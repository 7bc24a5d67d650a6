"""How well predictions hold: logs of benchmarks in, figures of a machine and their errors out."""
