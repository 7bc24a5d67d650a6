"""The algorithms that communication libraries run, as work to simulate, by name."""

from topocomm.simulation.libraries.library_algorithm import LibraryAlgorithm
from topocomm.simulation.libraries.registry import algorithm, names, work_of

__all__ = ["LibraryAlgorithm", "algorithm", "names", "work_of"]
