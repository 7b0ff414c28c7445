"""A damaged document gives a job or a SpecError, never another exception."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from crosstrain.spec import SpecError, build_model, dump_document, learning_rates, parse_document

TEXT = (Path(__file__).parents[3] / "examples" / "custom-1d.yaml").read_text()
PIECES = ["", "{", "}", "[", "]", ":", "- ", "&a ", "*a", "!", "\n", "  ", "'", '"', "|", "#", "%", "@", "1e400", "-1",
          ".inf", "null", "0x1", "\ufeff", "\u2028", "\t", "same", "{a: 1}", "[1, 2]", "true", "\x00"]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(TEXT) - 1), st.integers(0, 6), st.sampled_from(PIECES)), min_size=1, max_size=4
    )
)
def test_damaged_documents(edits: list[tuple[int, int, str]]) -> None:
    text = TEXT
    for place, removed, piece in edits:
        text = text[:place] + piece + text[place + removed :]
    with contextlib.suppress(SpecError):
        spec = parse_document(text)
        build_model(spec, (3, 128), 4)
        learning_rates(spec, 900)
        assert dump_document(parse_document(dump_document(spec))) == dump_document(spec)
