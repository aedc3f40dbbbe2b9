"""An answer as the document that commands print."""

from __future__ import annotations

from alula.assess.answer import Answer, as_json
from alula.assess.evidence import Section
from alula.assess.sections import evidence
from alula.cost.telling.document import Document, Table


def tell(answer: Answer) -> Document:
    """The verdict, the tables with keys of their evidence, and the evidence."""
    shown = (*answer.sections, evidence(answer.ledger))
    return Document(str(answer.line), tuple(map(table, shown)), (), as_json(answer))


def table(section: Section) -> Table:
    """A section with the keys of its evidence beside each row."""
    cited = section.title != "Evidence"
    headers = (*section.headers, "evidence") if cited else section.headers
    rows = tuple(
        (*row.cells, " ".join(row.evidence)) if cited else row.cells for row in section.rows
    )
    return Table(section.title, headers, rows)
