"""Numbers and ranges of numbers on the command line: the recorded steps and ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ascend_adapt.errors import SettingsError


@dataclass(frozen=True)
class Selection:
    """Ranges of integers, both ends included. Without ranges, every integer is selected."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str, option: str, least: int) -> Selection:
        """Parse "3", "1,10-12" or "all".

        Raises:
            SettingsError: the text has another form.
        """
        if text == "all":
            return cls()
        ranges = []
        for word in text.split(","):
            span = re.fullmatch(r"(\d+)(?:-(\d+))?", word.strip())
            first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
            if not least <= first <= last:
                raise SettingsError(
                    f"{option}: {text!r}, expected numbers from {least} on, ranges, or all — such as 1,10-12"
                )
            ranges.append((first, last))
        return cls(tuple(ranges))

    def __contains__(self, number: int) -> bool:
        return not self.ranges or any(first <= number <= last for first, last in self.ranges)


EVERYTHING = Selection()
