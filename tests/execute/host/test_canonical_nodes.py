"""A rank's virtual shards folded into nodes of the canonical tree."""

import numpy as np
import pytest

from tests.concatenation import CONCAT, spelled, word
from topocomm.execute.host.canonical_nodes import LocalNodes


@pytest.mark.parametrize(
    ("first", "stop", "total"), [(0, 8, 8), (0, 3, 8), (3, 8, 11), (5, 6, 11), (4, 4, 9), (1, 7, 7)]
)
def test_nodes_are_folds_of_consecutive_shards_in_order(first, stop, total):
    words = [word(shard, 2) for shard in range(total)]
    layout = CONCAT.layout({name: (array.shape, array.dtype) for name, array in words[0].items()})
    local = LocalNodes(CONCAT, layout, (0, first, stop, total), 1, tensors=False)
    given = {
        name: np.array([one[name] for one in words[first:stop]], array.dtype).reshape(-1, *array.shape)
        for name, array in words[0].items()
    }
    for _ in range(2):
        folded = local.fold(given)
        assert local.leading == (len(local.nodes), *layout.leading)
        edges = [first, *(high for _, high in local.nodes)]
        assert edges[-1] == stop
        for index, (low, high) in enumerate(local.nodes):
            assert low == edges[index]
            letters = "".join(spelled(word(shard, 1))[0] for shard in range(low, high))
            assert spelled({name: array[index] for name, array in folded.items()}) == [letters] * 2
