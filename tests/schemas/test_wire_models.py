"""The models of what the service sends."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from schemas import wire
from schemas.json_decode import JsonNumber, decode_json
from tests.rows import every

DOCUMENT = b"""{
  "id": "9007199254740993", "closed": 1, "updated_at": "2023-12-11T15:02:51+00:00", "scan_code": 7, "new_key": [1],
  "uploads": [{"id": 5, "latitude": "51.5", "longitude": "", "has_damage": 0, "geocoding": {"summary": {"n": 1.10}}}],
  "form_submits": null,
  "workflow_runs": [{"id": 8, "completed_at": null, "workflow": {"id": 3, "steps": null},
                     "workflow_run_steps": [{"id": 9, "entity_ids": [5, 6]}]}]
}"""


def test_a_document_becomes_typed_values() -> None:
    """A file is had as typed values: ids exact, flags as booleans, moments as microseconds, collections as models."""
    file = wire.File.model_validate(decode_json(DOCUMENT))
    assert (file.id, file.closed, file.scan_code) == (2**53 + 1, True, "7")
    assert file.updated_at == 1_702_306_971_000_000
    (upload,) = file.uploads
    assert (upload.latitude, upload.longitude, upload.has_damage) == (51.5, None, False)
    assert upload.geocoding == '{"summary":{"n":1.10}}'
    (run,) = file.workflow_runs
    assert run.workflow is not None
    assert (run.completed_at, run.workflow.id, run.workflow_run_steps[0].entity_ids) == (None, 3, [5, 6])
    assert [*file.form_submits, *file.fields, *run.workflow.steps] == [], "null and absent collections are empty"
    assert file.model_extra == {"new_key": [1]}, "unknown keys are kept"


@every("given", [{"id": "s3cr3t"}, {"id": JsonNumber("1.5")}, {"uploads": ["s3cr3t"]}, {"closed": {}}])
def test_a_misfit_is_refused_without_being_shown(given: dict[str, Any]) -> None:
    """A value that does not fit its kind is an error of validation that does not show it."""
    with pytest.raises(ValidationError) as refused:
        wire.File.model_validate(given)
    assert "s3cr3t" not in str(refused.value)


def test_models_do_not_change() -> None:
    """A document that was read stays as it is."""
    with pytest.raises(ValidationError, match="frozen"):
        wire.File(id=1).id = 2
