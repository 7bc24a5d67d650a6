"""The text of a report says what was tried, and does not read as a proof."""

from topocomm.operators.law_report import Law, LawReport


def test_a_report_says_on_how_many_values_of_what_kind():
    laws = (Law("rows", True), Law("identity", False, "", "e = 0"), Law("commutativity", True, "seems", claimed=False))
    report = LawReport("own", "x int64 [8]", laws, 0.0, sampled=False, tried=16)
    lines = str(report).splitlines()
    assert lines[0] == "operator 'own' on x int64 [8]: broken: identity" and not report.ok
    assert lines[1:6] == [
        "  rows           holds",
        "  identity       BROKEN",
        "               e = 0",
        "  commutativity  not claimed; seems",
        "  The values tried are any arrays; where only some are values, give the operator a `sample`.",
    ]
    assert lines[6] == "  Tried, not proved: 16 triples of ordinary numbers and extremes of the dtypes."
    sampled = LawReport("own", "x int64 [8]", laws[:1], 0.0, sampled=True, tried=512)
    assert sampled.ok and str(sampled).endswith("Tried, not proved: 512 triples from the operator's `sample`.")
