"""Reads Apache Parquet as JSON lines. Each row is a line, so nulls, line numbers and resuming work as in other inputs.

Only the requested columns are decoded, a few rows at a time, so that memory stays bounded.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ascend_adapt.errors import DataError, not_installed

ROWS_AT_ONCE = 256
BUFFER_BYTES = 1 << 20


class ParquetLines(io.RawIOBase):
    """Stream of the rows of a Parquet file, as ASCII lines {key: text or null}.

    Raises:
        DataError: pyarrow is not installed, or a column is missing or is not text.
    """

    def __init__(self, raw: IO[bytes], keys: Sequence[str]):
        try:
            pyarrow = importlib.import_module("pyarrow")
            parquet = importlib.import_module("pyarrow.parquet")
        except ModuleNotFoundError as error:
            raise DataError(not_installed("pyarrow", ".parquet files", "data-parquet")) from error
        self._text_type = pyarrow.large_string()
        self._file = parquet.ParquetFile(raw, buffer_size=BUFFER_BYTES, pre_buffer=False)
        schema = self._file.schema_arrow
        wrong = [f"no column {key!r}" for key in keys if key not in schema.names]
        for key in sorted(set(keys) & set(schema.names)):
            found = schema.field(key).type
            values = found.value_type if pyarrow.types.is_dictionary(found) else found
            if str(values) not in ("string", "large_string", "string_view", "binary", "large_binary", "null"):
                wrong.append(f"column {key!r} of type {found}")
        if wrong:
            columns = ", ".join(schema.names[:20])
            raise DataError(f"{', '.join(wrong)}, expected text columns, out of {columns} — see --json-keys")
        self._keys = list(keys)
        self._lines = self._all_lines()
        self._line = b""

    def _all_lines(self) -> Iterator[bytes]:
        for batch in self._file.iter_batches(ROWS_AT_ONCE, columns=self._keys, use_threads=False):
            columns: list[list[Any]] = [batch.column(key).cast(self._text_type).to_pylist() for key in self._keys]
            for row in zip(*columns, strict=True):
                yield json.dumps(dict(zip(self._keys, row, strict=True))).encode() + b"\n"

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into ``buffer`` and return their number, which is 0 at the end."""
        if not self._line:
            self._line = next(self._lines, b"")
        part, self._line = self._line[: len(buffer)], self._line[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
