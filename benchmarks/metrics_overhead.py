"""What metrics cost: the same training run in a service that is scraped and in one without metrics, in pairs.

Both services run at the same time, on the same state of the machine; every pair trains cnn2 with batch 64 in one after
the other, in alternating order. The scraped one is asked every second (Prometheus asks every 15 to 60), by a
process of its own. Prints the median of the paired ratios of the median step times, with a 95 % interval by bootstrap
over the pairs, and the time that one scrape takes. On a busy machine the ratio of step times is mostly noise; the
processor time that the service's front spends per step, which is printed as well, is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
from overhead import run_service

from tests.support import catalogue
from tests.support.service import Service

_SCRAPER = """
import sys, time, urllib.request
spent = []
sys.stdin.close()
try:
    while True:
        begin = time.perf_counter()
        urllib.request.urlopen(sys.argv[1], timeout=10).read()
        spent.append(time.perf_counter() - begin)
        print(spent[-1], flush=True)
        time.sleep(max(0, float(sys.argv[2]) - spent[-1]))
except KeyboardInterrupt:
    pass
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="torch", help="name or name@version")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--warm-up", type=int, default=20, help="steps left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between scrapes")
    parser.add_argument("--output", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    (engine,) = catalogue.choose(arguments.engine)[:1]
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (4000, 1, 28, 28)).astype(np.uint8)
    labels = random.randint(0, 10, 4000).astype(np.int64)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port_file = folder / "port"
        options = ("--metrics-port", "auto", "--metrics-port-file", str(port_file))
        scraped = stack.enter_context(Service(engine.service, options=options))
        plain = stack.enter_context(Service(engine.service, options=("--metrics-port", "0")))
        url = f"http://127.0.0.1:{port_file.read_text().strip()}/metrics"
        times = stack.enter_context(open(folder / "times", "w+"))
        for service in (scraped, plain):
            run_service(service, engine, images, labels, arguments, "warm")
        pairs = []
        for index in range(arguments.pairs):
            pair = {}
            for name in ("scraped", "plain") if index % 2 == 0 else ("plain", "scraped"):
                service = scraped if name == "scraped" else plain
                scraper = None
                if name == "scraped":
                    command = [sys.executable, "-c", _SCRAPER, url, str(arguments.interval)]
                    scraper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=times)
                before = cpu_seconds(service)
                pair[name] = run_service(service, engine, images, labels, arguments, str(index))["step"]
                pair[name + "_front"] = (cpu_seconds(service) - before) / arguments.steps
                if scraper is not None:
                    scraper.terminate()
                    scraper.wait()
            pairs.append(pair)
        times.seek(0)
        scrapes = [float(line) for line in times]
    ratios = np.array([pair["scraped"] / pair["plain"] for pair in pairs])
    resampled = np.median(random.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    print(f"{engine}: step time with metrics / without: {np.median(ratios):.4f} "
          f"(95 % interval {low:.4f} to {high:.4f}, {len(ratios)} pairs); "
          f"{len(scrapes)} scrapes of {statistics.median(scrapes) * 1e3:.1f} ms")
    step = statistics.median(pair["plain"] for pair in pairs)
    fronts = [statistics.median(pair[name + "_front"] for pair in pairs) for name in ("scraped", "plain")]
    print(f"processor time of the front per step: {fronts[0] * 1e3:.3f} ms scraped, {fronts[1] * 1e3:.3f} ms without; "
          f"the difference is {(fronts[0] - fronts[1]) / step:.2%} of a step of {step * 1e3:.1f} ms")
    if arguments.output:
        arguments.output.write_text(json.dumps({"engine": str(engine), "pairs": pairs, "scrapes": scrapes}) + "\n")
    return 0


def cpu_seconds(service: Service) -> float:
    """Processor time that a service's front has used so far."""
    times = psutil.Process(service.process.pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main())
