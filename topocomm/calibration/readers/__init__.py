"""Logs of benchmarks, one format each: text in, tables of times out."""
