"""What a server counts, in the form that Prometheus reads. Labels are names that the server knows, never a client's."""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from depthwise.serving.served import Served, Spent

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_MODEL = ""


class Metrics:
    """Of one server. ``count_depths`` says how deep the models are, before the first answer is recorded."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        named = ("endpoint", "model")
        self.requests = Counter(
            "depthwise_requests", "Requests by how they ended.", (*named, "outcome"), registry=self.registry
        )
        self.seconds = Histogram(
            "depthwise_request_seconds",
            "From the first byte of a request to the last of its answer.",
            named,
            registry=self.registry,
            buckets=SECONDS,
        )
        self.queued = Histogram(
            "depthwise_queued_seconds",
            "Before the first step of an answer.",
            ("model",),
            registry=self.registry,
            buckets=SECONDS,
        )
        self.tokens = Counter(
            "depthwise_tokens", "Tokens that were read, and that were made.", ("model", "kind"), registry=self.registry
        )
        self.layers = Counter(
            "depthwise_token_layers",
            "Blocks that tokens of answers ran, and that they would have run at full depth.",
            ("model", "kind"),
            registry=self.registry,
        )
        self.depths: Histogram | None = None

    def watch(self, models: Sequence[Served]) -> None:
        """From now on, tell how busy these are and how deep their tokens run."""
        self.registry.register(_Queues(models))
        deepest = max(served.num_layers for served in models)
        self.depths = Histogram(
            "depthwise_token_depth",
            "Blocks that each token of an answer ran.",
            ("model",),
            registry=self.registry,
            buckets=[float(depth) for depth in range(1, deepest + 1)],
        )

    def answered(self, served: Served, spent: Spent) -> None:
        name = served.name
        self.queued.labels(name).observe(max(0.0, spent.waited))
        self.tokens.labels(name, "read").inc(spent.num_read)
        self.tokens.labels(name, "made").inc(spent.num_made)
        self.layers.labels(name, "run").inc(sum(spent.depths))
        self.layers.labels(name, "full").inc(len(spent.depths) * served.num_layers)
        assert self.depths is not None
        observed = self.depths.labels(name)
        for depth in spent.depths:
            observed.observe(depth)

    def ended(self, endpoint: str, model: str, outcome: str, seconds: float) -> None:
        self.requests.labels(endpoint, model, outcome).inc()
        self.seconds.labels(endpoint, model).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Queues(Collector):
    """How busy models are when somebody looks."""

    def __init__(self, models: Sequence[Served]) -> None:
        self._models = models

    def collect(self) -> Iterable[GaugeMetricFamily]:
        waiting = GaugeMetricFamily("depthwise_waiting", "Requests that wait for their turn.", labels=["model"])
        running = GaugeMetricFamily("depthwise_running", "Requests that are being answered.", labels=["model"])
        for served in self._models:
            waiting.add_metric([served.name], served.num_waiting)
            running.add_metric([served.name], served.num_running)
        return [waiting, running]
