"""Which share of the time computes at which bandwidth: data parallel, DiLoCo and streaming DiLoCo."""

from __future__ import annotations

from studies.reproduction.measured_table import MeasuredRow, computing
from studies.yardstick import described

SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
GRID = tuple(10 ** (-1 + 4 * k / 49) for k in range(50))  # Gbit/s: the papers', of which they print two or three digits
FULL, INNER = 16, 100  # bits of a number; steps of a round
# of a model: parameters, layers, seconds of a step; Gbit/s for each share
MODELS = {
    "1B": (1e9, 24, 0.1, {
        "data parallel": (86.8, 152.6, 184.2, 222.3, 569), "DiLoCo": (1.4, 6.2, 13.3, 23.3, 86.8),
        "streaming": (1.4, 5.2, 9.1, 16, 28.1), "+ overlap": (1.4, 4.3, 6.2, 9.1, 11),
        "+ 4 bits": (0.4, 0.9, 1.7, 2, 3),
    }),
    "100B": (1e11, 108, 4.9, {
        "data parallel": (184.2, 323.8, 390.7, 390.7, 471.5), "DiLoCo": (3, 11, 23.3, 49.4, 184.2),
        "streaming": (2.4, 6.2, 9.1, 11, 19.3), "+ overlap": (1.7, 3.6, 4.3, 5.2, 5.2),
        "+ 4 bits": (0.5, 0.9, 1.1, 1.1, 1.4),
    }),
    "10B": (1e10, 48, 0.8, {
        "data parallel": (104.8, 184.2, 222.3, 222.3, 390.7), "DiLoCo, 10 steps": (16, 49.4, 86.8, 152.6, 222.3),
        "DiLoCo": (1.4, 6.2, 13.3, 23.3, 86.8),
    }),
}  # fmt: skip


def _words(way: str, layers: int, n_bytes: float) -> tuple[str, ...]:
    if way == "data parallel":
        return ("algo=sync", f"cluster.bucket_bytes={n_bytes / layers:.10g}", "budget.steps=10")
    if way.startswith("DiLoCo"):
        inner = 10 if way.endswith("10 steps") else INNER
        return ("algo=diloco", f"algo.tau={inner}", f"budget.steps={inner}")
    delay = 1 if way == "streaming" else 2
    fragments = min(layers // 3, (INNER - 1) // (delay + 1))  # more steps than hide must lie between two fragments
    return (
        "algo=streaming",
        f"algo.tau={INNER}",
        f"algo.fragments={fragments}",
        f"algo.delay={delay}",
        f"budget.steps={INNER}",
    )


def _rows() -> list[MeasuredRow]:
    rows = []
    for model, (parameters, layers, step_s, ways) in MODELS.items():
        for way, rates in ways.items():
            for share, printed in zip(SHARES, rates, strict=True):
                rate = min(GRID, key=lambda value: abs(value - printed))
                n_bytes = parameters * (4 if way == "+ 4 bits" else FULL) / 8
                overrides = (
                    *_words(way, layers, n_bytes),
                    "nodes=2",
                    f"cluster.message_bytes={n_bytes:.10g}",
                    f"cluster.bandwidth={rate * 1e9:.10g}",
                    f"cluster.gradient_s={step_s}",
                    "cluster.latency_s=0",
                    "cluster.collective=ring",
                )
                label = f"{model}, {way}, {printed:g} Gbit/s"
                rows.append(MeasuredRow(label, share, overrides, computing))
    return rows


TABLE = described("utilisation", _rows())
