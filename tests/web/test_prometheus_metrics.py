"""The metrics of a running server."""

import re

from helpers.web import make_client


def test_requests_are_counted_by_route_and_status(learned):
    client = make_client(learned)
    for body in ({"id": 1000}, {"id": 1001}, {"id": 5}):
        client.post("/search", json=body)
    client.get("/surely/not/a/route")
    client.request("BREW", "/health")
    text = client.get("/metrics").text
    assert 'dish_requests_total{method="POST",route="/search",status="200"} 2' in text
    assert 'dish_requests_total{method="POST",route="/search",status="404"} 1' in text
    assert 'route="other",status="404"} 1' in text
    assert 'method="other"' in text
    assert "surely" not in text
    assert 'dish_request_seconds_count{route="/search"} 3' in text
    assert 'dish_request_seconds_bucket{le="+Inf",route="/search"} 3' in text
    assert "dish_index_rows 600" in text
    assert "dish_in_flight 1" in text
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .+|[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+', line), line
