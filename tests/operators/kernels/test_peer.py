"""What the peer kernel is compiled for."""

from tests.interpreted import interpreted  # isort: skip first, since it imports triton

import numpy as np
import pytest

from topocomm import AFFINE_MATRIX, SUM, TOPK
from topocomm.operators.kernels.peer import PeerCase, peer_options

assert interpreted


@pytest.mark.parametrize(("operator", "operands"), [(SUM, 8), (TOPK(8), 0), (AFFINE_MATRIX(4), 0)])
def test_operands_of_functions_that_make_much_code_follow_each_other_in_a_loop(operator, operands):
    shapes = {f.name: ((4, *(operator.default_dims[d] for d in f.dims[1:])), f.dtype or "f4") for f in operator.fields}
    layout = operator.layout({name: (shape, np.dtype(dtype)) for name, (shape, dtype) in shapes.items()})
    case = PeerCase([4], [0], 8, 8, synchronises=True)
    assert peer_options(operator, layout, case, "interpreter")["OPERANDS"] == operands
