"""Figures in the text format that Prometheus reads."""

from prometheus_client.parser import text_string_to_metric_families

from attention.serve.serve_metrics import ServeMetrics


def test_all_figures_are_there_and_have_help():
    metrics, other = ServeMetrics(), ServeMetrics()
    metrics.requests.labels("/v1/completions", "200").inc()
    metrics.first_token_s.observe(0.3)
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    for name in ("requests", "tokens", "prompt_tokens", "queue_length", "running_answers", "ranks"):
        assert families[f"topocomm_{name}"].documentation
    (counted,) = (one for one in families["topocomm_requests"].samples if one.name.endswith("_total"))
    assert (counted.labels, counted.value) == ({"endpoint": "/v1/completions", "status": "200"}, 1)
    below = {one.labels.get("le"): one.value for one in families["topocomm_time_to_first_token_seconds"].samples}
    assert (below["0.25"], below["0.5"]) == (0, 1)
    assert b'status="200"' not in other.text(), "servers of one process count apart"
