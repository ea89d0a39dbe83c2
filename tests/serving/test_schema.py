"""The schema is the truth: requests that follow it, and requests that nearly do, get what it announces."""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS

from .conftest import Live, Start

NUM_CASES = 25
"""For each address, of requests that follow the schema and of those that do not."""


@pytest.fixture(scope="module")
def fuzzed(start: Start) -> Live:
    """One run of each kind, so that a request need not name it."""
    return start(
        *("translate", "classes", "tags", "answers"), limits={"body_bytes": 20_000, "new_tokens": 20, "seconds": 20.0}
    )


@pytest.fixture(scope="module")
def completing(start: Start) -> Live:
    return start("text", limits={"body_bytes": 20_000, "new_tokens": 20, "seconds": 20.0})


POSTS = ["/v1/generate", "/v1/classify", "/v1/tag", "/v1/answer", "/v1/completions"]
GETS = ["/health", "/ready", "/metrics", "/v1/models"]


@pytest.mark.parametrize(
    ("path", "follows"), [*((path, True) for path in (*POSTS, *GETS)), *((path, False) for path in POSTS)]
)
def test_requests_made_from_the_schema(fuzzed: Live, completing: Live, path: str, follows: bool) -> None:
    """None gets another status, another form or another type than the schema says, and none a 5xx."""
    live = completing if path == "/v1/completions" else fuzzed
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    operation = schema[path]["POST" if path in POSTS else "GET"]
    mode = schemathesis.GenerationMode.POSITIVE if follows else schemathesis.GenerationMode.NEGATIVE
    strategy = operation.as_strategy(generation_mode=mode)
    # A schema knows nothing of tokens and of the depths of a model: what follows it may still be refused (422).
    ignored = {"positive_data_acceptance", "unsupported_method"}
    checks = [check for name, check in ((each.__name__, each) for each in CHECKS.get_all()) if name not in ignored]
    statuses = set()

    @settings(max_examples=NUM_CASES, suppress_health_check=list(HealthCheck), phases=[hypothesis.Phase.generate])
    @hypothesis.given(case=strategy)
    def fuzz(case: schemathesis.Case) -> None:
        response = case.call(timeout=30)
        statuses.add(response.status_code)
        case.validate_response(response, checks=checks)

    fuzz()
    assert not {status for status in statuses if status >= 500}
    if path in GETS:
        assert statuses == {200}
    elif not follows:
        assert 200 not in statuses
    assert live.get("/health").status_code == 200
