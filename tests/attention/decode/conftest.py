import pytest

pytest.importorskip("torch", reason="needs torch")

from attention import PreparedDecode


@pytest.fixture
def taken(monkeypatch):
    """Whether each step went the shortest way (True) or was left to the general one."""
    found = []
    run = PreparedDecode._fast_path

    def counted(self, *given):
        merged = run(self, *given)
        found.append(merged is not None)
        return merged

    monkeypatch.setattr(PreparedDecode, "_fast_path", counted)
    return found
