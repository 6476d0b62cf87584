"""What the pages say a command prints is what it prints."""

import pytest

from tests.docs.pages import DOCS
from tests.docs.ran import BLOCK, printed

RAN = [
    pytest.param(command, output, id=f"{path.stem}-{number}")
    for path in sorted(DOCS.glob("*.md"))
    for number, (command, output) in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")))
]


def test_there_are_such_blocks() -> None:
    assert RAN


@pytest.mark.parametrize(("command", "output"), RAN)
def test_a_page_shows_what_is_printed(command: str, output: str) -> None:
    assert printed(command) == output
