"""What a decode step of a model takes: phases of computing, and the collectives of every way to share the context."""

from topocomm.simulation.decode.datasheets import DEVICES, DeviceFigures, device_figures
from topocomm.simulation.decode.decode_methods import METHODS
from topocomm.simulation.decode.decode_step import DecodeStep, simulate_step
from topocomm.simulation.decode.model_shapes import MODELS, ModelShape, model_shape

__all__ = [
    "DEVICES",
    "METHODS",
    "MODELS",
    "DecodeStep",
    "DeviceFigures",
    "ModelShape",
    "device_figures",
    "model_shape",
    "simulate_step",
]
