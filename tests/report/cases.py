"""Reports whose exact text is kept in `snapshots`; `python -m tools.regenerate reports` writes it anew."""

from collections.abc import Callable, Mapping
from pathlib import Path

from simulator.show.forms import ANSWERS
from simulator.show.report.presentation import Presentation
from tests.report import samples

FOLDER = Path(__file__).parent / "snapshots"
_PLAIN = Presentation()
_RUN = Presentation(train_tokens=10**11, price_per_device_hour=2.5)

CASES: dict[str, Callable[[], str]] = {
    "ranking.txt": lambda: ANSWERS["ranking"].text(samples.ranking(), "table", _PLAIN),
    "ranking-nothing-fits.txt": lambda: ANSWERS["ranking"].text(samples.hopeless(), "table", Presentation(verbosity=1)),
    "ranking-training.md": lambda: ANSWERS["ranking"].text(samples.ranking(), "markdown", _RUN),
    "ranking.csv": lambda: ANSWERS["ranking"].text(samples.ranking(), "csv", _PLAIN),
    "ranking.json": lambda: ANSWERS["ranking"].text(samples.ranking(), "json", _PLAIN),
    "estimate.txt": lambda: ANSWERS["estimate"].text(
        samples.estimate(), "table", Presentation(defaults={"precision": "bf16", "sequence_parallel": False})
    ),
    "ranking-calibrated.txt": lambda: ANSWERS["ranking"].text(
        samples.ranking(estimates=(samples.calibrated(),)), "table", _PLAIN
    ),
    "estimate-calibrated.txt": lambda: ANSWERS["estimate"].text(samples.calibrated(), "table", _PLAIN),
    "estimate-calibrated.json": lambda: ANSWERS["estimate"].text(samples.calibrated(), "json", _PLAIN),
    "estimate-refused.md": lambda: ANSWERS["estimate"].text(samples.refused(), "markdown", Presentation(verbosity=-1)),
    "estimate.json": lambda: ANSWERS["estimate"].text(samples.estimate(), "json", _RUN),
}


def generated() -> Mapping[Path, str]:
    return {FOLDER / name: text() for name, text in CASES.items()}
