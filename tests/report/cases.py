"""Reports whose exact text is kept in `snapshots`; `python -m tools.regenerate reports` writes it anew."""

from collections.abc import Callable, Mapping
from pathlib import Path

from simulator.show.report.formats import ESTIMATE_REPORTERS, RANKING_REPORTERS
from simulator.show.report.presentation import Presentation
from tests.report import samples

FOLDER = Path(__file__).parent / "snapshots"
_PLAIN = Presentation(device_has_fp8=True)
_RUN = Presentation(train_tokens=10**11, price_per_device_hour=2.5)

CASES: dict[str, Callable[[], str]] = {
    "ranking.txt": lambda: RANKING_REPORTERS["table"](samples.ranking(), _PLAIN),
    "ranking-nothing-fits.txt": lambda: RANKING_REPORTERS["table"](
        samples.hopeless(), Presentation(verbosity=1, device_has_fp8=False)
    ),
    "ranking-training.md": lambda: RANKING_REPORTERS["markdown"](samples.ranking(), _RUN),
    "ranking.csv": lambda: RANKING_REPORTERS["csv"](samples.ranking(), _PLAIN),
    "ranking.json": lambda: RANKING_REPORTERS["json"](samples.ranking(), _PLAIN),
    "estimate.txt": lambda: ESTIMATE_REPORTERS["table"](
        samples.estimate(), Presentation(defaults={"precision": "bf16", "sequence_parallel": False})
    ),
    "ranking-calibrated.txt": lambda: RANKING_REPORTERS["table"](
        samples.ranking(estimates=(samples.calibrated(),)), _PLAIN
    ),
    "estimate-calibrated.txt": lambda: ESTIMATE_REPORTERS["table"](samples.calibrated(), _PLAIN),
    "estimate-calibrated.json": lambda: ESTIMATE_REPORTERS["json"](samples.calibrated(), _PLAIN),
    "estimate-refused.md": lambda: ESTIMATE_REPORTERS["markdown"](samples.refused(), Presentation(verbosity=-1)),
    "estimate.json": lambda: ESTIMATE_REPORTERS["json"](samples.estimate(), _RUN),
}


def generated() -> Mapping[Path, str]:
    return {FOLDER / name: text() for name, text in CASES.items()}
