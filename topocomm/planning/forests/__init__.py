"""Throughput: reduce trees and broadcast trees packed into the machine's links by linear programming."""
