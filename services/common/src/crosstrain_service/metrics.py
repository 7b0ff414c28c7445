"""Metrics of a process: what there is, its present values, and the form in which Prometheus reads them.

Values are kept in plain dictionaries instead of one object per series: step records arrive in columns of up to
some thousand steps, and a histogram takes a whole column at once.
"""

import threading
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple, Union

import numpy as np
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.utils import floatToGoString

COUNTER, GAUGE, SUMMARY, HISTOGRAM = "counter", "gauge", "summary", "histogram"
_FAMILIES = {COUNTER: CounterMetricFamily, GAUGE: GaugeMetricFamily, SUMMARY: SummaryMetricFamily}

Labels = Tuple[str, ...]


class Metric(NamedTuple):
    """Definition of one metric. The name is ``crosstrain_<subsystem>_<noun>_<unit>[_total]`` in base units."""

    name: str
    kind: str
    help: str
    labels: Labels = ()
    #: Upper bounds of a histogram's buckets, without infinity, ascending.
    buckets: Tuple[float, ...] = ()


class _Distribution:
    """Count, sum and bucket counts of one series."""

    def __init__(self, buckets: Tuple[float, ...]) -> None:
        self._bounds = np.asarray(buckets, dtype=np.float64)
        self._counts = np.zeros(len(buckets) + 1, dtype=np.int64)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def add(self, values: np.ndarray) -> None:
        # A value that equals a bound belongs below it, as "le" says.
        places = np.searchsorted(self._bounds, values, side="left")
        self._counts += np.bincount(places, minlength=len(self._counts))
        self.sum += float(values.sum())

    def cumulative(self) -> List[Tuple[str, float]]:
        names = [floatToGoString(bound) for bound in self._bounds] + ["+Inf"]
        return list(zip(names, np.cumsum(self._counts).tolist()))


class Values:
    """Present values of some metrics; safe from several threads, and a collector of ``prometheus_client``.

    Raises ``KeyError`` for a metric that is not defined and ``ValueError`` for a wrong number of labels.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.metrics = {metric.name: metric for metric in metrics}
        self._numbers: Dict[str, Dict[Labels, float]] = {name: {} for name in self.metrics}
        self._distributions: Dict[str, Dict[Labels, _Distribution]] = {name: {} for name in self.metrics}
        self._lock = threading.Lock()

    def add(self, name: str, labels: Labels = (), amount: float = 1.0) -> None:
        """Adds to a counter; 0 makes the series visible."""
        metric = self._checked(name, labels, COUNTER)
        with self._lock:
            series = self._numbers[metric.name]
            series[labels] = series.get(labels, 0.0) + amount

    def set(self, name: str, value: float, labels: Labels = ()) -> None:
        """Sets a gauge."""
        metric = self._checked(name, labels, GAUGE)
        with self._lock:
            self._numbers[metric.name][labels] = float(value)

    def replace(self, name: str, series: Mapping[Any, float]) -> None:
        """Sets all series of a gauge, or of a counter that is kept elsewhere, at once; others disappear."""
        for labels in series:
            self._checked(name, labels, COUNTER, GAUGE)
        with self._lock:
            self._numbers[name] = dict(series)

    def observe(self, name: str, labels: Labels, values: Union[float, Sequence[float]]) -> None:
        """Adds one value or many to a histogram or a summary; none make the series visible."""
        metric = self._checked(name, labels, HISTOGRAM, SUMMARY)
        array = np.atleast_1d(np.asarray(values, dtype=np.float64))
        with self._lock:
            series = self._distributions[name]
            if labels not in series:
                series[labels] = _Distribution(metric.buckets)
            series[labels].add(array)

    def remove(self, names: Iterable[str], labels: Labels) -> None:
        """Removes one series of several gauges, where it exists."""
        with self._lock:
            for name in names:
                self._numbers[name].pop(labels, None)

    def get(self, name: str, labels: Labels = ()) -> float:
        """A counter's or gauge's value, or the count of a histogram or summary. Raises ``KeyError``."""
        with self._lock:
            if self.metrics[name].kind in (HISTOGRAM, SUMMARY):
                return self._distributions[name][labels].count
            return self._numbers[name][labels]

    def collect(self) -> Iterator[Any]:
        """All families, those without a series too: their documentation is there from the start."""
        with self._lock:
            families = [self._family(metric) for metric in self.metrics.values()]
        return iter(families)

    def _family(self, metric: Metric) -> Any:
        if metric.kind == HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, entry in self._distributions[metric.name].items():
                histogram.add_metric(labels, entry.cumulative(), entry.sum)
            return histogram
        family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
        if metric.kind == SUMMARY:
            for labels, entry in self._distributions[metric.name].items():
                family.add_metric(labels, entry.count, entry.sum)
        else:
            for labels, value in self._numbers[metric.name].items():
                family.add_metric(labels, value)
        return family

    def _checked(self, name: str, labels: Labels, *kinds: str) -> Metric:
        metric = self.metrics[name]
        if metric.kind not in kinds:
            raise ValueError("%s is a %s" % (name, metric.kind))
        if len(labels) != len(metric.labels):
            raise ValueError("%s has the labels %s" % (name, ", ".join(metric.labels)))
        return metric
