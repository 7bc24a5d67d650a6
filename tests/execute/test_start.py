"""Starting ranks on threads."""

import pytest

from topocomm import (
    PlanError,
    run_local,
)


@pytest.mark.parametrize("ranks", [0, -1, 2000])
def test_rank_counts_are_checked(ranks):
    with pytest.raises(PlanError, match=f"ranks {ranks}: expected 1 to 1024"):
        run_local(lambda comm: None, ranks=ranks)
