"""What Prometheus reads: requests as this process sees them, and the engine's own counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from alula.server.messages import Finish, Statistics

_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """A registry of its own, so that two servers in one process do not mix."""

    def __init__(self, engine: Callable[[], EngineState]) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by outcome", "outcome")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens")
        self.tokens = self._counter("generated_tokens", "Generated tokens")
        self._drafted = self._counter("drafted", "Rounds that tried a draft this deep", "depth")
        self._accepted = self._counter("accepted", "Rounds that accepted one this deep", "depth")
        self.depths: list[tuple[int, int]] = []
        """Rounds that tried, and that accepted, a draft as deep as 1, 2, …"""
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token", _FIRST
        )
        self.between = self._histogram(
            "inter_token_latency_seconds",
            "Time between pieces of one sample, divided by the tokens they bring",
            _BETWEEN,
        )
        self.seconds = self._histogram("request_seconds", "Arrival to last token", _SECONDS)
        self._registry.register(_EngineCollector(engine))

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"alula_{name}", what, labels, registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"alula_{name}", what, buckets=buckets, registry=self._registry)

    def finished(self, finish: Finish) -> None:
        """Count one finished sample."""
        self.tokens.inc(finish.tokens)
        for depth, (drafted, accepted) in enumerate(
            zip(finish.drafted, finish.accepted, strict=True), start=1
        ):
            self._drafted.labels(depth).inc(drafted)
            self._accepted.labels(depth).inc(accepted)
            if depth > len(self.depths):
                self.depths.append((0, 0))
            tried, kept = self.depths[depth - 1]
            self.depths[depth - 1] = tried + drafted, kept + accepted

    def exposition(self) -> tuple[bytes, str]:
        """The text and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class EngineState:
    """What the engine collector reads at each scrape."""

    def __init__(self, up: bool, restarts: int, statistics: Statistics) -> None:
        self.up = up
        self.restarts = restarts
        self.statistics = statistics


class _EngineCollector(Collector):
    """Counters of an engine begin at 0 with every new engine process, as Prometheus expects."""

    def __init__(self, engine: Callable[[], EngineState]) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        state = self._engine()
        found = state.statistics
        yield GaugeMetricFamily("alula_up", "Whether the engine is alive", value=state.up)
        yield CounterMetricFamily(
            "alula_engine_restarts", "Engine processes that ended", value=state.restarts
        )
        yield GaugeMetricFamily("alula_waiting", "Samples in the queue", value=found.waiting)
        yield GaugeMetricFamily("alula_running", "Samples being written", value=found.running)
        pages = GaugeMetricFamily("alula_cache_pages", "Pages of the cache", labels=("state",))
        pages.add_metric(("in_use",), found.pages_in_use)
        pages.add_metric(("cached",), found.pages_cached)
        pages.add_metric(("free",), found.pages - found.pages_in_use - found.pages_cached)
        yield pages
        for name, what, value in _counters(found):
            yield CounterMetricFamily(f"alula_{name}", what, value=value)
        launches = CounterMetricFamily(
            "alula_launches",
            "Launches: captured as one graph, or operation by operation and why",
            labels=("way",),
        )
        for way, count in sorted(found.launches.items()):
            launches.add_metric((way,), count)
        yield launches
        shapes = CounterMetricFamily(
            "alula_rounds_by_nodes", "Rounds by draft nodes verified", labels=("nodes",)
        )
        for nodes, count in sorted(found.rounds_by_nodes.items()):
            shapes.add_metric((str(nodes),), count)
        yield shapes


def _counters(found: Statistics) -> list[tuple[str, str, int]]:
    return [
        ("prefix_lookups", "Samples that looked for their prompt's start", found.prefix_lookups),
        ("prefix_hits", "Samples that found it", found.prefix_hits),
        ("prefix_tokens", "Prompt tokens found in the cache", found.prefix_tokens),
        ("preemptions", "Times that a sample gave way for lack of pages", found.preemptions),
        ("prompt_rows", "Prompt tokens computed", found.prompt_rows),
        ("rounds", "Rounds of all samples", found.rounds),
        ("round_tokens", "Tokens that rounds emitted; by rounds: τ", found.round_tokens),
    ]
