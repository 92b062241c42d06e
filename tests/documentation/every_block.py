"""Every console block of the READMEs and the quick starts, the slow ones too: `make docs-run`."""

from __future__ import annotations

import pytest
from documentation.code_blocks import PAGES, Block, blocks, check_console

EVERY = [block for page in PAGES for block in blocks(page, "console")]


@pytest.mark.parametrize("block", EVERY, ids=lambda block: block.name)
def test_a_command_prints_what_the_page_shows(block: Block) -> None:
    check_console(block)
